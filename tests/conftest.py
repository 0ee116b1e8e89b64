"""What the tests share: tiny models, and one running policy server for the whole session (it takes 10 s to start)."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from spawning import engine_processes, spawn_proc

from rlmesh.actors.config import EngineConfig, PolicyServerConfig
from rlmesh.actors.launch import policy_environment
from rlmesh.actors.policy_server import PolicyServer
from rlmesh.mesh.service import Service
from rlmesh.models.config import TinyModelConfig
from rlmesh.models.tiny import build_tiny_model
from rlmesh.weights.config import WeightsConfig
from rlmesh.weights.store import WeightStore

WORDS = [
    "You",
    "have",
    "14",
    "15",
    "16",
    "(hard).",
    "(soft).",
    "Dealer",
    "shows",
    "5.",
    "10.",
    "Hit",
    "or",
    "stand?",
    "hit",
    "stand",
]
MAX_LENGTH = 64


def tiny_model(folder: Path, **options) -> Path:
    build_tiny_model(TinyModelConfig(words=WORDS, **options), MAX_LENGTH, folder, seed=0)
    return folder


@pytest.fixture(scope="session")
def untied(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("untied"))


@pytest.fixture(scope="session")
def tied(tmp_path_factory) -> Path:
    """A tied model with two tokens that end a sequence, as Llama 3 and Qwen have."""
    folder = tiny_model(tmp_path_factory.mktemp("tied"), tie_word_embeddings=True)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [2, 5]}))
    return folder


@pytest.fixture(scope="session")
async def proc():
    """One proc for actors that need no launch environment of their own."""
    procs = spawn_proc("light")
    await procs.initialized
    yield procs
    await procs.stop()


@dataclass
class ServedPolicy:
    service: Service
    store: WeightStore
    model_path: Path
    temperature: float
    ends: set[int]  # tokens that end a sequence
    versions: Iterator[int]


async def _serve(
    model_path: Path, temperature: float, ends: set[int], weights: WeightsConfig, engine: EngineConfig, sleep: bool
):
    config = PolicyServerConfig(engine=engine, sleep=sleep)
    procs = spawn_proc("policy", policy_environment(config))
    actor = procs.spawn("policy", PolicyServer, config, str(model_path), MAX_LENGTH, temperature, weights.pause)
    service, store = Service("PolicyServer", [actor], limit_s=120), await WeightStore.start(weights)
    await service.setup(store)
    yield ServedPolicy(service, store, model_path, temperature, ends, itertools.count())
    before = len(engine_processes())
    await service.close()
    assert len(engine_processes()) == before - 2  # the engine core and the worker are gone
    await store.stop()
    await procs.stop()


@pytest.fixture(scope="session")
async def policy(untied):
    """Untied, temperature 1, weights through shared memory, requests kept over an update."""
    async for served in _serve(untied, 1.0, {2}, WeightsConfig(), EngineConfig(), sleep=False):
        yield served


@pytest.fixture(scope="session")
async def cool_policy(tied):
    """Everything else: tied, temperature 0.7, weights through TorchStore, requests finished before an update, prefix cache, sleep."""
    weights = WeightsConfig(transport="torchstore", pause="wait")
    async for served in _serve(tied, 0.7, {2, 5}, weights, EngineConfig(prefix_caching=True), sleep=True):
        yield served
