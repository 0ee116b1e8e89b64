"""Options of the actors. No heavy imports here: a recipe is checked without torch, vLLM or Monarch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlmesh.models.config import DTYPES
from rlmesh.schema import LONGEST_S, option


@dataclass
class EngineConfig:
    """vLLM's engine."""

    dtype: str = option("float32", "numeric type of weights and activations", choices=DTYPES)
    enforce_eager: bool = option(True, "run without compiled graphs")
    max_num_seqs: int = option(256, "sequences that the engine decodes at the same time", ge=1)
    max_num_batched_tokens: int = option(8192, "tokens that one forward pass of the engine may hold", ge=1)
    kv_cache_gib: int = option(1, "memory for the KV cache on CPU, in GiB", ge=1)
    gpu_memory_utilization: float = option(0.9, "share of a GPU's memory that the engine may take", gt=0, le=1)
    prefix_caching: bool = option(False, "reuse the KV cache of shared prompt prefixes; emptied at each weight update")
    batch_invariant: bool = option(
        False, "vLLM's kernels whose result does not depend on what is served beside a sequence (GPUs; slower)"
    )
    block_size: int = option(32, "tokens in one block of the KV cache", choices=(16, 32, 64, 128))


@dataclass
class PolicyServerConfig:
    """PolicyServer: samples completions with vLLM."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    sleep: bool = option(
        False, "the engine gives its memory free while the trainer works (one GPU for both); needs max_policy_age: 0"
    )
    start_timeout_s: float = option(300.0, "limit for the engine to be ready, in seconds", gt=0, le=LONGEST_S)
    request_timeout_s: float = option(
        600.0, "limit for one request, in seconds, with its wait for others in the engine", gt=0, le=LONGEST_S
    )


@dataclass
class ReferenceModelConfig:
    """ReferenceModel: the trainer's model code, frozen; started only when the loss has a KL term."""

    dtype: str = option("float32", "numeric type of the forward pass", choices=DTYPES)
    rows_per_micro_batch: int = option(64, "packed rows in one forward pass", ge=1)


@dataclass
class ReplayBufferConfig:
    """ReplayBuffer: groups wait here for the trainer."""

    max_policy_age: int = option(
        1, "no token older than this many versions is trained on (0: strictly on-policy)", ge=0
    )
    take_timeout_s: float = option(7200.0, "limit for a step's groups to arrive, in seconds", gt=0, le=LONGEST_S)


@dataclass
class RewardConfig:
    """RewardActor: scores finished episodes."""

    function: str = option("rlmesh.rewards.episode_return", "import path of the reward function")
    args: dict[str, Any] = option(factory=dict, doc="its keyword arguments")
    timeout_s: float = option(60.0, "limit for one episode's reward, in seconds", gt=0, le=LONGEST_S)
    start_timeout_s: float = option(120.0, "limit for importing the function, in seconds", gt=0, le=LONGEST_S)
