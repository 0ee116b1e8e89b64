"""The run directory: everything a run leaves behind, and that no two runs share one."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import orjson

from rlmesh.errors import RecipeError, RLMeshError
from rlmesh.recipe import Recipe, load_recipe, recipe_yaml
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
        try:
            for name in ("logs", "rollouts", "checkpoints", "eval", "plots"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
            self._take()
            if (self.path / "recipe.yaml").exists():
                self.close()
                raise RLMeshError(
                    f"run.dir: {self.path} holds a run already; choose another run.name or run.dir, or remove it"
                )
            _replace(self.path / "recipe.yaml", recipe_yaml(recipe))
        except (
            OSError,
            ValueError,
        ) as error:  # a path of the file system's own rules: its rights, its lengths, its letters
            self.close()
            raise RLMeshError(f"run.dir: cannot write {self.path}: {error}") from error

    def forget(self) -> None:
        """Let another run begin here: this one came to nothing. Its logs stay."""
        (self.path / "recipe.yaml").unlink()

    def resume(self, recipe: Recipe) -> tuple[int, Path]:
        """Take the directory to go on with its run; step and folder of the checkpoint to go on from.

        What the run wrote after that checkpoint is dropped, because its steps are made again. The recipe may differ from the
        saved one, which it replaces, in all but the model and the seed.
        """
        self.require_run()
        saved = load_recipe(self.path / "recipe.yaml")
        self._take()
        for key, before, now in (("model", saved.model, recipe.model), ("run.seed", saved.run.seed, recipe.run.seed)):
            if before != now:
                self.close()
                raise RecipeError(f"{key}: it is not what {self.path} was begun with, and a resumed run has to keep it")
        if not self.checkpoints():
            self.close()
            raise RLMeshError(f"{self.path} has no checkpoint to go on from; remove it and begin again")
        step, folder = self.checkpoints()[-1]
        self._drop_from(step)
        _replace(self.path / "recipe.yaml", recipe_yaml(recipe))
        return step, folder

    def write_rollouts(self, step: int, groups: Iterable[Group]) -> None:
        """`rollouts/step_N.jsonl`: one line an episode."""
        lines = b"".join(
            orjson.dumps(_episode_record(group, index), option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
            for group in groups
            for index in range(len(group.episodes))
        )
        path = self.path / "rollouts" / f"step_{step}.jsonl"
        aside = path.with_name(f".{path.name}.partial")  # nobody reads half a file
        aside.write_bytes(lines)
        aside.replace(path)

    def write_mismatch(self, step: int, tokens: Iterable[Mapping]) -> Path:
        """`mismatch/step_N.jsonl`: one line for each token on which policy server and trainer disagree."""
        path = self.path / "mismatch" / f"step_{step}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(orjson.dumps(token, option=orjson.OPT_APPEND_NEWLINE) for token in tokens))
        return path

    @contextmanager
    def checkpoint(self, step: int, keep: int) -> Iterator[Path]:
        """A folder to write a checkpoint into; it becomes `checkpoints/step_N` when the block ends without an error."""
        root = self.path / "checkpoints"
        aside = root / f".step_{step}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        yield aside.resolve()
        for path in [*aside.rglob("*"), aside]:  # a rename must never be on disk before what it names
            _sync(path)
        aside.rename(root / f"step_{step}")
        _sync(root)
        _replace(root / "latest", f"step_{step}\n")
        for _, old in self.checkpoints()[:-keep]:
            shutil.rmtree(old)

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Step and folder of every whole checkpoint, the oldest first."""
        found = (self.path / "checkpoints").glob("step_*")
        steps = ((folder.name.removeprefix("step_"), folder) for folder in found if folder.is_dir())
        return sorted((int(step), folder) for step, folder in steps if step.isdecimal())

    def model(self, step: int | None = None) -> Path:
        """A checkpoint's model, an ordinary Hugging Face folder; the newest one by default."""
        self.require_run()
        available = dict(self.checkpoints())
        if not available:
            raise RLMeshError(f"{self.path} has no checkpoint yet")
        step = max(available) if step is None else step
        if step not in available:
            raise RLMeshError(f"{self.path} has no checkpoint of step {step}; it has {', '.join(map(str, available))}")
        return available[step] / "model"

    def export(self, out: Path, step: int | None = None) -> int:
        """Copy a checkpoint's model to `out`, the newest one by default. Returns its step."""
        out, model = out.resolve(), self.model(step)
        if out.is_relative_to((self.path / "checkpoints").resolve()):
            raise RLMeshError(f"{out} is inside of the run's own checkpoints; export to another place")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RLMeshError(f"{out} is not empty, and nothing is overwritten")
        aside = out.with_name(f".{out.name}.partial")
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(model, aside)
        aside.replace(out)
        return int(model.parent.name.removeprefix("step_"))

    def close(self) -> None:
        """Give the directory free for other processes."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def require_run(self) -> None:
        """Raises: RLMeshError when there is no run here."""
        if not (self.path / "recipe.yaml").exists():
            raise RLMeshError(f"{self.path} is not a run directory (it has no recipe.yaml)")

    def _take(self) -> None:
        lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise RLMeshError(f"run.dir: another process is using {self.path}") from None
        os.truncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        self._lock = lock

    def user(self) -> int | None:
        """Process id of the run that is using the directory; None when none is."""
        self.require_run()
        path = self.path / ".lock"
        if not path.exists():  # a copy of a run
            return None
        with path.open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read())
        return None

    def _drop_from(self, step: int) -> None:
        """Remove what step `step` and later ones wrote, and what is left of a checkpoint that was not finished."""
        metrics = self.path / "metrics.jsonl"
        if metrics.exists():
            lines = metrics.read_bytes().splitlines(keepends=True)
            whole = (line for line in lines if line.endswith(b"\n"))
            _replace(metrics, b"".join(line for line in whole if orjson.loads(line)["step"] < step).decode())
        for path in (self.path / "rollouts").glob("step_*.jsonl"):
            if int(path.stem.removeprefix("step_")) >= step:
                path.unlink()
        for path in (self.path / "checkpoints").glob(".step_*.partial"):
            shutil.rmtree(path)


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
                "prompt": turn.prompt,
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


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.partial")
    aside.write_text(text, encoding="utf-8")
    _sync(aside)
    aside.replace(path)
    _sync(path.parent)
