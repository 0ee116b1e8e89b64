"""Ranks publish what they have; a reader gets the whole."""

import socket
import sys
from pathlib import Path

import pytest
import torch
from monarch.actor import default_bootstrap_cmd, this_host
from spawning import IMPORTABLE

sys.path.insert(0, str(Path(__file__).parent))
from sharded_writer import ShardedWriter, full_state

from rlmesh.weights.config import WeightsConfig
from rlmesh.weights.snapshot import WeightsError
from rlmesh.weights.store import WeightStore

LAYOUTS = {  # replicate, shard, tensor
    "alone": (1, 1, 1),
    "fsdp 2": (1, 2, 1),
    "tp 2": (1, 1, 2),
    "fsdp 4": (1, 4, 1),
    "fsdp 2 x tp 2": (1, 2, 2),
    "hsdp 2 x 2": (2, 2, 1),
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def spawn_writer(layout: str):
    degrees = LAYOUTS[layout]
    env = {**IMPORTABLE, "PYTHONPATH": f"{Path(__file__).parent}:{IMPORTABLE['PYTHONPATH']}"}
    command = default_bootstrap_cmd().with_env(env)
    size = degrees[0] * degrees[1] * degrees[2]
    procs = this_host().spawn_procs({"procs": size}, name="writers", bootstrap_command=command)
    writer = procs.spawn("writer", ShardedWriter)
    await writer.setup.call(free_port(), *degrees)
    return procs, writer


@pytest.mark.parametrize("transport", ["auto", "rdma"])
@pytest.mark.parametrize(
    "layout", [name if name in ("fsdp 2 x tp 2",) else pytest.param(name, marks=pytest.mark.slow) for name in LAYOUTS]
)
async def test_a_reader_gets_whole_tensors_of_any_layout(layout, transport):
    procs, writer = await spawn_writer(layout)
    store = await WeightStore.start(WeightsConfig(transport=transport))
    await writer.publish.call(store, 0)
    manifest = await store.manifest()
    assert len(manifest.parts) == len(procs)
    expected = full_state(0)
    expected["head.weight"] = expected["up.weight"]
    whole = await store.fetch()
    assert whole.keys() == expected.keys()
    assert all(torch.equal(whole[name], expected[name]) for name in whole)
    # Every number once, the tied head's not again, and 64 bytes of alignment for a block.
    numbers = sum(tensor.numel() for name, tensor in expected.items() if name != "head.weight")
    assert manifest.size_bytes <= 4 * numbers + 64 * sum(len(part.boxes) + 1 for part in manifest.parts)
    # And ranks of that layout get their own shards back.
    assert all((await writer.fetch_into.call(store)).values())
    await store.stop()
    await procs.stop()


async def test_a_version_of_which_a_rank_died_is_never_there():
    procs, writer = await spawn_writer("fsdp 2")
    store = await WeightStore.start(WeightsConfig())
    await writer.publish.call(store, 0)
    await writer.slice(procs=0).publish.call(store, 1)  # rank 1 never comes to it
    assert await store.versions() == [0]
    with pytest.raises(WeightsError, match="version 1 is not in the store"):
        await store.fetch(1)
    segments = f"{store._name}-v*"
    assert len(list(Path("/dev/shm").glob(segments))) == 3
    await writer.publish.call(store, 2)  # what was left of version 1 is given up
    assert await store.versions() == [0, 2]
    assert not list(Path("/dev/shm").glob(f"{store._name}-v1-*"))
    await store.stop()
    assert not list(Path("/dev/shm").glob(segments))
    await procs.stop()
