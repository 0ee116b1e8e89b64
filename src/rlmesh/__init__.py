"""rlmesh: reinforcement learning of language models as a mesh of Monarch actors, described by a recipe.

Names are imported when first used, so that `import rlmesh` alone costs nothing (no torch, no vLLM, no Monarch).
"""

from importlib import import_module

_EXPORTS = {
    "ActorMesh": "rlmesh.mesh.actor_mesh",
    "Batch": "rlmesh.rollout.batch",
    "Episode": "rlmesh.rollout.types",
    "Group": "rlmesh.rollout.types",
    "PolicyServer": "rlmesh.actors.policy_server",
    "Recipe": "rlmesh.recipe",
    "ReferenceModel": "rlmesh.actors.reference_model",
    "ReplayBuffer": "rlmesh.actors.replay_buffer",
    "RewardActor": "rlmesh.actors.reward_actor",
    "RolloutWorker": "rlmesh.actors.rollout_worker",
    "TitanTrainer": "rlmesh.actors.titan_trainer",
    "load_recipe": "rlmesh.recipe",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str):
    if name not in _EXPORTS:
        raise AttributeError(f"module 'rlmesh' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__():
    return __all__
