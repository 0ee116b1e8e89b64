import math
import pickle
import random

import pytest

from rlmesh.metrics import Metrics


def test_each_reduction():
    metrics = Metrics()
    for value in (1, 2, 6):
        for reduction in ("mean", "sum", "max", "min"):
            metrics.record(reduction, value, reduction)
    assert metrics.reduce() == {"mean": 3.0, "sum": 9.0, "max": 6.0, "min": 1.0}


def test_the_mean_is_weighted():
    metrics = Metrics({"loss": 1.0})
    metrics.record("loss", 0.0, weight=3)
    assert metrics.reduce() == {"loss": 0.25}


def test_merging_is_the_same_as_recording_in_one_place():
    generator = random.Random(0)
    records = [
        (f"{reduction}/{i % 3}", generator.uniform(-1, 1), reduction, generator.uniform(0.1, 5))
        for i in range(60)
        for reduction in ("mean", "sum", "max", "min")
    ]
    together, parts = Metrics(), [Metrics() for _ in range(4)]
    for record in records:
        together.record(*record)
        parts[generator.randrange(4)].record(*record)
    merged = Metrics()
    for part in parts:
        merged.merge(pickle.loads(pickle.dumps(part)))  # as an actor returns it
    assert merged.reduce() == pytest.approx(together.reduce())


def test_merging_leaves_the_other_alone():
    one, other = Metrics({"a": 1.0}), Metrics({"a": 3.0, "b": 5.0})
    one.merge(other)
    assert one.reduce() == {"a": 2.0, "b": 5.0} and other.reduce() == {"a": 3.0, "b": 5.0}


@pytest.mark.parametrize("reduction", ["mean", "sum", "max", "min"])
@pytest.mark.parametrize("values", [(math.nan, 1.0), (1.0, math.nan), (1.0, math.nan, 2.0)])
def test_not_a_number_is_never_lost(reduction, values):
    metrics = Metrics()
    for value in values:
        metrics.record("x", value, reduction)
    assert math.isnan(metrics.reduce()["x"])


def test_a_mean_without_weight_is_not_a_number():
    metrics = Metrics()
    metrics.record("x", 1.0, weight=0)
    assert math.isnan(metrics.reduce()["x"])


def test_two_reductions_for_one_name_are_refused():
    metrics = Metrics({"x": 1.0})
    with pytest.raises(ValueError, match="x was recorded as mean and as sum"):
        metrics.record("x", 1.0, "sum")
    with pytest.raises(ValueError, match="'median' is not one of mean, sum, max, min"):
        metrics.record("y", 1.0, "median")
