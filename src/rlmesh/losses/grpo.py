"""GRPO's clipped policy gradient with a KL term to a reference model."""

from __future__ import annotations

import torch

from rlmesh.losses.inputs import LossInputs


def grpo(
    inputs: LossInputs, clip_low: float = 0.2, clip_high: float = 0.28, kl_coef: float = 0.0
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss [M]: -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) + kl_coef * KL.

    ratio = exp(logprob - old logprob). The KL term is the estimator exp(d) - d - 1 with d = ref logprob - logprob, which is
    never negative and has the KL as its mean. A token whose advantage is 0 (its group has no variance) still gets the
    gradient of the KL term: that is what the term is for.

    Shao et al. 2024, "DeepSeekMath" (arXiv:2402.03300), eq. 3 and 4; the wider upper clip is DAPO's, Yu et al. 2025
    (arXiv:2503.14476). Metrics are taken before clipping.
    """
    inputs.need("old_logprobs", "advantages", *(["ref_logprobs"] if kl_coef else []))
    log_ratio = inputs.logprobs - inputs.old_logprobs
    ratio, advantages = log_ratio.exp(), inputs.advantages
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    metrics = {
        "clip_ratio/low": ((ratio < 1 - clip_low) & (advantages < 0)).float(),
        "clip_ratio/high": ((ratio > 1 + clip_high) & (advantages > 0)).float(),
    }
    if inputs.ref_logprobs is not None:
        difference = inputs.ref_logprobs - inputs.logprobs
        kl = difference.exp() - difference - 1
        loss = loss + kl_coef * kl
        metrics["kl"] = kl.detach()
    return loss, metrics
