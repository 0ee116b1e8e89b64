"""Cross-entropy: the negative logprob of each token to be learned."""

from __future__ import annotations

import torch

from rlmesh.losses.inputs import LossInputs


def cross_entropy(inputs: LossInputs) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss [M] of supervised learning.

    >>> loss, _ = cross_entropy(LossInputs(logprobs=torch.tensor([-0.5])))
    >>> loss.tolist()
    [0.5]
    """
    return -inputs.logprobs, {}
