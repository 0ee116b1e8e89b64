import itertools

import numpy as np
import pytest

from rlmesh.algorithms.config import CorrectionConfig
from rlmesh.algorithms.correction import correct, importance_weights
from rlmesh.rollout.batch import Batch

SAMPLED, TRAINED = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])  # two distributions over three tokens


def sequences(length=3):
    """Every sequence of `length` sampled tokens after one given token, as a batch."""
    rows = list(itertools.product(range(3), repeat=length))
    tokens = [np.array([0, *row]) for row in rows]
    masks = [np.array([False] + [True] * length)] * len(rows)
    batch = Batch.from_samples(
        tokens, masks, [np.where(m, np.log(SAMPLED[t]), 0) for t, m in zip(tokens, masks, strict=True)]
    )
    batch.advantages = np.where(batch.loss_mask, 1.0, 0.0).astype(np.float32)
    trained = np.where(batch.loss_mask, np.log(TRAINED[batch.tokens]), 0.0).astype(np.float32)
    chance = np.array([np.prod(SAMPLED[list(row)]) for row in rows])
    return batch, trained, chance


def config(kind, level, limit):
    return CorrectionConfig(kind=kind, level=level, limit=limit)


@pytest.mark.parametrize("kind", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_with_a_bound_that_never_holds_the_expectation_is_that_of_the_trainers_distribution(kind, level):
    batch, trained, chance = sequences()
    weights = importance_weights(batch, trained, config(kind, level, limit=1e6)).reshape(27, 4)[:, 1:]
    tokens = batch.tokens.reshape(27, 4)[:, 1:]
    for token in range(3):  # how often the trainer's policy would make this token at the last place
        frequency = (chance * weights[:, -1] * (tokens[:, -1] == token)).sum()
        assert frequency == pytest.approx(TRAINED[token], rel=1e-5)


def test_weights_of_a_sequence_are_the_product_of_its_tokens_ratios():
    batch, trained, _ = sequences()
    weights = importance_weights(batch, trained, config("truncate", "sequence", 1e6)).reshape(27, 4)[:, 1:]
    tokens = batch.tokens.reshape(27, 4)[:, 1:]
    expected = (TRAINED / SAMPLED)[tokens].prod(axis=1)
    np.testing.assert_allclose(weights, np.repeat(expected[:, None], 3, axis=1), rtol=1e-5)


def test_truncated_and_masked_weights():
    batch, trained, _ = sequences(length=1)  # ratios 0.4, 1, 2.5
    assert importance_weights(batch, trained, config("truncate", "token", 2.0))[1::2] == pytest.approx([0.4, 1, 2])
    assert importance_weights(batch, trained, config("mask", "token", 2.0))[1::2] == pytest.approx([0, 1, 0])
    assert importance_weights(batch, trained, config("mask", "token", 2.6))[1::2] == pytest.approx([0.4, 1, 2.5])


def test_what_was_not_sampled_has_no_weight_and_changes_none():
    batch, trained, _ = sequences()
    spoiled = trained.copy()
    spoiled[~batch.loss_mask] = 9.0
    for level in ("token", "sequence"):
        weights = importance_weights(batch, spoiled, config("truncate", level, 2.0))
        np.testing.assert_array_equal(weights, importance_weights(batch, trained, config("truncate", level, 2.0)))
        assert not weights[~batch.loss_mask].any()


def test_correcting_weighs_the_advantages_and_moves_the_ratios_denominator():
    batch, trained, _ = sequences(length=1)
    corrected, metrics = correct(batch, trained, config("truncate", "token", 2.0))
    assert corrected.advantages[1::2] == pytest.approx([0.4, 1, 2])
    np.testing.assert_array_equal(corrected.old_logprobs, trained)
    np.testing.assert_array_equal(corrected.logprobs, batch.logprobs)
    assert metrics == pytest.approx(
        {
            "correction/weight": 3.4 / 3,
            "correction/bounded": 1 / 3,
            "correction/log_weight_max": np.log(2.5),
            "correction/log_weight_min": np.log(0.4),
        }
    )
    assert correct(batch, trained, config("mask", "token", 2.0))[1]["correction/bounded"] == pytest.approx(2 / 3)


def test_the_weights_of_sequences_are_told_before_they_are_bounded():
    batch, trained, _ = sequences(length=3)
    metrics = correct(batch, trained, config("mask", "sequence", 2.0))[1]
    assert metrics["correction/log_weight_max"] == pytest.approx(3 * np.log(2.5), rel=1e-5)
    assert metrics["correction/log_weight_min"] == pytest.approx(3 * np.log(0.4), rel=1e-5)


def test_a_ratio_too_large_for_a_number_is_bounded():
    batch, trained, _ = sequences(length=1)
    batch.logprobs[1] = -1e4
    weights = importance_weights(batch, trained, config("truncate", "token", 2.0))
    assert weights[1] == 2.0
