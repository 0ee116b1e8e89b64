"""Where a step's numbers are written: JSON lines and TensorBoard in the run directory, Weights & Biases and trackio."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import orjson

from rlmesh.errors import RecipeError
from rlmesh.metrics.config import MetricsConfig

Warn = Callable[[str], None]  # takes one sentence for a person

_UPLOAD_LIMIT_S = 60.0  # at the end of a run; what is left is on disk, and `wandb sync` sends it


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

    def __init__(self, tracker: str, warn: Warn, **options: Any):
        self._tracker, self._warn, self._failed = tracker, warn, False
        try:
            self._run = import_module(tracker).init(**options)
        except Exception as error:  # its own kinds: no account, no server
            raise RecipeError(f"metrics.{tracker}: {_first_line(error)}") from error

    def write(self, step: int, metrics: dict[str, float]) -> None:
        self._try(lambda: self._run.log(dict(metrics), step=step))

    def close(self) -> None:
        self._try(self._run.finish)

    def _try(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:
            if not self._failed:
                self._warn(f"metrics.{self._tracker}: {_first_line(error)}; later failures of it are not shown")
            self._failed = True


def make_backends(
    config: MetricsConfig, directory: Path, name: str, recipe: dict[str, Any], warn: Warn
) -> list[Backend]:
    """The backends that the recipe asks for; `name` and `recipe` are what a tracker shows of the run.

    `warn` takes what fails later. Raises: RecipeError that names the tracker that cannot be used.
    """
    backends: list[Backend] = []
    if config.jsonl:
        backends.append(JsonlBackend(directory / "metrics.jsonl"))
    if config.tensorboard:
        backends.append(TensorBoardBackend(directory / "tensorboard"))
    about_run = {"project": config.project, "name": name, "config": recipe}
    if config.wandb:
        # Without a limit it waits for as long as its server is away, and the run does not end.
        limits = {"finish_timeout": _UPLOAD_LIMIT_S, "finish_timeout_raises": True}
        backends.append(TrackerBackend("wandb", warn, dir=directory, settings=limits, **about_run))
    if config.trackio:
        backends.append(TrackerBackend("trackio", warn, auto_log_cpu=False, auto_log_gpu=False, **about_run))
    return backends


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
