"""The run directory: everything a run leaves behind, and that no two runs share one."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from rlmesh.errors import RLMeshError
from rlmesh.recipe import Recipe, recipe_yaml
from rlmesh.rollout.types import Group


class RunDirectory:
    """`recipe.yaml`, `metrics.jsonl`, `tensorboard/`, `logs/`, `rollouts/`, `checkpoints/`, `eval/` and `plots/`.

    Invariants: a directory that holds a run is never silently used again, and two processes never use one at the same
    time; a checkpoint is whole or not there: it is written aside, renamed, and only then named by `checkpoints/latest`.

    >>> directory = RunDirectory(Path("runs/blackjack"))                    # doctest: +SKIP
    >>> directory.begin(recipe)
    >>> with directory.checkpoint(step=50, keep=2) as folder:
    ...     await mesh.trainer.save(str(folder))

    Raises: RLMeshError that names the directory.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock: int | None = None

    def begin(self, recipe: Recipe) -> None:
        """Take the directory for a new run and save the resolved recipe in it."""
        if (self.path / "recipe.yaml").exists():
            raise RLMeshError(
                f"run.dir: {self.path} holds a run already; choose another run.name or run.dir, or remove it"
            )
        for name in ("logs", "rollouts", "checkpoints", "eval", "plots"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RLMeshError(f"run.dir: another process is using {self.path}") from None
        (self.path / "recipe.yaml").write_text(recipe_yaml(recipe))

    def write_rollouts(self, step: int, groups: Iterable[Group]) -> None:
        """`rollouts/step_N.jsonl`: one line an episode."""
        lines = b"".join(
            orjson.dumps(_episode_record(group, index), option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
            for group in groups
            for index in range(len(group.episodes))
        )
        (self.path / "rollouts" / f"step_{step}.jsonl").write_bytes(lines)

    @contextmanager
    def checkpoint(self, step: int, keep: int) -> Iterator[Path]:
        """A folder to write a checkpoint into; it becomes `checkpoints/step_N` when the block ends without an error."""
        root = self.path / "checkpoints"
        aside = root / f".step_{step}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        yield aside.resolve()
        _sync(aside)
        aside.rename(root / f"step_{step}")
        _replace(root / "latest", f"step_{step}\n")
        for _, old in self.checkpoints()[:-keep]:
            shutil.rmtree(old)

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Step and folder of every whole checkpoint, the oldest first."""
        found = (self.path / "checkpoints").glob("step_*")
        return sorted((int(folder.name.removeprefix("step_")), folder) for folder in found if folder.is_dir())

    def export(self, out: Path, step: int | None = None) -> int:
        """Copy a checkpoint's model, an ordinary Hugging Face folder, to `out`; the newest one by default. Returns its step."""
        if not (self.path / "recipe.yaml").exists():
            raise RLMeshError(f"{self.path} is not a run directory (it has no recipe.yaml)")
        available = dict(self.checkpoints())
        if not available:
            raise RLMeshError(f"{self.path} has no checkpoint yet")
        step = max(available) if step is None else step
        if step not in available:
            raise RLMeshError(f"{self.path} has no checkpoint of step {step}; it has {', '.join(map(str, available))}")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RLMeshError(f"{out} is not empty, and nothing is overwritten")
        aside = out.with_name(f".{out.name}.partial")
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(available[step] / "model", aside)
        aside.replace(out)
        return step

    def close(self) -> None:
        """Give the directory free for other processes."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _episode_record(group: Group, index: int) -> dict:
    episode = group.episodes[index]
    return {
        "group": group.task.index,
        "episode": episode.index,
        "id": episode.id,
        "outcome": episode.outcome,
        "truncated": episode.truncated,
        "reward": episode.reward,
        "advantage": episode.advantage,
        "turns": [
            {
                "observation": turn.observation,
                "action": turn.action,
                "reward": turn.reward,
                "tokens": turn.completion.tokens,
                "logprobs": turn.completion.logprobs,
                "versions": [turn.completion.min_version, turn.completion.max_version],
                "finish_reason": turn.completion.finish_reason,
            }
            for turn in episode.turns
        ],
        "metadata": episode.metadata,
    }


def _sync(folder: Path) -> None:
    """Every file and folder below is on disk: a rename must never be seen before what it names."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _replace(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.partial")
    aside.write_text(text)
    aside.replace(path)
