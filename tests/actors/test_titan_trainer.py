"""TitanTrainer and ReferenceModel in procs of their own, on one rank and on several."""

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from monarch.actor import default_bootstrap_cmd, this_host
from monarch.spmd import setup_torch_elastic_env_async
from safetensors.torch import load_file

from rlmesh.actors.config import ReferenceModelConfig
from rlmesh.actors.reference_model import ReferenceModel
from rlmesh.actors.service import Replica, Service
from rlmesh.actors.titan_trainer import TitanTrainer
from rlmesh.algorithms.grpo import reference_logprobs
from rlmesh.errors import ActorFailure
from rlmesh.models.config import ParallelismConfig, TinyModelConfig, TrainerConfig
from rlmesh.models.tiny import build_tiny_model
from rlmesh.rollout.batch import Batch
from rlmesh.weights.config import WeightsConfig
from rlmesh.weights.store import WeightStore

GRPO = ("grpo", {"clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.2})
TEMPERATURE = 0.7
LIMIT_S = 120


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[False, slow(True)], ids=["untied", "tied"])
def model(request, tmp_path_factory):
    """Two KV heads, so that two ranks can share a layer."""
    folder = tmp_path_factory.mktemp("model")
    config = TinyModelConfig(words=["hit", "stand"], num_kv_heads=2, tie_word_embeddings=request.param)
    build_tiny_model(config, 64, folder, seed=0)
    return folder


@pytest.fixture(scope="module")
def batch():
    """Samples of unlike lengths and few loss tokens in the long ones, so that ranks get unlike numbers of them."""
    rng = np.random.default_rng(0)
    tokens = [rng.integers(4, 100, n) for n in rng.integers(2, 30, 25)]
    masks = [np.r_[False, rng.random(len(t) - 1) < 4 / len(t)] for t in tokens]
    logprobs = [np.where(m, -4.6 + rng.normal(0, 0.3, len(m)), 0) for m in masks]
    advantages = [np.where(m, rng.normal(), 0) for m in masks]
    batch = Batch.from_samples(tokens, masks, logprobs, advantages)
    return batch.with_ref_logprobs(np.where(batch.loss_mask, batch.logprobs + 0.2, 0))


@pytest.fixture(scope="module")
async def store(model):
    store = await WeightStore.start(WeightsConfig())
    yield store
    await store.stop()


@asynccontextmanager
async def spawned(cls, *args, ranks=1, store=None):
    """The actor, set up, in procs of its own; several ranks meet as the mesh makes them meet."""
    env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    procs = this_host().spawn_procs({"procs": ranks}, bootstrap_command=default_bootstrap_cmd().with_env(env))
    if ranks > 1:
        await setup_torch_elastic_env_async(procs)
    service = Service(cls.__name__, [Replica(procs.spawn("actor", cls, *args))], limit_s=LIMIT_S)
    try:
        await service.setup(store)
        yield service
        await service.close()
    finally:
        await procs.stop()


def trainer(model, store=None, **parallelism):
    degrees = ParallelismConfig(**parallelism)
    config = TrainerConfig(parallelism=degrees, pack_length=32, rows_per_micro_batch=2)
    return spawned(TitanTrainer, config, str(model), 0, TEMPERATURE, ranks=degrees.world_size, store=store)


async def train(service, batch, steps=2):
    stats = []
    for _ in range(steps):
        output = await service.forward_backward(batch, *GRPO)
        stats.append(output.metrics | await service.optim_step(lr=1e-3))
    return stats


def weights_in(folder):
    weights = load_file(folder / "model.safetensors")
    return np.concatenate([weights[name].numpy().ravel() for name in sorted(weights)])


@pytest.fixture(scope="module")
async def alone(model, store):
    """A trainer of one rank."""
    async with trainer(model, store) as service:
        yield service


@dataclass
class Trained:
    stats: list[dict[str, float]]
    scores: np.ndarray
    folder: Path
    next_stats: list[dict[str, float]]


@pytest.fixture(scope="module")
async def expected(alone, batch, tmp_path_factory):
    """What two steps of the one rank give, and the step after them."""
    folder = tmp_path_factory.mktemp("alone")
    stats, scores = await train(alone, batch), await alone.score(batch)
    await alone.save(str(folder))
    return Trained(stats, scores, folder, await train(alone, batch, steps=1))


async def test_what_is_published_is_never_from_both_sides_of_a_step(model, batch):
    store = await WeightStore.start(WeightsConfig())
    async with trainer(model, store) as service:
        for version in range(0, 30, 3):
            await service.publish(version)
            before = await store.fetch(version)
            await service.forward_backward(batch, *GRPO)
            await asyncio.gather(service.publish(version + 1), service.optim_step(lr=0.1))
            between = await store.fetch(version + 1)
            await service.publish(version + 2)
            after = await store.fetch(version + 2)
            found = {
                (torch.equal(between[name], before[name]), torch.equal(between[name], after[name])) for name in before
            }
            assert found in ({(True, False)}, {(False, True)})
    await store.stop()


@pytest.mark.parametrize("split", ["data_parallel_shard", slow("data_parallel_replicate"), slow("tensor_parallel")])
async def test_several_ranks_are_one_trainer(split, model, batch, store, alone, expected, tmp_path):
    """Metrics, scores, weights and the saved optimizer do not depend on how ranks share the work."""
    async with trainer(model, store, **{split: 2}) as several:
        for got, wanted in zip(await train(several, batch), expected.stats, strict=True):
            assert got == pytest.approx(wanted, rel=1e-3, abs=1e-5)
        np.testing.assert_allclose(await several.score(batch), expected.scores, atol=1e-4)
        await several.save(str(tmp_path))
        version = {"data_parallel_shard": 11, "data_parallel_replicate": 12, "tensor_parallel": 13}[split]
        await several.publish(version)
        published, saved = await store.fetch(version), load_file(tmp_path / "model" / "model.safetensors")
        assert all(np.array_equal(published[name].numpy(), saved[name].numpy()) for name in saved)
    # AdamW turns a gradient near 0 into a whole step: what counts is the difference beside the way that was gone.
    start, wanted, got = (weights_in(f) for f in (model, expected.folder / "model", tmp_path / "model"))
    assert np.linalg.norm(got - wanted) < 1e-3 * np.linalg.norm(wanted - start)
    await alone.load(str(tmp_path))
    for got, wanted in zip(await train(alone, batch, steps=1), expected.next_stats, strict=True):
        assert got == pytest.approx(wanted, rel=1e-3, abs=1e-5)


async def test_a_published_version_is_what_the_trainer_was(model, batch, store, alone):
    """The reference model takes a version and stays at it while the trainer goes on."""
    await train(alone, batch)
    config = ReferenceModelConfig()
    async with spawned(ReferenceModel, config, str(model), 32, TEMPERATURE, store=store) as reference:
        await alone.publish(0)
        published = await alone.score(batch)
        assert np.abs(published - await reference.score(batch)).max() > 1e-2
        await reference.load(0)
        await train(alone, batch)
        np.testing.assert_allclose(await reference.score(batch), published, atol=1e-6)
        with pytest.raises(ActorFailure, match=r"ReferenceModel\[0\]\.load failed: .*version 1 is not"):
            await reference.load(1)
        [replica] = reference._replicas
        three = Service("ReferenceModel", [replace(replica) for _ in range(3)], LIMIT_S)
        shared = await reference_logprobs(three, batch)
        np.testing.assert_allclose(shared, await reference.score(batch), atol=1e-6)


async def test_metrics_are_those_a_run_logs(batch, alone):
    [stats] = await train(alone, batch, steps=1)
    names = "loss kl entropy clip_ratio/low clip_ratio/high"
    assert stats.keys() == {*names.split(), "optim/lr", "optim/grad_norm"}


async def test_one_step_of_cross_entropy_lowers_the_loss(batch, alone):
    await alone.reset_optimizer()
    before = await alone.forward_backward(batch, "cross_entropy", {})
    await alone.optim_step(lr=1e-3)
    after = await alone.forward_backward(batch, "cross_entropy", {})
    assert after.metrics["loss"] < before.metrics["loss"]


async def test_an_unknown_loss_is_named_and_the_trainer_lives_on(batch, alone):
    with pytest.raises(ActorFailure, match=r"TitanTrainer\[0\]\.forward_backward failed: algorithm\.loss: "):
        await alone.forward_backward(batch, "no_such.loss", {})
    assert np.isfinite(await alone.score(batch)).all()
