import numpy as np
import pytest

from rlmesh.metrics import Metrics
from rlmesh.rollout.batch import Batch
from rlmesh.rollout.mismatch import Mismatch, ratio_metrics


def batch(logprobs=(0.0, -1.0, 0.0, -2.0, -3.0)):
    tokens, mask = np.array([5, 6, 7, 8, 9]), np.array([False, True, False, True, True])
    return Batch(tokens, np.array([0, 2, 5]), mask, np.array(logprobs, np.float32))


def test_distance_and_kl_against_a_calculation_by_hand():
    metrics = Mismatch(np.array([1, 4]), np.float32([-1.0, -3.0]), np.float32([-1.5, -2.0])).metrics()
    kl = [np.exp(-0.5) + 0.5 - 1, np.exp(1.0) - 1.0 - 1]
    expected = {
        "mismatch_logprob/mean_abs": 0.75,
        "mismatch_logprob/max_abs": 1.0,
        "mismatch_kl/mean": np.mean(kl),
        "mismatch_kl/max": kl[1],
    }
    assert metrics == pytest.approx(expected)


def test_a_distance_of_the_size_of_rounding_is_not_lost_in_the_kl():
    metrics = Mismatch(np.array([1]), np.float32([-1.0]), np.float32([-1.0 + 1e-6])).metrics()
    assert 0 <= metrics["mismatch_kl/max"] < 1e-11


def test_maxima_over_a_step_are_maxima():
    metrics = Metrics({"mismatch_logprob/max_abs": 0.5, "ratio/min": 0.9, "ratio/max": 1.1})
    metrics.merge(Metrics({"mismatch_logprob/max_abs": 0.1, "ratio/min": 0.2, "ratio/max": 3.0}))
    assert metrics.reduce() == {"mismatch_logprob/max_abs": 0.5, "ratio/min": 0.2, "ratio/max": 3.0}


def test_the_worst_tokens_come_with_what_stands_before_them_in_their_sample():
    mismatch = Mismatch(np.array([1, 3, 4]), np.float32([-1, -2, -3]), np.float32([-1, -4, np.nan]))
    worst = mismatch.worst(batch(), limit=0.5)
    assert [row["token"] for row in worst] == [9, 8]  # what is no number is further off than any number
    assert worst[0]["before"] == [7, 8]
    assert (worst[1]["before"], worst[1]["trainer_logprob"], worst[1]["policy_server_logprob"]) == ([7], -4, -2)


def test_tails_of_the_ratio_are_those_before_clipping():
    trained = np.float32([0, -1 + np.log(3), 0, -2 + np.log(0.25), -3])
    expected = {"ratio/max": 3, "ratio/min": 0.25, "ratio/above_2": 1 / 3, "ratio/below_half": 1 / 3}
    assert ratio_metrics(batch(), trained) == pytest.approx(expected, rel=1e-6)
