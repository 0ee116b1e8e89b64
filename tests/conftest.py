"""What the tests share: tiny models, and one running policy server for the whole session (it takes 10 s to start)."""

import json
from pathlib import Path

import pytest
from spawning import MAX_LENGTH, serve_policy, spawn_proc

from rlmesh.actors.config import EngineConfig
from rlmesh.models.config import TinyModelConfig
from rlmesh.models.tiny import build_tiny_model
from rlmesh.weights.config import WeightsConfig

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


@pytest.fixture(scope="session")
async def policy(untied):
    """Untied, temperature 1, weights through shared memory, requests kept over an update."""
    async for served in serve_policy(untied, 1.0, {2}, WeightsConfig(), EngineConfig(), sleep=False):
        yield served


@pytest.fixture(scope="session")
async def cool_policy(tied):
    """Everything else: tied, temperature 0.7, weights through TorchStore, requests finished before an update, prefix cache, sleep."""
    weights = WeightsConfig(transport="torchstore", pause="wait")
    async for served in serve_policy(tied, 0.7, {2, 5}, weights, EngineConfig(prefix_caching=True), sleep=True):
        yield served
