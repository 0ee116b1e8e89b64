"""Where a step's numbers are written: JSON lines and TensorBoard, in the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import orjson

from rlmesh.metrics.config import MetricsConfig


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


def make_backends(config: MetricsConfig, directory: Path) -> list[Backend]:
    """The backends that the recipe asks for."""
    backends: list[Backend] = []
    if config.jsonl:
        backends.append(JsonlBackend(directory / "metrics.jsonl"))
    if config.tensorboard:
        backends.append(TensorBoardBackend(directory / "tensorboard"))
    return backends
