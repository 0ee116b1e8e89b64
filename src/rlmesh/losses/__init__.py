"""Losses, one file each, found by name; importing this package imports none of them."""

from __future__ import annotations

from collections.abc import Callable

from rlmesh.imports import import_path

POLICY_LOSSES = ("grpo",)  # those that learn from sampled episodes
LOSSES = ("cross_entropy", *POLICY_LOSSES)


def resolve_loss(name: str) -> Callable:
    """A loss by its name, or one of your own by its import path: (LossInputs, **coefficients) -> (loss [M], metrics).

    In a run a loss gets the coefficients `clip_low`, `clip_high` and `kl_coef`, each as the recipe's schedule has it now.
    Raises: RecipeError naming `algorithm.loss`.
    """
    return import_path(f"rlmesh.losses.{name}.{name}" if name in LOSSES else name, "algorithm.loss")
