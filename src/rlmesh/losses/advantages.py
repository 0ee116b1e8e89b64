"""Advantages of the episodes of one group, from their rewards.

An episode without a reward (None: its environment failed, nobody scored it) is not a reward of 0: it is left out of every
statistic, and its own advantage is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlmesh.imports import import_path

Advantage = Callable[[Sequence[float | None]], np.ndarray]


def group_mean(rewards: Sequence[float | None]) -> np.ndarray:
    """Reward minus the mean of the group's rewards, float64 [G].

    Without division by the deviation no task weighs more for being nearly solved: Liu et al. 2025, "Understanding
    R1-Zero-Like Training" (arXiv:2503.20783).

    >>> group_mean([1.0, 0.0, None]).tolist()
    [0.5, -0.5, 0.0]
    """
    values = np.array([np.nan if r is None else r for r in rewards], dtype=np.float64)
    scored = ~np.isnan(values)
    advantages = np.zeros(len(values))
    if scored.any():
        advantages[scored] = values[scored] - values[scored].mean()
    return advantages


def group_norm(rewards: Sequence[float | None]) -> np.ndarray:
    """`group_mean` divided by the deviation of the group's rewards (population), float64 [G]; 0 where they are all equal.

    Shao et al. 2024, "DeepSeekMath" (arXiv:2402.03300).

    >>> group_norm([1.0, 0.0, None]).tolist()
    [1.0, -1.0, 0.0]
    """
    scored = [reward for reward in rewards if reward is not None]
    # Equal rewards have a deviation of 0, but not always in floating point: 0.1 seven times has one of 1e-17.
    if not scored or min(scored) == max(scored):
        return np.zeros(len(rewards))
    return group_mean(rewards) / np.std(scored)


ADVANTAGES: dict[str, Advantage] = {"group_mean": group_mean, "group_norm": group_norm}


def resolve_advantage(name: str) -> Advantage:
    """`group_mean`, `group_norm`, or a function of your own by its import path."""
    return ADVANTAGES[name] if name in ADVANTAGES else import_path(name, "algorithm.advantage")
