"""What a Hugging Face model folder says about itself, read without torch and transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlmesh.errors import RecipeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FAMILIES = ("llama", "qwen2", "qwen3")  # `model_type` of the architectures that the trainer knows
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
# What makes two configurations the same architecture.
_SHAPE = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_SHAPE += ("num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings")
_COUNTS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_COUNTS += ("num_key_value_heads", "max_position_embeddings")


def eos_token_ids(model_path: str | Path) -> frozenset[int]:
    """Every token that ends a sequence: config.json and generation_config.json may each name one or several, the tokenizer one.

    Fine-tuned models often name the token that ends their turns in one of these places only.
    """
    found = _tokenizer_eos(Path(model_path))
    for name in ("config.json", "generation_config.json"):
        path = Path(model_path) / name
        ids = _read_json(path, "model.source").get("eos_token_id") if path.exists() else None
        ids = [ids] if not isinstance(ids, list) else ids
        if not all(number is None or isinstance(number, int) for number in ids):
            raise RecipeError(f"model.source: {path} has eos_token_id = {ids}, where numbers of tokens are needed")
        found.update(number for number in ids if number is not None)
    return frozenset(found)


def _tokenizer_eos(path: Path) -> set[int]:
    config = path / "tokenizer_config.json"
    if not (config.exists() and (path / "tokenizer.json").exists()):
        return set()
    token = _read_json(config, "model.source").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token  # older versions write an object
    number = read_tokenizer(path).token_to_id(text) if isinstance(text, str) else None
    return set() if number is None else {number}


def architecture_problem(hf: dict[str, Any]) -> str | None:
    """Why the trainer cannot train a model with this config.json; None when it can."""
    family = hf.get("model_type")
    if family not in FAMILIES:
        return f"is a '{family}' model; the trainer knows {', '.join(FAMILIES)}"
    for name in (*_COUNTS, *(["head_dim"] if hf.get("head_dim") is not None else [])):
        value = hf.get(name)
        if not (isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31):
            return f"has {name} = {value!r}, where a whole number above 0 is needed"
    if not (isinstance(epsilon := hf.get("rms_norm_eps"), float) and 0 < epsilon < 1):
        return f"has rms_norm_eps = {epsilon!r}, where a small number above 0 is needed"
    if hf["num_attention_heads"] % hf["num_key_value_heads"]:
        return f"has {hf['num_key_value_heads']} key and value heads, which do not divide its {hf['num_attention_heads']} heads"
    # transformers 5 writes the scaling into `rope_parameters`, older versions into `rope_scaling`
    rope = hf.get("rope_parameters") or {}
    if hf.get("rope_scaling") or not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
        return "uses rope scaling, which the trainer does not support"
    if hf.get("attention_bias") or hf.get("mlp_bias"):
        return "has biases where the trainer's model has none (attention_bias, mlp_bias)"
    if hf.get("use_sliding_window"):
        return "uses a sliding window, which the trainer does not support"
    if family == "llama" and hf.get("head_dim") not in (
        None,
        head_dim := hf["hidden_size"] // hf["num_attention_heads"],
    ):
        return f"has heads of head_dim = {hf['head_dim']}; a llama's here are hidden_size / num_attention_heads = {head_dim}"
    return None


def read_config(path: Path, key: str) -> dict[str, Any]:
    """A config.json. Raises: RecipeError that names the recipe's key."""
    if not path.exists():
        raise RecipeError(f"{key}: there is no file {path}")
    return _read_json(path, key)


def _read_json(path: Path, key: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"{key}: cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{key}: cannot read {path}: it holds no keys")
    return content


def check_same(config: Path, folder: Path) -> None:
    """Raises: RecipeError naming `model.config` when that config.json is of another architecture than the folder's model."""
    expected, found = (read_config(path, "model.config") for path in (config, folder / "config.json"))
    differences = [
        f"{name} is {found[name]!r} and should be {expected[name]!r}"
        for name in _SHAPE
        if name in expected and name in found and expected[name] != found[name]
    ]
    if differences:
        raise RecipeError(f"model.config: {config} is not that of {folder}: {'; '.join(differences)}")


def check_folder(path: Path) -> None:
    """Raises: RecipeError naming `model.source` for a folder that cannot be served, trained and prompted with."""

    def refuse(why: str) -> None:
        raise RecipeError(f"model.source: {path} {why}")

    if not (path / "config.json").exists():
        refuse("is not a Hugging Face model folder (it has no config.json)")
    config = read_config(path / "config.json", "model.source")
    if problem := architecture_problem(config):
        refuse(problem)
    if not any(path.glob("*.safetensors")):
        refuse("has no weights (*.safetensors)")
    _check_weights(path)
    if not any((path / name).exists() for name in _TOKENIZER_FILES):
        refuse("has no tokenizer (tokenizer.json)")
    if not _has_chat_template(path):
        refuse(
            "has no chat template, which prompts are made with (chat_template.jinja, or a key of tokenizer_config.json)"
        )
    if not eos_token_ids(path):
        refuse(
            "names no token that ends a sequence (eos_token_id in config.json or generation_config.json, eos_token in "
            "tokenizer_config.json), so that no answer would ever end"
        )
    if (largest := _largest_token_id(path)) >= config["vocab_size"]:
        refuse(f"has a tokenizer of another model: token {largest} is outside of vocab_size = {config['vocab_size']}")


def _check_weights(path: Path) -> None:
    """Every file is there and whole: an interrupted download or copy shows here, and not in an actor."""
    from safetensors import SafetensorError, safe_open

    index = path / "model.safetensors.index.json"
    listed = _read_json(index, "model.source").get("weight_map") if index.exists() else {}
    if not (isinstance(listed, dict) and all(isinstance(name, str) for name in listed.values())):
        raise RecipeError(f"model.source: cannot read {index}: its weight_map does not map names to files")
    for file in sorted({*path.glob("*.safetensors"), *(path / name for name in listed.values())}):
        try:
            with safe_open(file, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise RecipeError(f"model.source: cannot read {file}: {error}") from error


def _has_chat_template(path: Path) -> bool:
    if (path / "chat_template.jinja").exists() or (path / "chat_template.json").exists():
        return True
    config = path / "tokenizer_config.json"
    return config.exists() and bool(_read_json(config, "model.source").get("chat_template"))


def _largest_token_id(path: Path) -> int:
    """Of tokenizer.json; -1 where the tokenizer is kept in another form."""
    if not (path / "tokenizer.json").exists():
        return -1
    return max(read_tokenizer(path).get_vocab(with_added_tokens=True).values(), default=-1)


def read_tokenizer(folder: Path) -> Tokenizer:
    """The folder's tokenizer.json. Raises: RecipeError naming `model.source`."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise RecipeError(f"model.source: cannot read {path}: {error}") from error
