"""The model of the throughput benchmark: a Qwen3 of 4 layers with random weights, whose tokens are characters."""

from __future__ import annotations

import string
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import Qwen3ForCausalLM

_VOCABULARY = ["<pad>", "<bos>", "<eos>", "<unk>", *string.printable]
_IDS = {token: index for index, token in enumerate(_VOCABULARY)}
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def build_char_model(folder: Path, seed: int = 0) -> None:
    """Write weights (float32) and tokenizer as a Hugging Face folder that every system of the benchmark loads."""
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    names = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos", "unk")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_tokenizer(), **names)
    tokenizer.chat_template = _CHAT_TEMPLATE
    config = Qwen3Config(
        vocab_size=len(_VOCABULARY),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        **{f"{name}_token_id": _IDS[f"<{name}>"] for name in ("pad", "bos", "eos")},
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config).to(torch.float32)
    _never_end(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _never_end(model: Qwen3ForCausalLM) -> None:
    """Give the end of sequence a logit below -100, so that each completion is as long as it may be.

    The weights say so, and not an option of the sampler: that would cost one system more than another.
    """
    embedding, head = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    embedding[:, 0] = 0.5  # large beside the others: the same in every token, whatever the layers add
    head[:, 0] = 0.0
    head[_IDS["<eos>"], 0] = -40.0


def _tokenizer() -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel(_IDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer
