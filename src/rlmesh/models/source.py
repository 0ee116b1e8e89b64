"""Where the model comes from: built on the spot, a Hugging Face folder, or the hub."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from rlmesh.errors import RecipeError
from rlmesh.models.config import ModelConfig
from rlmesh.models.folder import check_folder, check_same


def _tiny(config: ModelConfig, folder: Path, seed: int) -> None:
    from rlmesh.models.tiny import build_tiny_model

    build_tiny_model(config.tiny, config.max_length, folder, seed)


def _smollm2(config: ModelConfig, folder: Path, seed: int) -> None:
    from rlmesh.models.smollm2 import build_smollm2

    build_smollm2(folder)


BUILT: dict[str, Callable[[ModelConfig, Path, int], None]] = {"tiny-qwen3": _tiny, "smollm2-135m-instruct": _smollm2}


def resolve_model(config: ModelConfig, folder: Path, seed: int) -> Path:
    """The Hugging Face folder of `config.source`, checked; a model of `BUILT` is built in `folder`.

    Raises: RecipeError naming `model.source` when there is no such model, or it cannot be used.
    """
    path = _find_model(config, folder, seed)
    check_folder(path)
    if config.config:
        check_same(Path(config.config), path)
    return path


def missing_folder(source: str) -> str | None:
    """What to say when `model.source` can only be a folder, and there is none; None otherwise."""
    hub_id = source.count("/") == 1 and not source.startswith((".", "/", "~"))
    if source in BUILT or hub_id or Path(source).expanduser().is_dir():
        return None
    nearest = get_close_matches(source, BUILT, n=1, cutoff=0.5)
    hint = (
        f"did you mean '{nearest[0]}'?"
        if nearest
        else f"or use {', '.join(BUILT)}, or a hub id such as Qwen/Qwen3-0.6B"
    )
    return f"model.source: there is no model folder '{source}'; {hint}"


def _find_model(config: ModelConfig, folder: Path, seed: int) -> Path:
    source = config.source
    if source in BUILT:
        BUILT[source](config, folder, seed)
        return folder
    path = Path(source).expanduser()
    if path.is_dir():
        return path.resolve()
    if problem := missing_folder(source):
        raise RecipeError(problem)
    return _download(source)


def _download(source: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(source, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"])
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise RecipeError(
            f"model.source: neither a folder nor a model that the hub gives: '{source}' ({type(error).__name__})"
        ) from error
