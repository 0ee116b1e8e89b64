"""Warnings where a run is going wrong, so that nobody finds out in the morning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

Steps = list[Mapping[str, float]]  # the metrics of consecutive steps, the newest last

_TRAP_WIDTH = 1e-6  # an evaluation closer to a known value than this is that policy, not one like it
_TRAPPED = 4  # evaluations in a row that give the same known policy
_ENTROPY_GONE = 0.005  # nats a token: one answer has a chance of about 999 in 1000
_ERRORS_A_GROUP = 0.5


class Rule(NamedTuple):
    """`holds` sees the last `count` steps; `text` is what is said when it becomes true."""

    count: int
    holds: Callable[[Steps], bool]
    text: str


def _in_all(name: str, wrong: Callable[[float], bool]) -> Callable[[Steps], bool]:
    return lambda steps: all(name in step and wrong(step[name]) for step in steps)


def _entropy_gone(steps: Steps) -> bool:
    """Gone in the newer half of the steps, and the reward is not better there than in the older half."""
    half = len(steps) // 2
    if not _in_all("entropy", lambda nats: nats < _ENTROPY_GONE)(steps[half:]):
        return False
    older, newer = (
        np.mean([step.get("reward/mean", math.nan) for step in part]) for part in (steps[:half], steps[half:])
    )
    return not newer > older


def _many_errors(steps: Steps) -> bool:
    errors = [sum(value for name, value in step.items() if name.startswith("errors/")) for step in steps]
    allowed = [max(1.0, _ERRORS_A_GROUP * step.get("groups", 0)) for step in steps]
    return all(count >= limit for count, limit in zip(errors, allowed, strict=True))


_RULES = [
    Rule(
        5,
        _in_all("frac_reward_zero_std", lambda share: share == 1),
        "in every group of the last 5 steps all episodes had the same reward: there is nothing to learn from (a task that is "
        "always or never solved, or a reward that does not tell episodes apart)",
    ),
    Rule(
        1,
        _in_all("groups/mixed", lambda share: share > 0),
        "there are groups whose episodes do not begin with the same observation: rewards of different tasks are compared (does the "
        "environment's reset take the argument that env.group_seed names, and does one seed give one task?)",
    ),
    Rule(
        20,
        _entropy_gone,
        f"the entropy has been below {_ENTROPY_GONE} nats a token for 10 steps and the reward does not grow: the policy no "
        "longer tries anything else (raise algorithm.kl_coef, or lower the learning rate)",
    ),
    Rule(5, _in_all("optim/grad_norm", lambda norm: norm == 0), "the gradient has been exactly 0 for 5 steps"),
    Rule(
        5,
        _in_all("ratio/above_2", lambda share: share > 0.2),
        "for 5 steps more than a fifth of the tokens were twice as likely to the trainer as when they were sampled: the weights "
        "move too fast for replay_buffer.max_policy_age, or policy and trainer compute differently (algorithm.correction)",
    ),
    Rule(
        5,
        _in_all("episodes/truncated", lambda share: share > 0.5),
        "more than half of the episodes of the last 5 steps were cut (rollout.max_turns, model.max_length)",
    ),
    Rule(
        5,
        _in_all("completions/clipped_ratio", lambda share: share > 0.5),
        "more than half of the answers of the last 5 steps were cut at rollout.max_tokens",
    ),
    Rule(
        5,
        _in_all("episodes/invalid", lambda share: share > 0.5),
        "the environment could not read more than half of the last 5 steps' answers",
    ),
    Rule(
        3,
        _many_errors,
        "the environment fails often: one failure for every two groups in each of the last 3 steps (`rlmesh rollouts` shows "
        "what it said, logs/env_*.log what it printed)",
    ),
]


def _mismatch_rule(limit: float) -> Rule:
    return Rule(
        1,
        _in_all("mismatch_logprob/max_abs", lambda nats: nats > limit),
        f"for the same weights a logprob of the policy server is more than {limit:g} nats from the trainer's "
        "(algorithm.mismatch.warn_above): they compute differently, or the weights did not arrive",
    )


class Watch:
    """Looks at each step's metrics and says what is going wrong, once, until it has been right again.

    >>> watch = Watch()
    >>> [watch.observe({"optim/grad_norm": 0.0}) for _ in range(6)]
    [[], [], [], [], ['the gradient has been exactly 0 for 5 steps'], []]
    """

    def __init__(self, mismatch_limit: float = math.inf):
        self._rules = [*_RULES, _mismatch_rule(mismatch_limit)]
        self._steps: Steps = []
        self._policies: dict[
            str, list[str]
        ] = {}  # evaluation's metric -> the known policies that it was, the newest last
        self._wrong: set[str] = set()  # names of what is wrong now

    def observe(self, metrics: Mapping[str, float], references: Mapping[str, float] | None = None) -> list[str]:
        """The warnings that begin with this step; `references` are the evaluation's known values by their names."""
        self._steps = [*self._steps, metrics][-max(rule.count for rule in self._rules) :]
        wrong = dict([*self._not_finite(), *self._broken_rules(), *self._traps(metrics, references or {})])
        begun = [text for name, text in wrong.items() if name not in self._wrong]
        self._wrong = set(wrong)
        return begun

    def _not_finite(self) -> Iterator[tuple[str, str]]:
        if names := [name for name, value in self._steps[-1].items() if not math.isfinite(value)]:
            yield "not finite", f"not finite: {', '.join(names)}"

    def _broken_rules(self) -> Iterator[tuple[str, str]]:
        for count, holds, text in self._rules:
            if len(self._steps) >= count and holds(self._steps[-count:]):
                yield text, text

    def _traps(self, metrics: Mapping[str, float], references: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        """Evaluated values that stay exactly at those of a known policy other than the best one."""
        best = max(references.values(), default=math.inf)
        for metric, value in metrics.items():
            if metric.startswith("eval/") and metric.endswith("_value"):
                known = (
                    name for name, other in references.items() if abs(other - value) < _TRAP_WIDTH and other < best
                )
                self._policies[metric] = [*self._policies.get(metric, []), next(known, "")][-_TRAPPED:]
        for metric, policies in self._policies.items():
            if len(policies) == _TRAPPED and len(set(policies)) == 1 and (policy := policies[0]):
                text = f"{metric} has been that of '{policy}' for {_TRAPPED} evaluations: the policy is stuck there"
                yield f"{metric} {policy}", text
