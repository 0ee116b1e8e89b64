"""Weight sync from trainer to policy server, beside the plain copy of the same bytes; for docs/performance.md.

    python benchmarks/weight_sync.py [--rounds 20]

For the tiny model and for SmolLM2-135M (538 MB in float32): publishing, fetching, and how long requests stand still, which is mostly
vLLM's own loading; and TorchStore's own way, one tensor at a time. Writes benchmarks/results/weight_sync.json.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

import orjson
import torch
import torchstore
import typer
from monarch.actor import Actor, endpoint, this_host
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from rlmesh import ActorMesh, load_recipe

ROOT = Path(__file__).parents[1]
RECIPES = {"tiny": "blackjack.yaml", "SmolLM2-135M": "blackjack_smollm2.yaml"}
_WARM_UP = 2


class PerTensor(Actor):
    """TorchStore as it is used without buckets: one call for each tensor."""

    def __init__(self, store: str, folder: str):
        import rlmesh.weights.torchstore_adapter  # noqa: F401  prepares TorchStore for this Monarch

        self._store, self._folder = store, Path(folder)

    @endpoint
    async def put(self, version: int) -> float:
        weights = {
            name: t.float() for file in self._folder.glob("*.safetensors") for name, t in load_file(file).items()
        }
        began = time.perf_counter()
        await torchstore.put_state_dict(weights, f"v{version}", store_name=self._store)
        return time.perf_counter() - began

    @endpoint
    async def get(self, version: int) -> float:
        began = time.perf_counter()
        weights = await torchstore.get_state_dict(f"v{version}", store_name=self._store)
        assert weights
        return time.perf_counter() - began


async def through_buckets(mesh: ActorMesh, rounds: int, probe: bool) -> list[dict[str, float]]:
    """Publish and fetch, again and again, with nothing else to do."""
    found, first = [], max(await mesh.store.versions(), default=-1) + 1
    for version in range(first, first + rounds + _WARM_UP):
        began = time.perf_counter()
        await mesh.trainer.publish(version, probe=probe)
        published = time.perf_counter()
        [fetched] = await mesh.policy.each("fetch", version)
        total = time.perf_counter() - began
        size = (await mesh.store.manifest(version)).size_bytes
        row = {"publish_s": published - began, "publish_to_serving_s": total, "copy_s": copy_s(size), "bytes": size}
        found.append(row | {name: float(value) for name, value in fetched.items()})
    return found[_WARM_UP:]


def copy_s(size: int) -> float:
    """Seconds to copy as many bytes in memory, once, with one thread as the trainer has."""
    torch.set_num_threads(1)
    source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    began = time.perf_counter()
    target.copy_(source)
    return time.perf_counter() - began


async def per_tensor(folder: str, rounds: int) -> list[dict[str, float]]:
    """The same weights by TorchStore's own calls, between two processes."""
    procs = this_host().spawn_procs({"procs": 3}, name="per_tensor")
    await procs.initialized
    store = f"per-tensor-{uuid.uuid4().hex[:8]}"
    await torchstore.initialize(store_name=store, mesh=procs.slice(procs=0))
    writer, reader = (procs.slice(procs=place).spawn(f"actor_{place}", PerTensor, store, folder) for place in (1, 2))
    found = []
    for version in range(rounds + 1):
        found.append({"put_s": await writer.put.call_one(version), "get_s": await reader.get.call_one(version)})
    await procs.stop()
    return found[1:]


async def measure(recipe_name: str, rounds: int) -> dict[str, float]:
    """All of one model, medians."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe(ROOT / "configs" / recipe_name)
        recipe = replace(recipe, run=replace(recipe.run, dir=folder))
        async with ActorMesh(recipe, actors=["policy", "trainer"]) as mesh:
            rows = await mesh.guard(through_buckets(mesh, rounds, probe=True))
            unverified = await mesh.guard(through_buckets(mesh, rounds, probe=False))
            tensors = await per_tensor(mesh.model_path, max(2, rounds // 4))
    median = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    plain = {
        name: statistics.median(row[name] for row in unverified)
        for name in ("publish_s", "publish_to_serving_s", "paused_s")
    }
    return {
        **median,
        **{f"unverified_{name}": value for name, value in plain.items()},
        # Without what vLLM's own loading costs, which is nearly all of the pause.
        "transport_s": plain["publish_to_serving_s"] - plain["paused_s"],
        "transport_copies": (plain["publish_to_serving_s"] - plain["paused_s"]) / median["copy_s"],
        **{f"per_tensor_{name}": statistics.median(row[name] for row in tensors) for name in tensors[0]},
    }


def main(rounds: int = 20) -> None:
    """Measure, show and write."""
    results = {}
    for model, recipe in RECIPES.items():
        results[model] = asyncio.run(measure(recipe, rounds if model == "tiny" else max(3, rounds // 4)))
    table = Table("median", *results)
    for name in results["tiny"]:
        table.add_row(name, *(f"{result[name]:.4g}" for result in results.values()))
    Console().print(table)
    (ROOT / "benchmarks" / "results" / "weight_sync.json").write_bytes(
        orjson.dumps(results, option=orjson.OPT_INDENT_2)
    )


if __name__ == "__main__":
    typer.run(main)
