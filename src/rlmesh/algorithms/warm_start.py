"""Supervised steps before the reinforcement learning, so that the policy's answers are ones the environment can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlmesh.imports import import_path, running
from rlmesh.recipe import Recipe
from rlmesh.rollout.collate import supervised
from rlmesh.schedule import value_at
from rlmesh.seeds import fan_out

if TYPE_CHECKING:
    from rlmesh.mesh.actor_mesh import ActorMesh
    from rlmesh.run import Run


async def warm_start(mesh: ActorMesh, recipe: Recipe, run: Run) -> None:
    """Cross-entropy on (observation, answer) pairs of `warm_start.data`; the last step's weights become version 0."""
    config = recipe.warm_start
    data = import_path(config.data, "warm_start.data")
    count = config.steps * config.batch_size
    with running(config.data, "warm_start.data"):
        pairs = data(seed=fan_out(recipe.run.seed, "warm_start"), count=count, **config.args)
        observations, texts = zip(*pairs, strict=True)
        if len(texts) != count or not all(isinstance(text, str) for text in (*observations, *texts)):
            raise ValueError(f"it gave {len(texts)} pairs, where {count} pairs of texts were asked for")
    prompts, answers = await mesh.rollout.render(list(observations), list(texts))
    for step in range(config.steps):
        part = slice(step * config.batch_size, (step + 1) * config.batch_size)
        batch = supervised(prompts[part], answers[part])
        output = await mesh.trainer.forward_backward(batch, "cross_entropy", {})
        await mesh.trainer.optim_step(value_at(config.lr, step, config.steps))
        run.progress("warm start", step + 1, config.steps, output.metrics)
    await mesh.trainer.reset_optimizer()
