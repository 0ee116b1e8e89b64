"""Options of the weight sync. No heavy imports here."""

from __future__ import annotations

from dataclasses import dataclass

from rlmesh.schema import option


@dataclass
class WeightsConfig:
    """How weights travel from the trainer to the policy server."""

    transport: str = option(
        "auto", "`auto`, or `torchstore` (TorchStore carries the bytes)", choices=("auto", "torchstore")
    )
    pause: str = option(
        "keep",
        "running requests at an update: `keep` (go on with the new weights), `wait` (finish first)",
        choices=("keep", "wait"),
    )
