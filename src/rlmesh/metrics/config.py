"""Options of the metrics. No heavy imports here."""

from __future__ import annotations

from dataclasses import dataclass

from rlmesh.schema import option


@dataclass
class MetricsConfig:
    """Where a step's metrics go."""

    console: bool = option(True, "one line a step")
    jsonl: bool = option(True, "`metrics.jsonl` in the run directory")
    tensorboard: bool = option(True, "`tensorboard/` in the run directory")
    wandb: bool = option(False, "Weights & Biases (WANDB_MODE=offline keeps it in `wandb/` of the run directory)")
    trackio: bool = option(False, "trackio, on this machine; `trackio show` opens it")
    project: str = option(
        "rlmesh", "project that Weights & Biases and trackio file the run under, by the name run.name"
    )
    rollouts_every: int = option(10, "steps between two files of episodes in `rollouts/` (0: none)", ge=0)
