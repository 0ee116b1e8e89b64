"""Errors a user of rlmesh sees: one sentence that names the recipe's key, the file or the actor."""


class RLMeshError(Exception):
    """Anything rlmesh refuses or cannot go on with; its text is meant to be read without a traceback."""


class RecipeError(RLMeshError):
    """A recipe that cannot be run; the text begins with the dotted path of the key (`trainer.optimizer.lr: ...`)."""


class ActorFailure(RLMeshError):
    """An actor failed or did not answer in time; the text names the actor, its rank and the cause."""


class ActorDied(ActorFailure):
    """An actor's process died, or it does not answer any more; its own work is lost, and may be done again by another.

    `actor` names its log and `spawned` the Monarch actor, which is another one after a replacement; '' where not known.
    """

    def __init__(self, text: str, actor: str = "", spawned: str = ""):
        super().__init__(text, actor, spawned)  # all of them, or it cannot be pickled
        self.actor, self.spawned = actor, spawned

    def __str__(self) -> str:
        return self.args[0]
