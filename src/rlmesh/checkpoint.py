"""Checkpoints of a run: each is whole or not there, and one that was damaged later is recognised."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import xxhash

from rlmesh.errors import RLMeshError

_CONTENTS = "contents.json"
_BLOCK_BYTES = 1 << 24


class Checkpoints:
    """`checkpoints/step_N/`, the newest named by `checkpoints/latest`.

    Invariant: a folder `step_N` was written aside, is on disk, and says in `contents.json` which files it has, with their
    sizes and checksums, before it gets its name; `latest` names it only then.

    >>> checkpoints = Checkpoints(Path("runs/blackjack/checkpoints"))           # doctest: +SKIP
    >>> async with checkpoints.save(step=50, keep=2) as folder:
    ...     await mesh.trainer.save(str(folder))
    >>> checkpoints.newest_whole(warn=print)
    (50, PosixPath('runs/blackjack/checkpoints/step_50'))
    """

    def __init__(self, root: Path):
        self._root = root

    @asynccontextmanager
    async def save(self, step: int, keep: int) -> AsyncIterator[Path]:
        """A folder to write into; it becomes `step_N` when the block ends without an error, and nothing when with one."""
        async with written_aside(self._root / f"step_{step}") as folder:
            yield folder
        replace_file(self._root / "latest", f"step_{step}\n")
        for _, old in self.all()[:-keep]:
            await asyncio.to_thread(shutil.rmtree, old)

    def all(self) -> list[tuple[int, Path]]:
        """Step and folder of every checkpoint, the oldest first."""
        steps = ((path.name.removeprefix("step_"), path) for path in self._root.glob("step_*") if path.is_dir())
        return sorted((int(step), folder) for step, folder in steps if step.isdecimal())

    def newest_whole(self, warn: Callable[[str], None]) -> tuple[int, Path] | None:
        """Step and folder of the newest checkpoint without damage, None where there is none at all.

        `warn` hears of the damage of newer ones. Raises: RLMeshError when all are damaged: what took days is not begun anew
        without a person who says so.
        """
        damages = []
        for step, folder in reversed(self.all()):
            damage = damage_of(folder)
            if damage is None:
                for text in damages:
                    warn(f"{text}; it is not used")
                return step, folder
            damages.append(f"{folder} is damaged: {damage}")
        if damages:
            raise RLMeshError(f"no checkpoint is whole ({'; '.join(damages)}); to begin anew, remove {self._root}")
        return None

    def set_aside_after(self, step: int) -> None:
        """Give the checkpoints of later steps, which are damaged, other names; remove what was not finished."""
        for number, folder in self.all():
            if number > step:
                shutil.rmtree(aside := folder.with_name(f"damaged_{folder.name}"), ignore_errors=True)
                folder.rename(aside)
        for path in self._root.glob(".step_*.partial"):
            shutil.rmtree(path)


@asynccontextmanager
async def written_aside(folder: Path) -> AsyncIterator[Path]:
    """A folder to write into, which gets its name when the block ends without an error; it replaces an older one then."""
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside.resolve()
        await asyncio.to_thread(_complete, aside, folder)
    except BaseException:  # its space may be what is missing
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _complete(aside: Path, folder: Path) -> None:
    files = sorted(path for path in aside.rglob("*") if path.is_file())
    contents = {str(path.relative_to(aside)): {"bytes": path.stat().st_size, "xxh3": _xxh3(path)} for path in files}
    (aside / _CONTENTS).write_bytes(orjson.dumps(contents, option=orjson.OPT_INDENT_2))
    for path in [*aside.rglob("*"), aside]:  # a rename must never be on disk before what it names
        _sync(path)
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)
    _sync(folder.parent)


def damage_of(folder: Path) -> str | None:
    """Which file of a folder that was `written_aside` is not what was written; None when all are."""
    try:
        contents = orjson.loads((folder / _CONTENTS).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return f"{_CONTENTS} cannot be read"
    if not isinstance(contents, dict):
        return f"{_CONTENTS} is no list of files"
    for name, expected in contents.items():
        path = folder / name
        try:
            found = {"bytes": path.stat().st_size, "xxh3": _xxh3(path)}
        except OSError as error:
            return f"{name}: {error.strerror}"
        if found != expected:
            return f"{name} is not what was written"
    return None


def _xxh3(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, text: str) -> None:
    """Write a file so that at any moment either the old or the new one is there."""
    aside = path.with_name(f".{path.name}.partial")
    aside.write_text(text, encoding="utf-8")
    _sync(aside)
    aside.replace(path)
    _sync(path.parent)
