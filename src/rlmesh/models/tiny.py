"""`tiny-qwen3`: a Qwen3 with random weights and a small vocabulary, built on the spot as an ordinary Hugging Face folder."""

from __future__ import annotations

import json
import string
from pathlib import Path

from rlmesh.models.config import TinyModelConfig

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
HEAD_DIM = 32
_WORD_START = "▁"
# Contents follow one another; an answer ends with <eos>. Nothing else is spent on the form of a conversation.
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"


def build_tiny_model(config: TinyModelConfig, max_length: int, folder: str | Path, seed: int) -> None:
    """Write weights (float32), tokenizer, chat template and configuration; the same seed gives the same weights.

    Every word of `config.words` is one token, any other printable text is spelled in characters, and decoding gives the
    text back. transformers, vLLM and torchtitan load the folder.

    >>> build_tiny_model(TinyModelConfig(words=["hit", "stand"]), 64, "model", seed=0)     # doctest: +SKIP
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_tokenizer(config.words, max_length, folder)
    _write_config(config, vocab_size, max_length, folder)
    _write_weights(config, vocab_size, folder, seed)


def _write_tokenizer(words: list[str], max_length: int, folder: Path) -> int:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    characters = [c for c in string.printable if not c.isspace()] + ["\n", "\t", _WORD_START]
    # Unigram takes the likeliest split: a whole word always beats its characters.
    pieces = [(token, 0.0) for token in SPECIAL_TOKENS]
    pieces += [(f"{_WORD_START}{word}", -1.0) for word in dict.fromkeys(words)]
    pieces += [(character, -20.0) for character in characters]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=SPECIAL_TOKENS.index("<unk>"), byte_fallback=False))
    # The decoder takes the first word's mark away, so it is always set, also before a text that begins with a space.
    tokenizer.normalizer = normalizers.Prepend(_WORD_START)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_WORD_START, prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(replacement=_WORD_START, prepend_scheme="always")
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{token.strip('<>')}_token": token for token in SPECIAL_TOKENS}
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "clean_up_tokenization_spaces": False,
            "chat_template": _CHAT_TEMPLATE,
            **names,
        },
    )
    return len(pieces)


def _write_config(config: TinyModelConfig, vocab_size: int, max_length: int, folder: Path) -> None:
    tokens = {f"{name.strip('<>')}_token_id": i for i, name in enumerate(SPECIAL_TOKENS) if name != "<unk>"}
    _write_json(
        folder / "config.json",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": vocab_size,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "max_position_embeddings": max_length,
            "attention_bias": False,
            "tie_word_embeddings": config.tie_word_embeddings,
            "torch_dtype": "float32",
            **tokens,
        },
    )
    _write_json(folder / "generation_config.json", {**tokens, "do_sample": True})


def _write_weights(config: TinyModelConfig, vocab_size: int, folder: Path, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * 0.02

    width, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * HEAD_DIM, config.num_kv_heads * HEAD_DIM
    weights = {"model.embed_tokens.weight": matrix(vocab_size, width), "model.norm.weight": torch.ones(width)}
    for i in range(config.num_layers):
        layer = f"model.layers.{i}"
        weights |= {
            f"{layer}.self_attn.q_proj.weight": matrix(queries, width),
            f"{layer}.self_attn.k_proj.weight": matrix(keys, width),
            f"{layer}.self_attn.v_proj.weight": matrix(keys, width),
            f"{layer}.self_attn.o_proj.weight": matrix(width, queries),
            f"{layer}.self_attn.q_norm.weight": torch.ones(HEAD_DIM),
            f"{layer}.self_attn.k_norm.weight": torch.ones(HEAD_DIM),
            f"{layer}.mlp.gate_proj.weight": matrix(inner, width),
            f"{layer}.mlp.up_proj.weight": matrix(inner, width),
            f"{layer}.mlp.down_proj.weight": matrix(width, inner),
            f"{layer}.input_layernorm.weight": torch.ones(width),
            f"{layer}.post_attention_layernorm.weight": torch.ones(width),
        }
    if not config.tie_word_embeddings:
        weights["lm_head.weight"] = matrix(vocab_size, width)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
