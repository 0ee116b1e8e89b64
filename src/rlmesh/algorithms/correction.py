"""Importance sampling between the probabilities that sampled the episodes and the trainer's own.

What the policy server samples from is never quite what the trainer computes: another kernel, another number format, older
weights. Taken as it is, the gradient is that of a slightly wrong expectation. With the trainer's own logprobs, under the weights
that the step begins with, in the ratio's denominator, and each sequence weighed by exp(the sum of trainer's - sampled logprobs), the
expectation is right again. Weighing each token by its own factor alone has less variance and leaves a bias, from what came before
it; bounding the weights trades some more bias for less variance. Yao et al. 2025, "Your Efficient RL Framework
Secretly Brings You Off-Policy RL Training"; Liu et al. 2025, "When Speed Kills Stability" (masked, and by sequence).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlmesh.algorithms.config import CorrectionConfig
from rlmesh.rollout.batch import Batch


def log_weights(batch: Batch, trained_logprobs: np.ndarray, level: str) -> np.ndarray:
    """The logarithm of each token's weight before it is bounded, float64 [N].

    By token: its own ratio; 0 outside the loss mask. By sequence: the product of the ratios of its sample, for each of its tokens.
    """
    log_ratio = np.where(batch.loss_mask, trained_logprobs.astype(np.float64) - batch.logprobs, 0.0)
    if level == "sequence":
        log_ratio = np.repeat(np.add.reduceat(log_ratio, batch.offsets[:-1]), np.diff(batch.offsets))
    return log_ratio


def importance_weights(batch: Batch, trained_logprobs: np.ndarray, config: CorrectionConfig) -> np.ndarray:
    """The bounded weight of each token, float64 [N]; 0 outside the loss mask."""
    logs = log_weights(batch, trained_logprobs, config.level)
    weights = np.exp(np.minimum(logs, 2 * np.log(config.limit)))  # beyond the limit its size does not matter
    if config.kind == "truncate":
        weights = np.minimum(weights, config.limit)
    else:
        weights = np.where((weights > config.limit) | (weights < 1 / config.limit), 0.0, weights)
    return np.where(batch.loss_mask, weights, 0.0)


def correct(batch: Batch, trained_logprobs: np.ndarray, config: CorrectionConfig) -> tuple[Batch, dict[str, float]]:
    """The batch with corrected advantages and the trainer's logprobs to take ratios against, and metrics of the weights.

    A surrogate loss is linear in the advantage for weights that are not negative, so that weighing the advantage weighs the
    loss; a KL term to the reference model is not weighed.
    """
    weights = importance_weights(batch, trained_logprobs, config)
    inside = weights[batch.loss_mask]
    bounded = (inside == 0) if config.kind == "mask" else (inside == config.limit)
    raw = log_weights(batch, trained_logprobs, config.level)[batch.loss_mask]
    metrics = {
        "correction/weight": float(inside.mean()),
        "correction/bounded": float(bounded.mean()),
        "correction/log_weight_max": float(raw.max()),  # before the bound, as logarithms: a long sequence's overflows
        "correction/log_weight_min": float(raw.min()),
    }
    corrected = replace(
        batch, advantages=(batch.advantages * weights).astype(np.float32), old_logprobs=trained_logprobs
    )
    return corrected, metrics
