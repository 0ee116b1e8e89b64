"""Options of the model. No heavy imports here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List

from rlmesh.schema import option


@dataclass
class TinyModelConfig:
    """Shape of `tiny-qwen3`, a Qwen3 with random weights built on the spot."""

    hidden_size: int = option(64, "width of the residual stream", ge=8)
    intermediate_size: int = option(128, "width of the feed-forward layers", ge=8)
    num_layers: int = option(2, "transformer layers", ge=1)
    num_heads: int = option(2, "attention heads", ge=1)
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
