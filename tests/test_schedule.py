import math
from itertools import pairwise

import pytest

from rlmesh.schedule import ends, problems, value_at


def run(value, steps=11):
    return [value_at(value, step, steps) for step in range(steps)]


def test_a_constant_stays():
    assert run(0.3, 4) == [0.3] * 4
    assert isinstance(value_at(1, 0, 4), float)


def test_linear_reaches_both_ends():
    assert run({"from": 1.0, "to": 0.0}) == pytest.approx([1 - i / 10 for i in range(11)])
    assert run({"from": 0, "to": 10})[5] == 5.0


def test_cosine_is_slow_at_both_ends():
    values = run({"from": 1.0, "to": 0.0, "shape": "cosine"})
    assert values[0] == 1.0 and values[-1] == pytest.approx(0) and values[5] == pytest.approx(0.5)
    assert values[0] - values[1] < 0.03 < values[4] - values[5]


def test_exponential_has_a_constant_ratio():
    values = run({"from": 1e-1, "to": 1e-3, "shape": "exponential"})
    assert [b / a for a, b in pairwise(values)] == pytest.approx([10**-0.2] * 10)
    assert values[-1] == pytest.approx(1e-3)


def test_constant_before_after_and_behind_over():
    values = run({"from": 1.0, "to": 0.0, "after": 2, "over": 4})
    assert values == pytest.approx([1, 1, 1, 0.75, 0.5, 0.25, 0, 0, 0, 0, 0])


def test_over_below_one_is_a_share_of_the_run():
    assert run({"from": 1.0, "to": 0.0, "over": 0.5}, 8) == pytest.approx([1, 0.75, 0.5, 0.25, 0, 0, 0, 0])
    assert run({"from": 1.0, "to": 0.0, "over": 1}, 3) == [1.0, 0.0, 0.0]  # one step


def test_a_change_at_the_last_step_happens_there():
    assert run({"from": 1.0, "to": 0.0, "after": 2}, 3) == [1.0, 1.0, 0.0]
    assert run({"from": 1.0, "to": 0.0}, 1) == [0.0]


@pytest.mark.parametrize("shape", ["linear", "cosine", "exponential"])
def test_every_value_lies_between_the_ends(shape):
    schedule = {"from": 2e-3, "to": 2e-4, "shape": shape, "after": 3, "over": 5}
    values = run(schedule)
    assert all(2e-4 - 1e-12 <= value <= 2e-3 + 1e-12 for value in values)
    assert values == sorted(values, reverse=True)
    assert ends(schedule) == [2e-3, 2e-4]


@pytest.mark.parametrize(
    "schedule, sentence",
    [
        ({"to": 1}, "a schedule needs 'from'"),
        ({"from": 1}, "a schedule needs 'to'"),
        ({"from": "a", "to": 1}, "'from' of a schedule is a number, not 'a'"),
        ({"from": True, "to": 1}, "'from' of a schedule is a number, not True"),
        ({"from": math.inf, "to": 1}, "'from' of a schedule is a number, not inf"),
        ({"from": 1, "to": 0, "over": "all"}, "'over' of a schedule is a number, not 'all'"),
        ({"from": 1, "to": 0, "over": 0}, "the schedule ends before it starts: 'over' is 0"),
        ({"from": 1, "to": 0, "over": -3}, "the schedule ends before it starts: 'over' is -3"),
        ({"from": 1, "to": 0, "after": -1}, "'after' of a schedule is a step from 0 on, not -1"),
        ({"from": 1, "to": 0, "after": 10}, "the schedule starts at step 10, after the last step 9"),
        ({"from": 1, "to": 0, "shape": "cosinus"}, "'shape' of a schedule is one of linear, cosine, exponential"),
        ({"from": 1, "to": 0, "shape": "exponential"}, "an exponential schedule needs 'from' and 'to' above 0"),
    ],
)
def test_impossible_schedules(schedule, sentence):
    [problem] = problems(schedule, total_steps=10)
    assert problem.startswith(sentence)
