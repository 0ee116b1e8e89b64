"""Options of the losses. No heavy imports here."""

from __future__ import annotations

from dataclasses import dataclass

from rlmesh.schema import option


@dataclass
class CorrectionConfig:
    """Importance-sampling correction for episodes that other probabilities made than the trainer's own."""

    kind: str = option(
        "none",
        "`none`, `truncate` (a weight is at most `limit`), or `mask` (0 where a weight is above `limit` or below 1/`limit`)",
        choices=("none", "truncate", "mask"),
    )
    level: str = option("token", "one weight for each token, or for each sequence", choices=("token", "sequence"))
    limit: float = option(2.0, "bound of the weights", gt=1)
