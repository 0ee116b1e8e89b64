"""The run directory: everything a run leaves behind, and that no two runs share one."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import orjson

from rlmesh.checkpoint import Checkpoints, damage_of, replace_file, written_aside
from rlmesh.errors import RecipeError, RLMeshError
from rlmesh.recipe import Recipe, load_recipe, recipe_yaml
from rlmesh.rollout.types import Group

_LAST_LINES, _LAST_BYTES = 10, 4096
_FRAME = ("Traceback (most recent call last)", 'File "', "^^^")


class RunDirectory:
    """`recipe.yaml`, `metrics.jsonl`, `events.jsonl`, `tensorboard/`, `logs/`, `rollouts/`, `checkpoints/`, `reference/`, `eval/` and `plots/`.

    Invariants: a directory that holds a run is never silently used again, and two processes never use one at the same
    time.

    >>> directory = RunDirectory(Path("runs/blackjack"))                    # doctest: +SKIP
    >>> directory.begin(recipe)
    >>> async with directory.checkpoints.save(step=50, keep=2) as folder:
    ...     await mesh.trainer.save(str(folder))

    Raises: RLMeshError that names the directory.
    """

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        self.reference = path / "reference"
        self._lock: int | None = None
        self._before: set[str] = set()  # names of what was there before the run began

    def begin(self, recipe: Recipe) -> None:
        """Take the directory for a new run and save the resolved recipe in it."""
        try:
            self._before = {path.name for path in self.path.iterdir()} if self.path.exists() else set()
            for name in ("logs", "rollouts", "checkpoints", "eval", "plots"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
            self._take()
            if (self.path / "recipe.yaml").exists():
                self.close()
                raise RLMeshError(
                    f"run.dir: {self.path} holds a run already; go on with it (--resume), choose another run.name or run.dir, or remove it"
                )
            replace_file(self.path / "recipe.yaml", recipe_yaml(recipe))
        except (
            OSError,
            ValueError,
        ) as error:  # a path of the file system's own rules: its rights, its lengths, its letters
            self.close()
            raise RLMeshError(f"run.dir: cannot write {self.path}: {error}") from error

    def forget(self) -> None:
        """Let another run begin here: this one came to nothing. Its logs stay, and all that was there before it."""
        for name in {"recipe.yaml", "metrics.jsonl", "events.jsonl"} - self._before:
            (self.path / name).unlink(missing_ok=True)
        for name in {"tensorboard", "rollouts", "checkpoints", "reference", "eval", "plots"} - self._before:
            shutil.rmtree(self.path / name, ignore_errors=True)

    def resume(self, recipe: Recipe, warn: Callable[[str], None]) -> tuple[int, Path] | None:
        """Take the directory to go on with its run; step and folder of the checkpoint to go on from, None to begin.

        The newest checkpoint that is whole is taken; `warn` hears of those that are not. What the run wrote after that
        checkpoint is dropped, because its steps are made again. The recipe may differ from the saved one, which it replaces,
        in all but the model and the seed.
        """
        if not (self.path / "recipe.yaml").exists():
            self.begin(recipe)
            return None
        self._take()
        self._before = {path.name for path in self.path.iterdir()}
        try:
            self._check_same(recipe)
            found = self.checkpoints.newest_whole(warn)
            if found and found[0] > recipe.run.steps:
                raise RecipeError(
                    f"run.steps: {self.path} has a checkpoint of step {found[0]}, after {recipe.run.steps}"
                )
            self._drop_from(found[0] if found else 0)
            replace_file(self.path / "recipe.yaml", recipe_yaml(recipe))
        except BaseException:
            self.close()
            raise
        return found

    def go_back(self, warn: Callable[[str], None]) -> tuple[int, Path] | None:
        """As `resume`, for the process that has the directory already."""
        found = self.checkpoints.newest_whole(warn)
        self._drop_from(found[0] if found else 0)
        return found

    def _check_same(self, recipe: Recipe) -> None:
        saved = load_recipe(self.path / "recipe.yaml")
        for key, before, now in (("model", saved.model, recipe.model), ("run.seed", saved.run.seed, recipe.run.seed)):
            if before != now:
                raise RecipeError(f"{key}: it is not what {self.path} was begun with, and a resumed run has to keep it")

    def save_reference(self) -> AbstractAsyncContextManager[Path]:
        """A folder to write the reference model's weights into, when they are not those that the run's model began with."""
        return written_aside(self.reference)

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

    def write_event(self, event: str, **details: Any) -> None:
        """One line of `events.jsonl`: what happened, when (seconds since 1970), and what else is known of it."""
        with (self.path / "events.jsonl").open("ab") as file:
            file.write(orjson.dumps({"time": time.time(), "event": event, **details}, option=orjson.OPT_APPEND_NEWLINE))

    def last_words(self, actor: str) -> str:
        """The last lines of an actor's log but for frames of tracebacks, '' when there are none."""
        path = self.path / "logs" / f"{actor}.log"
        if not actor or not path.exists():
            return ""
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _LAST_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        told = [line for line in lines if not any(mark in line for mark in _FRAME)]
        return "".join(f"\n  {line}" for line in told[-_LAST_LINES:])

    def write_mismatch(self, step: int, tokens: Iterable[Mapping]) -> Path:
        """`mismatch/step_N.jsonl`: one line for each token on which policy server and trainer disagree."""
        path = self.path / "mismatch" / f"step_{step}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(orjson.dumps(token, option=orjson.OPT_APPEND_NEWLINE) for token in tokens))
        return path

    def model(self, step: int | None = None) -> Path:
        """A checkpoint's model, an ordinary Hugging Face folder; the newest one by default."""
        self.require_run()
        available = dict(self.checkpoints.all())
        if not available:
            raise RLMeshError(f"{self.path} has no checkpoint yet")
        step = max(available) if step is None else step
        if step not in available:
            raise RLMeshError(f"{self.path} has no checkpoint of step {step}; it has {', '.join(map(str, available))}")
        if damage := damage_of(available[step]):
            raise RLMeshError(f"{available[step]} is damaged: {damage}")
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
        if step == 0:
            shutil.rmtree(self.reference, ignore_errors=True)
        metrics = self.path / "metrics.jsonl"
        if metrics.exists():
            lines = metrics.read_bytes().splitlines(keepends=True)
            whole = (line for line in lines if line.endswith(b"\n"))
            replace_file(metrics, b"".join(line for line in whole if orjson.loads(line)["step"] < step).decode())
        for path in (self.path / "rollouts").glob("step_*.jsonl"):
            if int(path.stem.removeprefix("step_")) >= step:
                path.unlink()
        self.checkpoints.set_aside_after(step)


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
