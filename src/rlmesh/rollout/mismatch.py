"""How far the policy server's logprobs are from the trainer's, for the same weights and the same tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlmesh.rollout.batch import Batch


@dataclass(frozen=True)
class Mismatch:
    """The tokens that can be compared: K of a batch's N tokens.

    >>> mismatch = Mismatch(np.array([3]), np.array([-1.0]), np.array([-1.5]))
    >>> mismatch.metrics()["mismatch_logprob/max_abs"]
    0.5
    """

    index_K: np.ndarray  # place in the batch
    served_K: np.ndarray  # float32: the policy server's logprobs
    trained_K: np.ndarray  # float32: the trainer's

    def metrics(self) -> dict[str, float]:
        """Mean and maximum of the distance in nats, and of the KL estimator exp(d) - d - 1 of each token."""
        difference = self.trained_K.astype(np.float64) - self.served_K
        distance, kl = np.abs(difference), np.exp(difference) - difference - 1
        return {
            "mismatch_logprob/mean_abs": float(distance.mean()),
            "mismatch_logprob/max_abs": float(distance.max()),
            "mismatch_kl/mean": float(kl.mean()),
            "mismatch_kl/max": float(kl.max()),
        }

    def worst(self, batch: Batch, limit: float) -> list[dict]:
        """Each token further off than `limit` nats, the worst first, with what stands before it in its sample."""
        distance = np.nan_to_num(np.abs(self.trained_K - self.served_K), nan=np.inf)
        rows = []
        for k in np.argsort(-distance):
            if distance[k] <= limit:
                break
            place = int(self.index_K[k])
            start = int(batch.offsets[np.searchsorted(batch.offsets, place, side="right") - 1])
            rows.append(
                {
                    "token": int(batch.tokens[place]),
                    "trainer_logprob": float(self.trained_K[k]),
                    "policy_server_logprob": float(self.served_K[k]),
                    "before": batch.tokens[start:place].tolist(),
                }
            )
        return rows


def ratio_metrics(batch: Batch, trained_logprobs: np.ndarray) -> dict[str, float]:
    """Tails of trainer's probability / sampled probability over the batch's loss tokens, before any clipping."""
    log_ratio = (trained_logprobs - batch.logprobs)[batch.loss_mask].astype(np.float64)
    return {
        "ratio/max": float(np.exp(log_ratio.max())),
        "ratio/min": float(np.exp(log_ratio.min())),
        "ratio/above_2": float((log_ratio > np.log(2)).mean()),
        "ratio/below_half": float((log_ratio < -np.log(2)).mean()),
    }
