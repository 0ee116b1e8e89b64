"""Metrics: recorded anywhere, merged, reduced once."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

import numpy as np

# numpy's maximum and minimum keep not-a-number whatever the order; Python's own lose it
_COMBINE = {"mean": operator.add, "sum": operator.add, "max": np.maximum, "min": np.minimum}


class Metrics:
    """Named numbers on their way to one value each; picklable, so that an actor can return one.

    The mean is weighted, and merging is exact: it does not matter how the records were spread over actors. A number that
    is not finite is kept as it is, so that it is seen in the step where it happened.

    >>> metrics = Metrics({"reward/mean": 1.0})
    >>> metrics.record("reward/mean", 0.0, weight=3)
    >>> metrics.record("off_policy/max", 2, "max")
    >>> metrics.reduce()
    {'reward/mean': 0.25, 'off_policy/max': 2.0}

    Raises: ValueError when one name is recorded with two reductions.
    """

    def __init__(self, values: Mapping[str, float] | None = None):
        self._records: dict[str, tuple[str, float, float]] = {}  # name -> reduction, value (or weighted sum), weight
        for name, value in (values or {}).items():
            last = name.rpartition("/")[2].partition("_")[0]
            self.record(name, value, last if last in ("max", "min") else "mean")

    def record(self, name: str, value: float, reduction: str = "mean", weight: float = 1.0) -> None:
        """Add one number; `reduction` is mean, sum, max or min."""
        if reduction not in _COMBINE:
            raise ValueError(f"{name}: '{reduction}' is not one of {', '.join(_COMBINE)}")
        value = float(value)
        self._add(name, reduction, value * weight if reduction == "mean" else value, weight)

    def merge(self, other: Metrics) -> None:
        """Take over everything that `other` recorded."""
        for name, (reduction, value, weight) in other._records.items():
            self._add(name, reduction, value, weight)

    def reduce(self) -> dict[str, float]:
        """One number for each name."""
        return {
            name: (value / weight if weight else math.nan) if reduction == "mean" else value
            for name, (reduction, value, weight) in self._records.items()
        }

    def _add(self, name: str, reduction: str, value: float, weight: float) -> None:
        if name not in self._records:
            self._records[name] = (reduction, value, weight)
            return
        known, total, weights = self._records[name]
        if known != reduction:
            raise ValueError(f"{name} was recorded as {known} and as {reduction}")
        self._records[name] = (reduction, float(_COMBINE[reduction](total, value)), weights + weight)
