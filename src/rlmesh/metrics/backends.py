"""Where a step's numbers are written: JSON lines and TensorBoard in the run directory, Weights & Biases and trackio."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import orjson

from rlmesh.errors import RecipeError
from rlmesh.metrics.config import MetricsConfig

log = logging.getLogger(__name__)


class Backend(Protocol):
    """Takes the reduced metrics of one step."""

    def write(self, step: int, metrics: dict[str, float]) -> None: ...
    def close(self) -> None: ...


class JsonlBackend:
    """`metrics.jsonl`: one object a step, on disk before the next step begins. Not-a-number becomes null."""

    def __init__(self, path: Path):
        self._file = path.open("ab")

    def write(self, step: int, metrics: dict[str, float]) -> None:
        self._file.write(orjson.dumps({"step": step, **metrics}, option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardBackend:
    """`tensorboard/`: one scalar a metric."""

    def __init__(self, folder: Path):
        from tensorboard.summary import Writer  # it takes a second to import

        self._writer = Writer(str(folder))

    def write(self, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class TrackerBackend:
    """Weights & Biases, or trackio, which has the same interface. A tracker that fails is a warning; the run goes on."""

    def __init__(self, tracker: str, **options: Any):
        self._tracker, self._failed = tracker, False
        try:
            self._run = import_module(tracker).init(**options)
        except ModuleNotFoundError as error:
            raise RecipeError(f"metrics.{tracker}: the package '{error.name}' is not installed") from error
        except Exception as error:  # its own kinds: no account, no server
            raise RecipeError(f"metrics.{tracker}: {type(error).__name__}: {error}") from error

    def write(self, step: int, metrics: dict[str, float]) -> None:
        self._try(lambda: self._run.log(dict(metrics), step=step))

    def close(self) -> None:
        self._try(self._run.finish)

    def _try(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:
            if not self._failed:
                log.warning("metrics.%s: %s: %s (said once)", self._tracker, type(error).__name__, error)
            self._failed = True


def make_backends(config: MetricsConfig, directory: Path, name: str, recipe: dict[str, Any]) -> list[Backend]:
    """The backends that the recipe asks for; `name` and `recipe` are what a tracker shows of the run.

    Raises: RecipeError that names the tracker that cannot be used.
    """
    backends: list[Backend] = []
    if config.jsonl:
        backends.append(JsonlBackend(directory / "metrics.jsonl"))
    if config.tensorboard:
        backends.append(TensorBoardBackend(directory / "tensorboard"))
    about_run = {"project": config.project, "name": name, "config": recipe}
    if config.wandb:
        backends.append(TrackerBackend("wandb", dir=directory, **about_run))
    if config.trackio:
        backends.append(TrackerBackend("trackio", auto_log_cpu=False, **about_run))
    return backends
