"""Options of the algorithms. No heavy imports here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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


@dataclass
class MismatchConfig:
    """Comparison of the policy server's logprobs with the trainer's for the same weights, at every step."""

    sequences: int = option(
        64,
        "sequences that the policy server scores again where older weights made all of a step's tokens (0: none)",
        ge=0,
    )
    warn_above: float = option(0.1, "largest distance of two logprobs, in nats, that is not worth a warning", gt=0)
    stop_above: float = option(
        0.0, "distance of two logprobs, in nats, that ends the run and saves the tokens in `mismatch/` (0: never)", ge=0
    )


@dataclass
class AlgorithmConfig:
    """The loop, its loss and its advantage."""

    name: str = option("grpo", "the loop", choices=("grpo",))
    loss: str = option("grpo", "a loss of `rlmesh.losses`, or an import path")
    advantage: str = option(
        "group_mean",
        "`group_mean` (return minus the group's mean), `group_norm` (also divided by its deviation), or an import path",
    )
    kl_coef: Any = option(
        0.0, "weight of the KL term to the reference model (0: no reference model is started)", ge=0, schedule=True
    )
    clip_low: Any = option(0.2, "the ratio is clipped below 1 minus this", ge=0, lt=1, schedule=True)
    clip_high: Any = option(0.28, "the ratio is clipped above 1 plus this", ge=0, schedule=True)
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    mismatch: MismatchConfig = field(default_factory=MismatchConfig)
    replacements: int = option(
        0,
        "how often a group whose episodes all have the same reward is replaced by one of another task (DAPO's dynamic sampling); "
        "when that was not enough the run ends (0: such groups are kept)",
        ge=0,
    )
    minibatches: int = option(1, "optimizer steps made from one step's groups", ge=1)


@dataclass
class WarmStartConfig:
    """Supervised steps before the reinforcement learning; the reference model is the warm-started model."""

    data: str = option(
        "blackjack_env.warm_start.random_play",
        "import path of a function (seed, count, **args) -> list of (observation, answer)",
    )
    args: dict[str, Any] = option(factory=dict, doc="its keyword arguments")
    steps: int = option(50, "optimizer steps", ge=1)
    batch_size: int = option(256, "pairs in one step", ge=1)
    lr: Any = option(3e-3, "learning rate", gt=0, schedule=True)


@dataclass
class EvalConfig:
    """Evaluation while training."""

    every: int = option(10, "steps between evaluations (0: only before the first step and after the last)", ge=0)
    name: str = option("", "an evaluator of `rlmesh.evals` (`blackjack`) or an import path; empty: none")
    args: dict[str, Any] = option(factory=dict, doc="its keyword arguments")
