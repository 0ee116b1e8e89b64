"""A Hugging Face folder in torchtitan: every weight arrives, and every weight comes back."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlmesh.actors.process_group import join_process_group
from rlmesh.errors import RecipeError
from rlmesh.models.config import TrainerConfig
from rlmesh.models.packing import pack
from rlmesh.models.titan import TitanModel
from rlmesh.rollout.batch import Batch

SHAPE = dict(
    vocab_size=120,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    max_position_embeddings=64,
    num_attention_heads=4,
)
FAMILIES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
}


def sharp(model, seed):
    """Weights so large that attention is far from uniform: a lost query or key weight shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.ndim == 2 else 0.5))
    return model


@pytest.fixture(params=[(f, kv, tied) for f in FAMILIES for kv in (1, 2, 4) for tied in (False, True)], ids=str)
def folder(request, tmp_path):
    family, kv_heads, tied = request.param
    config, model, options = FAMILIES[family]
    sharp(model(config(**SHAPE, **options, num_key_value_heads=kv_heads, tie_word_embeddings=tied)), 0).save_pretrained(
        tmp_path
    )
    return tmp_path


def titan_model(folder):
    join_process_group()
    return TitanModel(folder, TrainerConfig(), world_size=1)


def logits(titan, sequences):
    """[N, V]: what the model says after each token of each sequence, the sequences packed."""
    batch = Batch.from_samples(sequences, [[False] * len(s) for s in sequences])
    packed = pack(batch, 32)
    with torch.no_grad():
        hidden = titan.hidden(packed.tokens_RL, packed.positions_RL, packed.mask(slice(0, packed.num_rows)))
        return titan.logits(hidden.flatten(0, 1)[torch.from_numpy(packed.place_N)])


def hf_logits(model, sequences):
    with torch.no_grad():
        return torch.cat([model(torch.tensor([s])).logits[0] for s in sequences])


SEQUENCES = [list(range(5, 25)), [7, 3, 99, 7, 3], list(range(60, 90, 2))]


def test_logits_are_transformers(folder):
    expected = hf_logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), SEQUENCES)
    torch.testing.assert_close(logits(titan_model(folder), SEQUENCES), expected, atol=2e-4, rtol=1e-4)


def test_weights_go_in_and_come_out_unchanged(folder):
    titan = titan_model(folder)
    other = sharp(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), 1)
    weights = {**other.state_dict(), "lm_head.weight": other.lm_head.weight.detach()}
    titan.load_hf(weights)
    back = titan.hf_state_dict()
    assert back.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(back[name], tensor), name
    torch.testing.assert_close(logits(titan, SEQUENCES), hf_logits(other, SEQUENCES), atol=2e-4, rtol=1e-4)


def test_weights_of_another_model_are_refused(folder):
    titan = titan_model(folder)
    weights = dict(titan.hf_state_dict())
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(RecipeError, match=r"missing \['model\.layers\.1\.mlp\.up_proj\.weight'\]"):
        titan.load_hf(weights)
    weights = dict(titan.hf_state_dict())
    weights["model.norm.weight"] = weights["model.norm.weight"][:-1]
    with pytest.raises(
        RecipeError, match=r"^model.source: weights do not fit .* norm.weight is of shape \[\d+\] and should be"
    ):
        titan.load_hf(weights)
