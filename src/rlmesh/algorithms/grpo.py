"""GRPO: groups of episodes of one task, each episode's advantage its return against its group's.

Shao et al. 2024, "DeepSeekMath" (arXiv:2402.03300); without division by the group's deviation it is Dr. GRPO, Liu et
al. 2025 (arXiv:2503.20783). This file is meant to be read, and copied into a script of your own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from rlmesh.algorithms.served import ServedVersion
from rlmesh.algorithms.warm_start import warm_start
from rlmesh.losses.advantages import resolve_advantage
from rlmesh.recipe import Recipe
from rlmesh.rollout.batch import Batch
from rlmesh.rollout.collate import assign_advantages, collate
from rlmesh.rollout.stats import rollout_metrics
from rlmesh.rollout.types import Task
from rlmesh.schedule import value_at
from rlmesh.seeds import fan_out
from rlmesh.tasks import together

if TYPE_CHECKING:
    from rlmesh.mesh.actor_mesh import ActorMesh
    from rlmesh.run import Run


async def grpo(mesh: ActorMesh, recipe: Recipe, run: Run) -> None:
    """Make episodes and train on them until the recipe's last step; a failure of either side ends both.

    Version v is what step v trains: step v consumes groups that version v - max_policy_age or a newer one made, and
    publishes version v + 1.
    """
    if recipe.warm_start:
        async with mesh.policy_asleep():
            await warm_start(mesh, recipe, run)
    served = ServedVersion(0)
    await publish(mesh, version=0)
    if mesh.ref_model:
        await mesh.ref_model.each("load", 0)
    await together(keep_rolling(mesh, recipe, served, run), keep_training(mesh, recipe, served, run))


async def keep_rolling(mesh: ActorMesh, recipe: Recipe, served: ServedVersion, run: Run) -> None:
    """Tasks -> episodes -> rewards -> groups -> buffer.

    A step's groups are dispatched once version `step - max_policy_age` is served, and the step trains exactly version
    `step`: that is the whole argument for why no token is ever older than `max_policy_age` versions when trained on.
    """

    async def roll(task: Task) -> None:
        group, metrics = await mesh.rollout.run_group(task)
        run.record(task.step, metrics)
        await mesh.replay_buffer.put(group)

    async def roll_step(step: int) -> None:
        with run.timed("generate", step):
            await together(*[roll(task) for task in tasks(recipe, step)])

    async with asyncio.TaskGroup() as rolling:
        for step in range(recipe.run.steps):
            await served.reach(step - recipe.replay_buffer.max_policy_age)
            rolling.create_task(roll_step(step))


async def keep_training(mesh: ActorMesh, recipe: Recipe, served: ServedVersion, run: Run) -> None:
    """Groups -> batch -> trainer -> weights -> policy."""
    advantage = resolve_advantage(recipe.algorithm.advantage)
    async for step in run.steps():
        with run.timed("wait_for_batch", step):
            groups = await mesh.replay_buffer.take(step, version=step, count=recipe.rollout.groups_per_step)
        assign_advantages(groups, advantage)
        run.record(step, rollout_metrics(groups, version=step))
        async with mesh.policy_asleep():
            await train(mesh, recipe, run, step, collate(groups))
        with run.timed("weight_sync", step):
            await publish(mesh, version=step + 1)
        await served.advance(step + 1)
        await run.finish(step, groups)  # metrics, evaluation, checkpoint


async def train(mesh: ActorMesh, recipe: Recipe, run: Run, step: int, batch: Batch) -> None:
    """One step's batch: reference logprobs, and an optimizer step for each minibatch."""
    if mesh.ref_model:
        with run.timed("reference", step):
            batch = batch.with_ref_logprobs(await mesh.ref_model.score(batch))
    lr = value_at(recipe.trainer.optimizer.lr, step, recipe.run.steps)
    for number, part in enumerate(minibatches(batch, recipe, step)):
        with run.timed("train", step):
            stats = await mesh.trainer.forward_backward(part, recipe.algorithm.loss, coefficients(recipe, step))
            if number:  # these weights have moved: only the first minibatch compares trainer and policy server
                stats = {name: value for name, value in stats.items() if not name.startswith("mismatch_kl/")}
            run.record(step, stats)
            run.record(step, await mesh.trainer.optim_step(lr))


def tasks(recipe: Recipe, step: int) -> list[Task]:
    """The groups of one step; each draws from streams of its own."""
    seed, size = recipe.run.seed, recipe.rollout.group_size
    return [
        Task(
            step,
            index,
            size,
            seed=fan_out(seed, "group", step, index, bits=62),
            shared_seed=fan_out(seed, "task", step, index),
        )
        for index in range(recipe.rollout.groups_per_step)
    ]


def minibatches(batch: Batch, recipe: Recipe, step: int) -> list[Batch]:
    """The batch in `algorithm.minibatches` parts of shuffled samples, one optimizer step each."""
    if recipe.algorithm.minibatches == 1:
        return [batch]
    shuffled = np.random.default_rng(fan_out(recipe.run.seed, "minibatches", step)).permutation(batch.num_samples)
    return [batch.select(part) for part in np.array_split(shuffled, recipe.algorithm.minibatches)]


def coefficients(recipe: Recipe, step: int) -> dict[str, float]:
    """The loss's coefficients at this step."""
    schedules = {name: getattr(recipe.algorithm, name) for name in ("clip_low", "clip_high", "kl_coef")}
    return {name: value_at(schedule, step, recipe.run.steps) for name, schedule in schedules.items()}


async def publish(mesh: ActorMesh, version: int) -> None:
    """The trainer's weights become `version`, and every policy server serves it."""
    await mesh.trainer.publish(version)
    await mesh.policy.each("fetch", version)
