"""Options of the model. No heavy imports here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List

from rlmesh.schema import LONGEST_S, option

DTYPES = ("float32", "bfloat16")


@dataclass
class TinyModelConfig:
    """Shape of `tiny-qwen3`, a Qwen3 with random weights built on the spot."""

    hidden_size: int = option(64, "width of the residual stream", ge=8, le=2**16)
    intermediate_size: int = option(128, "width of the feed-forward layers", ge=8, le=2**18)
    num_layers: int = option(2, "transformer layers", ge=1, le=1000)
    num_heads: int = option(2, "attention heads", ge=1, le=1000)
    num_kv_heads: int = option(1, "key and value heads; divides num_heads", ge=1)
    tie_word_embeddings: bool = option(False, "use the embedding as output head too")
    words: List[str] = option(
        factory=list, doc="words that are one token each; any other text is spelled in characters"
    )


@dataclass
class ModelConfig:
    """The model that is trained."""

    source: str = option(
        "tiny-qwen3",
        "`tiny-qwen3`, `smollm2-135m-instruct`, or a Hugging Face folder (relative to the working directory) or hub id",
    )
    config: str = option(
        "", "config.json of a model that is not here yet, which the recipe is checked against before the model is"
    )
    max_length: int = option(256, "longest sequence (prompt and completion), in tokens", ge=2)
    tiny: TinyModelConfig = field(default_factory=TinyModelConfig)


@dataclass
class OptimizerConfig:
    """AdamW."""

    lr: Any = option(1e-3, "learning rate", gt=0, schedule=True)
    betas: List[float] = option(factory=lambda: [0.9, 0.95], doc="decay of the two moments", ge=0, lt=1)
    eps: float = option(1e-8, "added to the denominator", gt=0)
    weight_decay: float = option(0.0, "decoupled weight decay", ge=0)
    max_grad_norm: float = option(1.0, "gradients are scaled down to this norm", gt=0)


@dataclass
class ParallelismConfig:
    """How the trainer's ranks share the model; their product is the number of trainer procs."""

    data_parallel_replicate: int = option(1, "replicas of the model (HSDP, DDP)", ge=1)
    data_parallel_shard: int = option(1, "ranks that share one copy of the model (FSDP2)", ge=1)
    tensor_parallel: int = option(1, "ranks that share each layer", ge=1)

    @property
    def world_size(self) -> int:
        return self.data_parallel_replicate * self.data_parallel_shard * self.tensor_parallel


@dataclass
class TrainerConfig:
    """TitanTrainer: torchtitan's model, parallelism, optimizer and checkpoints."""

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    dtype: str = option(
        "float32", "numeric type of the forward and backward pass (weights stay float32)", choices=DTYPES
    )
    pack_length: int = option(256, "tokens in one packed row; must hold the longest sample", ge=2)
    rows_per_micro_batch: int = option(64, "packed rows in one forward and backward pass", ge=1)
    activation_checkpoint: str = option(
        "none", "recompute activations in the backward pass", choices=("none", "selective", "full")
    )
    batch_invariant: bool = option(
        False, "torchtitan's kernels of that kind, for logprobs that are the policy server's to the bit (GPUs; slower)"
    )
    start_timeout_s: float = option(300.0, "limit for the trainer to be ready, in seconds", gt=0, le=LONGEST_S)
    step_timeout_s: float = option(1800.0, "limit for one call to the trainer, in seconds", gt=0, le=LONGEST_S)
