import math

import pytest

from rlmesh.metrics.warnings import Watch

REFERENCES = {"random": -0.39, "always stand": -0.1829, "optimal": -0.0431}
GOOD = {
    "reward/mean": -0.1,
    "frac_reward_zero_std": 0.4,
    "entropy": 0.3,
    "optim/grad_norm": 0.5,
    "episodes/truncated": 0.0,
    "episodes/invalid": 0.01,
    "completions/clipped_ratio": 0.0,
    "groups": 32.0,
    "errors/timeout": 3.0,
}

BAD = [
    (5, {"frac_reward_zero_std": 1.0}, "all episodes had the same reward"),
    (5, {"optim/grad_norm": 0.0}, "the gradient has been exactly 0"),
    (5, {"episodes/truncated": 0.6}, "episodes of the last 5 steps were cut"),
    (5, {"completions/clipped_ratio": 0.9}, "answers of the last 5 steps were cut at rollout.max_tokens"),
    (5, {"episodes/invalid": 0.8}, "could not read"),
    (1, {"groups/mixed": 0.1}, "do not begin with the same observation"),
    (3, {"errors/env_lost": 20.0}, "the environment fails often"),
    (1, {"kl": math.nan, "loss": -math.inf}, "not finite: kl, loss"),
    (5, {"ratio/above_2": 0.3}, "twice as likely to the trainer"),
]


@pytest.mark.parametrize("count, change, text", BAD, ids=[text for _, _, text in BAD])
def test_a_warning_comes_in_time_once_and_again_after_it_was_over(count, change, text):
    watch, bad = Watch(), {**GOOD, **change}
    assert watch.observe(GOOD) == []
    for _ in range(2):
        for _ in range(count - 1):
            assert watch.observe(bad) == []
        [warning] = watch.observe(bad)
        assert text in warning
        assert watch.observe(bad) == []
        assert watch.observe(GOOD) == []


def test_what_is_not_finite_is_said_once_even_when_more_becomes_so():
    watch = Watch()
    assert watch.observe({**GOOD, "kl": math.nan}) == ["not finite: kl"]
    assert watch.observe({**GOOD, "kl": math.nan, "loss": math.nan}) == []
    assert watch.observe(GOOD) == [] and len(watch.observe({**GOOD, "loss": math.inf})) == 1


@pytest.mark.parametrize(
    "reward, warned",
    [(lambda step: -0.2, True), (lambda step: -step, True), (lambda step: math.nan, True), (lambda step: step, False)],
    ids=["flat", "falls", "unknown", "grows"],
)
def test_a_policy_that_stopped_trying_is_named_unless_the_reward_grows(reward, warned):
    watch = Watch()
    said = [
        text
        for step in range(40)
        for text in watch.observe({**GOOD, "entropy": 0.3 if step < 10 else 0.001, "reward/mean": reward(step)})
        if "entropy" in text
    ]
    assert len(said) == warned


def test_several_things_at_once_are_all_said():
    watch, bad = Watch(), {**GOOD, "frac_reward_zero_std": 1.0, "optim/grad_norm": 0.0}
    assert [len(watch.observe(bad)) for _ in range(6)] == [0, 0, 0, 0, 2, 0]


def test_a_metric_that_is_not_there_is_no_warning():
    watch = Watch()
    assert not any(watch.observe({}) for _ in range(30))


def evaluations(values):
    watch = Watch()
    return [watch.observe({**GOOD, "eval/blackjack/greedy_value": value}, REFERENCES) for value in values]


def test_a_policy_that_stays_at_a_known_trap_is_named():
    *before, last = evaluations([-0.1829] * 4)
    assert before == [[], [], []]
    assert last == [
        "eval/blackjack/greedy_value has been that of 'always stand' for 4 evaluations: the policy is stuck there"
    ]


@pytest.mark.parametrize(
    "values",
    [[-0.1829, -0.1829, -0.15, -0.1829, -0.1829], [-0.0431] * 6, [-0.39, -0.1829, -0.39, -0.1829], [-0.05] * 8],
)
def test_learning_and_the_best_policy_are_no_trap(values):
    assert not any(evaluations(values))


def test_only_values_are_compared_with_known_values():
    watch = Watch()
    metrics = {**GOOD, "eval/game/invalid": 0.0}
    assert not any(watch.observe(metrics, {"never": 0.0, "best": 1.0}) for _ in range(9))


def test_steps_without_an_evaluation_do_not_end_the_trap():
    watch, said = Watch(), []
    for step in range(61):
        evaluated = {"eval/blackjack/greedy_value": -0.1829} if step % 20 == 0 else {}
        said += watch.observe({**GOOD, **evaluated}, REFERENCES)
    assert len(said) == 1
