"""Losses, one file each, found by name; importing this package imports none of them."""

from __future__ import annotations

from collections.abc import Callable

from rlmesh.imports import import_path

LOSSES = ("cross_entropy", "grpo")


def resolve_loss(name: str) -> Callable:
    """A loss by its name, or one of your own by its import path: (LossInputs, **coefficients) -> (loss [M], metrics)."""
    return import_path(f"rlmesh.losses.{name}.{name}" if name in LOSSES else name, "algorithm.loss")
