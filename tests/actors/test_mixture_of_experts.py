"""vLLM on CPU serves a mixture of experts as it was loaded, and cannot be given other weights."""

import shutil

import numpy as np
import pytest
import reference
import torch
from spawning import MAX_LENGTH, spawn_proc
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from rlmesh.actors.config import PolicyServerConfig
from rlmesh.actors.launch import policy_environment
from rlmesh.actors.policy_server import PolicyServer
from rlmesh.actors.service import Replica, Service
from rlmesh.errors import ActorFailure
from rlmesh.weights.config import WeightsConfig
from rlmesh.weights.store import WeightStore

pytestmark = pytest.mark.slow

PROMPT, COMPLETION = [6 + i % 12 for i in range(20)], [7, 9, 11, 13, 15, 8, 6]


@pytest.fixture(scope="module")
def experts(untied, tmp_path_factory):
    """A Qwen3 with 8 experts, 2 of them active, and the tiny model's tokenizer."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        initializer_range=0.2,  # large enough for the experts to matter
    )
    folder = tmp_path_factory.mktemp("experts")
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(untied / name, folder / name)
    return folder


@pytest.fixture
async def serving(experts):
    config = PolicyServerConfig()
    procs = spawn_proc("experts", policy_environment(config))
    yield Service(
        "PolicyServer",
        [Replica(procs.spawn("experts", PolicyServer, config, str(experts), MAX_LENGTH, 1.0))],
        limit_s=120,
    )
    await procs.stop()


async def test_a_mixture_of_experts_scores_as_transformers_does(experts, serving):
    await serving.setup()
    [scored] = await serving.score([PROMPT], [COMPLETION])
    expected = reference.logprobs(reference.load(experts), PROMPT, COMPLETION)
    assert expected.std() > 0.1  # not the even distribution of a model that says nothing
    assert np.abs(scored - expected.numpy()).max() < 5e-6
    await serving.close()


async def test_a_mixture_of_experts_is_not_updated_on_a_cpu(serving):
    store = await WeightStore.start(WeightsConfig())
    with pytest.raises(ActorFailure, match=r"vLLM on CPU corrupts a mixture-of-experts model .* use a GPU"):
        await serving.setup(store)
    await serving.close()
    await store.stop()
