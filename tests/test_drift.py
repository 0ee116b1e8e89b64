"""`rlmesh drift`, and with it the promise that policy server and trainer compute the same in float32."""

import pytest

from rlmesh import load_recipe
from rlmesh.drift import drift
from rlmesh.metrics.console import Console

WITHOUT_THE_UPDATE = "before the update arrived"


def largest(overrides, num_tokens, config="configs/blackjack.yaml"):
    """The largest distance of each comparison, by its name, and the tokens that it was made on."""
    comparisons = drift(load_recipe(config, overrides), num_tokens, Console())
    found = {c.name: c.mismatch.metrics()["mismatch_logprob/max_abs"] for c in comparisons}
    return found, {c.name: len(c.mismatch.index_K) for c in comparisons}


@pytest.mark.parametrize(
    "overrides",
    [
        ["rollout.temperature=0.7", "model.max_length=128", "trainer.pack_length=128"],
        # Long prompts, packed rows and micro-batches that cut them, a prefix cache, a tied head.
        [
            "rollout.temperature=1.3",
            "model.tiny.tie_word_embeddings=true",
            "model.max_length=256",
            "trainer.pack_length=1024",
            "trainer.rows_per_micro_batch=3",
            "policy.engine.prefix_caching=true",
            "policy.engine.block_size=32",
        ],
    ],
    ids=["cool", "hot, tied and cached"],
)
def test_float32_agrees_to_rounding_over_ten_thousand_tokens(overrides):
    found, tokens = largest(overrides, num_tokens=25_000)
    assert found.pop(WITHOUT_THE_UPDATE) > 1e-3  # what it would look like if the weights had not arrived
    assert ("sampled from the prefix cache" in found) == ("policy.engine.prefix_caching=true" in overrides)
    assert max(found.values()) <= 5e-6, found
    assert tokens["sampled together"] >= 10_000


@pytest.mark.slow
def test_bfloat16_is_seen_to_be_far_from_float32():
    found, _ = largest(["policy.engine.dtype=bfloat16"], num_tokens=2_000)
    assert 1e-4 < found["sampled together"] < 0.5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_pretrained_model_in_float32():
    found, _ = largest(["policy.engine.prefix_caching=true"], num_tokens=1_500, config="configs/blackjack_smollm2.yaml")
    found.pop(WITHOUT_THE_UPDATE)
    assert max(found.values()) <= 1e-4, found
