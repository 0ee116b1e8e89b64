"""Episodes a second with a policy that answers at once: what environment, workers, reward and buffer can do without a model.

    python benchmarks/episodes.py [--seconds 8] [--workers 1]

BlackJack episodes by the real actors, 1 to 512 at a time; the policy alone is a stand-in. Writes benchmarks/results/episodes.json.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson
import typer
from monarch.actor import Actor, concurrent_endpoint, this_host
from rich.console import Console
from rich.table import Table

from rlmesh import RewardActor, RolloutWorker, load_recipe
from rlmesh.actors.env_host import EnvHost
from rlmesh.actors.replay_buffer import ReplayBuffer
from rlmesh.mesh.service import Service
from rlmesh.models.source import resolve_model
from rlmesh.recipe import Recipe
from rlmesh.rollout.render import Renderer
from rlmesh.rollout.types import Completion, GenerateRequest, Task

ROOT = Path(__file__).parents[1]
AT_A_TIME = (1, 8, 64, 512)
_GROUP = 8
_WARM_UP_S = 2.0
_LIMIT_S = 60.0


class InstantPolicy(Actor):
    """Answers `stand` at once."""

    def __init__(self, answer: list[int]):
        self._completion = Completion(answer, [-0.1] * len(answer), "stop", [0] * len(answer))

    @concurrent_endpoint
    async def generate(self, requests: list[GenerateRequest]) -> list[list[Completion]]:
        return [[self._completion] * request.n for request in requests]


async def start(recipe: Recipe, folder: Path, workers: int) -> tuple[Service, Service]:
    """The actors around a policy, each in a process of its own; handles to the rollout workers and to the buffer."""
    model = resolve_model(recipe.model, folder, 0)
    names = ["policy", "reward", "buffer", "env", *(f"rollout_{i}" for i in range(workers))]
    procs = {name: this_host().spawn_procs({"procs": 1}, name=name) for name in names}

    def service(name: str, cls: type[Actor], *args) -> Service:
        return Service(name, [procs[name].spawn(name, cls, *args)], _LIMIT_S)

    answer = Renderer(model, recipe.rollout.system_prompt).answer("stand")
    policy, reward = service("policy", InstantPolicy, answer), service("reward", RewardActor, recipe.reward)
    env, buffer = (
        service("env", EnvHost, recipe.env, str(folder)),
        service("buffer", ReplayBuffer, recipe.replay_buffer),
    )
    arguments = (recipe.rollout, recipe.env, str(model), recipe.model.max_length, policy, reward)
    actors = [procs[name].spawn(name, RolloutWorker, *arguments) for name in names if name.startswith("rollout")]
    rollout = Service("rollout", actors, _LIMIT_S)
    await reward.setup()
    await rollout.each("setup", [await env.start()])
    return rollout, buffer


async def play(rollout: Service, buffer: Service, at_a_time: int, seconds: float, step: int) -> tuple[float, float]:
    """Episodes a second, and the controller's processor seconds for each, with `at_a_time` of them going on."""
    size = min(_GROUP, at_a_time)
    done, indices, end = 0, iter(range(10**9)), time.monotonic() + _WARM_UP_S + seconds

    async def keep_playing() -> None:
        nonlocal done
        while time.monotonic() < end:
            index = next(indices)
            group, _ = await rollout.run_group(Task(step, index, size, seed=index, shared_seed=index))
            await buffer.put(group)
            done += size

    players = [asyncio.create_task(keep_playing()) for _ in range(at_a_time // size)]
    await asyncio.sleep(_WARM_UP_S)
    before, began, used = done, time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    played, took, used = done - before, time.monotonic() - began, time.process_time() - used
    await asyncio.gather(*players)
    await buffer.take(step, version=0, count=next(indices))
    return played / took, used / max(1, played)


async def measure(seconds: float, workers: int) -> list[dict[str, float]]:
    """A row for each number of episodes at a time."""
    recipe = load_recipe(ROOT / "configs" / "blackjack.yaml", ["env.sessions=512"])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        rollout, buffer = await start(recipe, Path(folder), workers)
        for step, at_a_time in enumerate(AT_A_TIME):
            rate, used = await play(rollout, buffer, at_a_time, seconds, step)
            rows.append({"at_a_time": at_a_time, "episodes_per_s": rate, "controller_cpu_s_per_episode": used})
    return rows


def main(seconds: float = 8.0, workers: int = 1) -> None:
    """Measure, show and write."""
    rows = asyncio.run(measure(seconds, workers))
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:.4g}" for value in row.values()))
    Console().print(table)
    slope = np.polyfit(np.log([row["at_a_time"] for row in rows]), np.log([row["episodes_per_s"] for row in rows]), 1)[
        0
    ]
    print(f"slope (1: ten times the episodes at a time make ten times as many a second; 0: none more): {slope:.2f}")
    result = {"workers": workers, "rows": rows, "log_slope": slope}
    (ROOT / "benchmarks" / "results" / "episodes.json").write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    typer.run(main)
