"""What every loss is a function of."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LossInputs:
    """The M tokens that are trained on; every tensor is float32 [M] and aligned with the others.

    `logprobs` carries the gradient; the others are data. A loss maps these to a loss for each token and to named numbers
    for each token; what to divide by is decided once, outside.
    """

    logprobs: torch.Tensor  # under the weights that are trained, under the sampling distribution
    old_logprobs: torch.Tensor | None = None  # as sampled, or under the weights that the step began with
    advantages: torch.Tensor | None = None
    ref_logprobs: torch.Tensor | None = None  # under the reference model

    def need(self, *names: str) -> None:
        """Raises: ValueError that names what a loss needs and the batch does not have."""
        if missing := [name for name in names if getattr(self, name) is None]:
            raise ValueError(f"the loss needs {' and '.join(missing)}, which the batch does not have")
