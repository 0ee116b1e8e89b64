"""Metrics of a run: recorded anywhere, reduced once, written to the backends that the recipe names."""

from rlmesh.metrics.metrics import Metrics

__all__ = ["Metrics"]
