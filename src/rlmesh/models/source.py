"""Where the model comes from: built on the spot, a Hugging Face folder, or the hub."""

from __future__ import annotations

from pathlib import Path

from rlmesh.errors import RecipeError
from rlmesh.models.config import ModelConfig

TINY = "tiny-qwen3"


def resolve_model(config: ModelConfig, folder: Path, seed: int) -> Path:
    """The Hugging Face folder of `config.source`; a tiny model is built in `folder`.

    Raises: RecipeError naming `model.source` when there is no such model.
    """
    if config.source == TINY:
        from rlmesh.models.tiny import build_tiny_model

        build_tiny_model(config.tiny, config.max_length, folder, seed)
        return folder
    path = Path(config.source).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise RecipeError(f"model.source: {path} is not a Hugging Face model folder (it has no config.json)")
        return path.resolve()
    if config.source.startswith((".", "/", "~")) or config.source.count("/") != 1:
        raise RecipeError(
            f"model.source: there is no model folder '{config.source}' (or use '{TINY}', or a hub id such as Qwen/Qwen2.5-1.5B-Instruct)"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(config.source, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"])
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise RecipeError(
            f"model.source: neither a folder nor a model that the hub gives: '{config.source}' ({type(error).__name__})"
        ) from error
