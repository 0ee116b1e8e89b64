"""Warnings where a run is going wrong, so that nobody finds out in the morning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

_TRAP_WIDTH = 1e-6  # an evaluation closer to a known value than this is that policy, not one like it


def _all_steps(name: str, holds: Callable[[float], bool]) -> Callable[[list[Mapping[str, float]]], bool]:
    return lambda steps: all(name in step and holds(step[name]) for step in steps)


def _many_errors(steps: list[Mapping[str, float]]) -> bool:
    errors = [sum(value for name, value in step.items() if name.startswith("errors/")) for step in steps]
    return all(
        count >= max(1.0, _ERRORS_A_GROUP * step.get("groups", 0)) for count, step in zip(errors, steps, strict=True)
    )


_ERRORS_A_GROUP = 0.5
# steps that it must hold for, what must hold, what is said
_RULES: list[tuple[int, Callable[[list[Mapping[str, float]]], bool], str]] = [
    (
        3,
        lambda steps: all(any(not math.isfinite(value) for value in step.values()) for step in steps),
        "numbers that are not finite in every one of the last 3 steps",
    ),
    (
        5,
        _all_steps("frac_reward_zero_std", lambda share: share == 1),
        "in every group of the last 5 steps all episodes had the same reward: there is nothing to learn from (a task that is "
        "always or never solved, or a reward that does not tell episodes apart)",
    ),
    (
        10,
        _all_steps("entropy", lambda nats: nats < 0.005),
        "the entropy has been below 0.005 nats a token for 10 steps: the policy no longer tries anything else (raise "
        "algorithm.kl_coef, or lower the learning rate)",
    ),
    (
        5,
        _all_steps("optim/grad_norm", lambda norm: norm == 0),
        "the gradient has been exactly 0 for 5 steps",
    ),
    (
        5,
        _all_steps("episodes/truncated", lambda share: share > 0.5),
        "more than half of the episodes of the last 5 steps were cut (rollout.max_turns, model.max_length)",
    ),
    (
        5,
        _all_steps("completions/clipped_ratio", lambda share: share > 0.5),
        "more than half of the answers of the last 5 steps were cut at rollout.max_tokens",
    ),
    (
        5,
        _all_steps("episodes/invalid", lambda share: share > 0.5),
        "the environment could not read more than half of the last 5 steps' answers",
    ),
    (
        3,
        _many_errors,
        "the environment fails often: one failure for every two groups in each of the last 3 steps (logs/env_*.log)",
    ),
]
_TRAPPED = 4  # evaluations in a row that give the same known policy


class Watch:
    """Looks at each step's metrics and says what is going wrong, once, until it has been right again.

    >>> watch = Watch()
    >>> [watch.observe({"frac_reward_zero_std": 1.0}) for _ in range(5)][-1][0][:32]
    'in every group of the last 5 ste'
    >>> watch.observe({"frac_reward_zero_std": 1.0})
    []
    """

    def __init__(self):
        self._steps: list[Mapping[str, float]] = []
        self._evaluations: dict[str, list[str]] = {}  # metric -> the known policy that each evaluation was
        self._said: set[str] = set()

    def observe(self, metrics: Mapping[str, float], references: Mapping[str, float] | None = None) -> list[str]:
        """The warnings that begin with this step.

        `references` are the evaluation's known values.
        """
        self._steps = [*self._steps, metrics][-max(count for count, _, _ in _RULES) :]
        now = {
            text for count, holds, text in _RULES if len(self._steps) >= count and holds(self._steps[-count:])
        } | set(self._traps(metrics, references or {}))
        begun, self._said = now - self._said, now
        return sorted(begun)

    def _traps(self, metrics: Mapping[str, float], references: Mapping[str, float]) -> Iterator[str]:
        for metric, value in metrics.items():
            if not metric.startswith("eval/"):
                continue
            best = max(references.values(), default=math.inf)
            policy = next((n for n, v in references.items() if abs(v - value) < _TRAP_WIDTH and v < best), "")
            self._evaluations.setdefault(metric, []).append(policy)
        for metric, policies in self._evaluations.items():
            last = set(policies[-_TRAPPED:])
            if len(policies) >= _TRAPPED and len(last) == 1 and (policy := last.pop()):
                yield f"{metric} has been that of '{policy}' for {_TRAPPED} evaluations: the policy is stuck there"
