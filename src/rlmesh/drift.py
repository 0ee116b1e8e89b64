"""`rlmesh drift`: how far the policy server's logprobs are from the trainer's, before a long run depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.table import Table

from rlmesh.mesh.actor_mesh import ActorMesh
from rlmesh.mesh.scratch import Scratch
from rlmesh.metrics.console import Console
from rlmesh.models.folder import read_config
from rlmesh.recipe import Recipe
from rlmesh.rollout.batch import Batch
from rlmesh.rollout.mismatch import Mismatch
from rlmesh.rollout.types import GenerateRequest
from rlmesh.stopping import interruptible, until_stopped

_SAMPLES = 8  # of one prompt
_ALONE = 16  # requests that are made one at a time
_UPDATE_LR = 1e-3  # of the one step that makes other weights


@dataclass(frozen=True)
class Comparison:
    """One way in which the policy server came by logprobs, against the trainer's of the same weights and tokens."""

    name: str
    mismatch: Mismatch


def drift(recipe: Recipe, num_tokens: int, console: Console) -> list[Comparison]:
    """Start the recipe's policy server and trainer and compare them on about `num_tokens` sampled tokens, several times.

    The prompts are random tokens, half of a sequence long. Raises: RLMeshError when an actor fails.
    """
    with interruptible(), Scratch(), TemporaryDirectory(prefix="rlmesh-drift-") as scratch:
        here = replace(recipe, run=replace(recipe.run, dir=scratch))
        mesh = ActorMesh(here, console.waiting, actors=["policy", "trainer"])
        return asyncio.run(until_stopped(_drift(mesh, num_tokens)))


async def _drift(mesh: ActorMesh, num_tokens: int) -> list[Comparison]:
    async with mesh:
        return await mesh.guard(_collect(mesh, num_tokens))


async def _collect(mesh: ActorMesh, num_tokens: int) -> list[Comparison]:
    return [comparison async for comparison in compare(mesh, num_tokens)]


async def compare(mesh: ActorMesh, num_tokens: int) -> AsyncIterator[Comparison]:
    """Sampled and scored, together and alone, before and after a weight update."""
    requests = make_requests(mesh, num_tokens)
    await mesh.trainer.publish(0)
    await mesh.policy.each("fetch", 0)
    batch = await sample(mesh, requests)
    yield await against(mesh, "sampled together", batch, batch.logprobs)
    if mesh.recipe.policy.engine.prefix_caching:
        again = await sample(mesh, requests)
        yield await against(mesh, "sampled from the prefix cache", again, again.logprobs)
    yield await against(mesh, "scored together", batch, await scored(mesh, batch))
    alone = [await sample(mesh, [replace(request, n=1)]) for request in requests[:_ALONE]]
    joined = join(alone)
    yield await against(mesh, "sampled one at a time", joined, joined.logprobs)

    await mesh.trainer.forward_backward(batch, "cross_entropy", {})
    await mesh.trainer.optim_step(_UPDATE_LR)
    yield await against(mesh, "before the update arrived", batch, batch.logprobs)
    await mesh.trainer.publish(1)
    await mesh.policy.each("fetch", 1)
    yield await against(mesh, "scored after the update", batch, await scored(mesh, batch))
    updated = await sample(mesh, requests)
    yield await against(mesh, "sampled after the update", updated, updated.logprobs)


def make_requests(mesh: ActorMesh, num_tokens: int) -> list[GenerateRequest]:
    """Prompts of random tokens, all of one half of the model's length at most, that make about `num_tokens` tokens."""
    vocabulary = read_config(Path(mesh.model_path) / "config.json", "model.source")["vocab_size"]
    rng, half = np.random.default_rng(mesh.recipe.run.seed), mesh.recipe.model.max_length // 2
    count = -(-num_tokens // (_SAMPLES * half))
    prompts = [rng.integers(vocabulary, size=rng.integers(1, half + 1)).tolist() for _ in range(count)]
    return [GenerateRequest(prompt, _SAMPLES, seed, half) for seed, prompt in enumerate(prompts)]


async def sample(mesh: ActorMesh, requests: list[GenerateRequest]) -> Batch:
    """The policy server's samples as a batch, with their logprobs."""
    groups = await mesh.policy.generate(requests)
    tokens, masks, logprobs = [], [], []
    for request, group in zip(requests, groups, strict=True):
        given = len(request.prompt)
        for completion in group:
            tokens.append(request.prompt + completion.tokens)
            masks.append([False] * given + [True] * len(completion.tokens))
            logprobs.append([0.0] * given + completion.logprobs)
    return Batch.from_samples(tokens, masks, logprobs)


def join(batches: list[Batch]) -> Batch:
    """One batch of several."""
    cut = [
        (batch.tokens[a:b], batch.loss_mask[a:b], batch.logprobs[a:b])
        for batch in batches
        for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
    ]
    return Batch.from_samples(*(list(part) for part in zip(*cut, strict=True)))


async def scored(mesh: ActorMesh, batch: Batch) -> np.ndarray:
    """The policy server's logprobs of the batch's loss tokens, float32 [N], 0 elsewhere."""
    bounds = list(zip(batch.offsets[:-1], batch.offsets[1:], strict=True))
    given = [int(np.argmax(batch.loss_mask[a:b])) for a, b in bounds]
    prompts = [batch.tokens[a : a + n].tolist() for (a, _), n in zip(bounds, given, strict=True)]
    completions = [batch.tokens[a + n : b].tolist() for (a, b), n in zip(bounds, given, strict=True)]
    scores = np.zeros(len(batch.tokens), np.float32)
    scores[batch.loss_mask] = np.concatenate(await mesh.policy.score(prompts, completions))
    return scores


async def against(mesh: ActorMesh, name: str, batch: Batch, logprobs: np.ndarray) -> Comparison:
    """These logprobs of the batch's loss tokens against those of the trainer's weights as they are."""
    index = np.flatnonzero(batch.loss_mask)
    return Comparison(name, Mismatch(index, logprobs[index], (await mesh.trainer.score(batch))[index]))


def table(recipe: Recipe, comparisons: list[Comparison]) -> Table:
    """What was found, for the console."""
    engine, trainer, temperature = recipe.policy.engine, recipe.trainer, recipe.rollout.temperature
    title = (
        f"policy server ({engine.dtype}) and trainer ({trainer.dtype}, {trainer.parallelism.world_size} ranks) of "
        f"{recipe.model.source} at temperature {temperature:g}"
    )
    columns = {
        "mismatch_logprob/mean_abs": "mean |difference|",
        "mismatch_logprob/max_abs": "largest",
        "mismatch_kl/mean": "mean KL",
        "mismatch_kl/max": "largest",
    }
    shown = Table("logprobs of the policy server", "tokens", *columns.values(), title=title, caption="nats a token")
    for comparison in comparisons:
        metrics = comparison.mismatch.metrics()
        numbers = (f"{metrics[name]:.1e}" for name in columns)
        shown.add_row(comparison.name, f"{len(comparison.mismatch.index_K):,}", *numbers)
    return shown
