"""Errors a user of rlmesh sees: one sentence that names the recipe's key, the file or the actor."""


class RLMeshError(Exception):
    """Anything rlmesh refuses or cannot go on with; its text is meant to be read without a traceback."""


class RecipeError(RLMeshError):
    """A recipe that cannot be run; the text begins with the dotted path of the key (`trainer.optimizer.lr: ...`)."""


class ActorFailure(RLMeshError):
    """An actor failed or did not answer in time; the text names the actor, its rank and the cause."""
