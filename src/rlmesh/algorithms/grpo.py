"""GRPO: groups of episodes of one task, each episode's advantage its return against its group's.

Shao et al. 2024, "DeepSeekMath" (arXiv:2402.03300); an advantage that is not divided by the group's deviation is Dr. GRPO's,
Liu et al. 2025 (arXiv:2503.20783); the mean over all tokens of a minibatch is DAPO's, Yu et al. 2025 (arXiv:2503.14476). This file is meant to be read, and copied into a script of your own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from rlmesh.algorithms.correction import correct
from rlmesh.algorithms.mismatch import Served, compare, served_logprobs
from rlmesh.algorithms.served import ServedVersion
from rlmesh.algorithms.warm_start import warm_start
from rlmesh.errors import RLMeshError
from rlmesh.imports import running
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
    from rlmesh.actors.service import Service
    from rlmesh.mesh.actor_mesh import ActorMesh
    from rlmesh.run import Run


async def grpo(mesh: ActorMesh, recipe: Recipe, run: Run) -> None:
    """Make episodes and train on them until the recipe's last step; a failure of either side ends both.

    A run begins with the warm start, whose weights are also the reference's, or goes on from its checkpoint.

    Version v is what step v trains: step v consumes groups that version v - max_policy_age or a newer one made, and
    publishes version v + 1.
    """
    async with mesh.policy_asleep():
        if run.checkpoint:
            await mesh.trainer.load(str(run.checkpoint))
        elif recipe.warm_start:
            await warm_start(mesh, recipe, run)
            async with run.directory.save_reference() as folder:
                await mesh.trainer.save_model(str(folder))
    served = ServedVersion(run.first_step)
    await publish(mesh, recipe, version=run.first_step)
    if mesh.ref_model:
        saved = run.directory.reference  # by a warm start
        await mesh.load_reference(str(saved) if saved.exists() else "")
    await together(keep_rolling(mesh, recipe, served, run), keep_training(mesh, recipe, served, run))


async def keep_rolling(mesh: ActorMesh, recipe: Recipe, served: ServedVersion, run: Run) -> None:
    """Tasks -> episodes -> rewards -> groups -> buffer.

    A step's groups are dispatched once every policy server has version `step - max_policy_age`, a server's version only
    grows, also while a group is played, and the step trains exactly version `step`: that is the whole argument for why
    no token is ever older than `max_policy_age` versions when trained on. None is newer than `step` either: the step
    has all its groups before it trains, and version `step + 1` is published after that. A straggler makes the step wait; its
    worker aborts it after `rollout.timeout_s` and begins it again, with newer weights at most.
    """

    async def roll(step: int, index: int) -> None:
        for attempt in range(recipe.algorithm.replacements + 1):
            group, metrics = await mesh.rollout.run_group(task(recipe, step, index, attempt))
            kept = group.has_signal or not recipe.algorithm.replacements
            metrics.record("groups/replaced", not kept, "sum")
            run.record(step, metrics)
            if kept:
                break
        else:
            raise RLMeshError(
                f"algorithm.replacements: group {index} of step {step} and the {recipe.algorithm.replacements} that replaced it all "
                "had equal rewards: nothing can be learned from these tasks with this reward"
            )
        await mesh.replay_buffer.put(group)

    async def roll_step(step: int) -> None:
        with run.timed("generate", step, "groups of the rollout workers"):
            await together(*[roll(step, index) for index in range(recipe.rollout.groups_per_step)])

    async with asyncio.TaskGroup() as rolling:
        for step in range(run.first_step, recipe.run.steps):
            await served.reach(step - recipe.replay_buffer.max_policy_age)
            rolling.create_task(roll_step(step))


async def keep_training(mesh: ActorMesh, recipe: Recipe, served: ServedVersion, run: Run) -> None:
    """Groups -> batch -> trainer -> weights -> policy.

    The weights travel while the next step begins: its forward and backward passes do not change what is being copied.
    A step ends only after its own version is served, so that versions are published one at a time and in order.
    """
    advantage = resolve_advantage(recipe.algorithm.advantage)

    async def serve(version: int) -> None:
        with run.timed("weight_sync", version, "the policy servers to take the new weights"):
            paused_s = await publish(mesh, recipe, version)
        run.record(version, {"time/policy_paused": paused_s})
        await served.advance(version)

    async with asyncio.TaskGroup() as serving:
        async for step in run.steps(served.reach):
            with run.timed("wait_for_batch", step, "the groups that the replay buffer misses"):
                groups = await mesh.replay_buffer.take(step, version=step, count=recipe.rollout.groups_per_step)
            with running(recipe.algorithm.advantage, "algorithm.advantage"):
                assign_advantages(groups, advantage)
            run.record(step, rollout_metrics(groups, version=step))
            async with mesh.policy_asleep():
                await train(mesh, recipe, served, run, step, collate(groups))
            serving.create_task(serve(step + 1))
            await run.finish(step, groups)  # metrics, evaluation, checkpoint


async def train(mesh: ActorMesh, recipe: Recipe, served: ServedVersion, run: Run, step: int, batch: Batch) -> None:
    """One step's batch: reference logprobs, correction, an optimizer step for each minibatch, and the mismatch."""
    config = recipe.algorithm
    if mesh.ref_model:
        with run.timed("reference", step, "the reference model"):
            batch = batch.with_ref_logprobs(await reference_logprobs(mesh.ref_model, batch))
    if config.correction.kind != "none":
        batch, stats = correct(batch, await mesh.trainer.score(batch), config.correction)
        run.record(step, stats)
    parts = minibatches(batch, recipe, step)

    async def score() -> Served:
        await served.reach(step)
        return await served_logprobs(mesh.policy, parts[0], step, config.mismatch.sequences, recipe.rollout.temperature)

    # Only the first minibatch meets the weights that the policy server has; the others' have moved.
    trained, scored = await together(descend(mesh, recipe, run, step, parts), score())
    compare(run, step, parts[0], scored, trained, config.mismatch)


async def reference_logprobs(ref_model: Service, batch: Batch) -> np.ndarray:
    """Of each token, float32 [N]; every replica scores a part of the samples."""
    parts = np.array_split(np.arange(batch.num_samples), len(ref_model))
    return np.concatenate(await together(*[ref_model.score(batch.select(part)) for part in parts if len(part)]))


async def descend(mesh: ActorMesh, recipe: Recipe, run: Run, step: int, parts: list[Batch]) -> np.ndarray:
    """An optimizer step for each minibatch; returns the logprobs of the first, float32 [N]."""
    lr, logprobs = value_at(recipe.trainer.optimizer.lr, step, recipe.run.steps), []
    for part in parts:
        with run.timed("train", step, "the trainer"):
            output = await mesh.trainer.forward_backward(part, recipe.algorithm.loss, coefficients(recipe, step))
            run.record(step, output.metrics)
            run.record(step, await mesh.trainer.optim_step(lr))
        logprobs.append(output.logprobs)
    return logprobs[0]


def task(recipe: Recipe, step: int, index: int, attempt: int = 0) -> Task:
    """What the group at a place of a step plays; each attempt draws from streams of its own."""
    seed, place = recipe.run.seed, (step, index, attempt) if attempt else (step, index)
    return Task(
        step,
        index,
        recipe.rollout.group_size,
        seed=fan_out(seed, "group", *place, bits=62),
        shared_seed=fan_out(seed, "task", *place),
    )


def minibatches(batch: Batch, recipe: Recipe, step: int) -> list[Batch]:
    """The batch in `algorithm.minibatches` parts of shuffled samples, one optimizer step each."""
    if recipe.algorithm.minibatches == 1:
        return [batch]
    shuffled = np.random.default_rng(fan_out(recipe.run.seed, "minibatches", step)).permutation(batch.num_samples)
    parts = np.array_split(shuffled, recipe.algorithm.minibatches)
    return [batch.select(part) for part in parts if len(part)]  # episodes without a reward may leave too few


def coefficients(recipe: Recipe, step: int) -> dict[str, float]:
    """The loss's coefficients at this step."""
    schedules = {name: getattr(recipe.algorithm, name) for name in ("clip_low", "clip_high", "kl_coef")}
    return {name: value_at(schedule, step, recipe.run.steps) for name, schedule in schedules.items()}


async def publish(mesh: ActorMesh, recipe: Recipe, version: int) -> float:
    """The trainer's weights become `version`, and every policy server serves it; returns how long one stood still, in seconds."""
    every = recipe.weights.verify_every
    await mesh.trainer.publish(version, probe=bool(every) and version % every == 0)
    return max(fetched["paused_s"] for fetched in await mesh.policy.each("fetch", version))
