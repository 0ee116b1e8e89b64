"""Episodes a second with a policy that answers at once: what the controller, the workers and the buffer can do.

    python benchmarks/episodes.py [--seconds 8]

RolloutWorker, RewardActor, ReplayBuffer and the environment server are those of a run (benchmarks/throughput.yaml: one turn of 32
tokens); 1, 8, 64 and 512 episodes go on at the same time. Prints a table and writes benchmarks/results/episodes.json.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import typer
from blackjack import processor_seconds
from char_model import build_char_model
from instant_policy import InstantMesh
from rich.console import Console
from rich.table import Table

from rlmesh.recipe import Recipe, load_recipe
from rlmesh.rollout.types import Task
from rlmesh.seeds import fan_out
from rlmesh.tasks import together

HERE = Path(__file__).parent
_CONCURRENT = (1, 8, 64, 512)
_GROUP_SIZE = 8
_ACTORS = ["policy", "replay_buffer", "reward", "rollout", "env"]


class Wave:
    """Keeps a number of episodes going, and takes them from the buffer as a trainer does: one step's groups at a time."""

    def __init__(self, mesh: InstantMesh, concurrent: int, first_step: int):
        self._mesh, self._step = mesh, first_step
        # Two steps go on at the same time, so that new groups begin while the last of the step before end.
        self._steps = min(2, concurrent)
        self._size = min(_GROUP_SIZE, concurrent // self._steps)
        self._groups = concurrent // self._steps // self._size

    async def play(self, seconds: float) -> tuple[int, int]:
        """Returns the episodes that were made and the step to go on from."""
        first, deadline = self._step, time.monotonic() + seconds
        going = [self._start() for _ in range(self._steps)]
        while going:
            step = self._step - len(going)
            await going.pop(0)
            await self._mesh.replay_buffer.take(step, version=0, count=self._groups)
            if time.monotonic() < deadline:
                going.append(self._start())
        return (self._step - first) * self._groups * self._size, self._step

    def _start(self) -> asyncio.Task:
        self._step += 1
        return asyncio.create_task(self._play_step(self._step - 1))

    async def _play_step(self, step: int) -> None:
        await together(*[self._play_group(step, index) for index in range(self._groups)])

    async def _play_group(self, step: int, index: int) -> None:
        seeds = [fan_out(0, name, step, index) for name in ("group", "task")]
        group, _ = await self._mesh.rollout.run_group(Task(step, index, self._size, *seeds))
        await self._mesh.replay_buffer.put(group)


async def measure(recipe: Recipe, seconds: float) -> list[dict[str, Any]]:
    """A row for each number of episodes at the same time."""
    rows, step, me = [], 0, psutil.Process()
    async with InstantMesh(recipe, actors=_ACTORS) as mesh:
        for concurrent in _CONCURRENT:
            _, step = await mesh.guard(Wave(mesh, concurrent, step).play(seconds / 4))  # sessions open, caches fill
            before, began = processor_seconds(me), time.monotonic()
            episodes, step = await mesh.guard(Wave(mesh, concurrent, step).play(seconds))
            elapsed, used = time.monotonic() - began, processor_seconds(me)
            rows.append(_row(concurrent, episodes, elapsed, used - before, rows))
    return rows


def _row(
    concurrent: int, episodes: int, elapsed: float, used: Counter[str], before: list[dict[str, Any]]
) -> dict[str, Any]:
    """`slope`: 1 where twice the episodes at the same time are twice as many a second, 0 where they are as many."""
    rate, slope = episodes / elapsed, None
    if before:
        last = before[-1]
        slope = math.log(rate / last["episodes_per_s"]) / math.log(concurrent / last["concurrent"])
    names = {"PolicyServer": "instant policy", "other": "controller"}
    milliseconds = {names.get(name, name): 1000 * seconds / episodes for name, seconds in used.most_common()}
    return {"concurrent": concurrent, "episodes_per_s": rate, "slope": slope, "cpu_ms_per_episode": milliseconds}


def show(rows: list[dict[str, Any]]) -> None:
    """The table; the last columns are processor milliseconds an episode, by process."""
    processes = list(rows[-1]["cpu_ms_per_episode"])
    table = Table("at the same time", "episodes/s", "slope", "CPU ms", *processes, title=f"{os.cpu_count()} cores")
    for row in rows:
        used = row["cpu_ms_per_episode"]
        slope = "" if row["slope"] is None else f"{row['slope']:.2f}"
        numbers = [f"{used.get(name, 0.0):.2f}" for name in processes]
        total = f"{sum(used.values()):.2f}"
        table.add_row(str(row["concurrent"]), f"{row['episodes_per_s']:.0f}", slope, total, *numbers)
    Console(width=160).print(table)


def main(seconds: float = 8.0, out: Path = HERE / "results" / "episodes.json") -> None:
    """Run, show and write."""
    with tempfile.TemporaryDirectory() as folder:
        build_char_model(Path(folder) / "model")
        overrides = [f"model.source={folder}/model", f"run.dir={folder}/run", "env.sessions=512"]
        rows = asyncio.run(measure(load_recipe(HERE / "throughput.yaml", overrides), seconds))
    show(rows)
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(typer.run(main))
