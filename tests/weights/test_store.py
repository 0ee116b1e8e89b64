import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from monarch.actor import ActorError
from weight_reader import Reader

from rlmesh.errors import ActorFailure
from rlmesh.mesh.service import Service
from rlmesh.segments import own_segment
from rlmesh.weights.config import WeightsConfig
from rlmesh.weights.snapshot import WeightsError
from rlmesh.weights.store import WeightStore
from rlmesh.weights.transport import map_segment


def weights(fill=0.0):
    return {
        "a": torch.arange(12, dtype=torch.float32).reshape(3, 4) + fill,
        "b": torch.full((5,), fill, dtype=torch.bfloat16),
        "scalar": torch.tensor(fill),
        "empty": torch.zeros(0, 4),
    }


@pytest.fixture(params=["auto", "torchstore"])
async def store(request):
    store = await WeightStore.start(WeightsConfig(transport=request.param))
    yield store
    await store.stop()
    assert not list(Path("/dev/shm").glob(f"{store._name}*"))


@pytest.fixture
def reader(proc, store, request):
    name = request.node.name.replace("[", "_").replace("]", "")
    return Service("Reader", [proc.spawn(f"reader_{name}", Reader)], limit_s=30)


def same(left, right):
    return left.keys() == right.keys() and all(
        torch.equal(left[n], right[n]) and left[n].dtype == right[n].dtype for n in left
    )


async def test_another_process_gets_what_was_published(store, reader):
    await store.publish(0, weights(1.5))
    assert same(await reader.fetch(store, 0), weights(1.5))


async def test_a_snapshot_does_not_change_with_the_tensors(store, reader):
    state = weights(1.0)
    await store.publish(0, state)
    state["a"].zero_()  # the optimizer's next step
    assert same(await reader.fetch(store, 0), weights(1.0))


async def test_what_was_fetched_outlives_the_version(store):
    await store.publish(0, weights(1.0))
    fetched = await store.fetch(0)
    await store.publish(1, weights(2.0))
    await store.register("only")
    await store.acknowledge("only", 1)
    assert same(fetched, weights(1.0))


async def test_a_version_is_dropped_after_every_reader_went_past_it(store, reader):
    await store.register("fast")
    await store.register("slow")
    for version in range(3):
        await store.publish(version, weights(version))
    await store.acknowledge("fast", 2)
    assert await store.versions() == [0, 1, 2]
    await store.acknowledge("slow", 1)
    assert await store.versions() == [1, 2]
    with pytest.raises(ActorFailure, match="version 0 is not in the store"):
        await reader.fetch(store, 0)
    await store.register("slow")  # it died and starts again
    await store.acknowledge("fast", 2)
    assert await store.versions() == [1, 2]
    await store.acknowledge("slow", 2)
    assert await store.versions() == [2]
    assert same(await reader.fetch(store, 2), weights(2))


async def test_readers_that_acknowledge_at_the_same_time(store):
    names = [f"reader_{i}" for i in range(8)]
    await asyncio.gather(*[store.register(name) for name in names])
    for version in range(3):
        await store.publish(version, weights(version))
    await asyncio.gather(*[store.acknowledge(name, 2) for name in names])
    assert await store.versions() == [2]


async def test_an_unknown_reader_is_named(store):
    with pytest.raises(ActorError, match="'nobody' acknowledges version 0, but did not register"):
        await store.acknowledge("nobody", 0)


async def test_a_version_is_published_once(store):
    await store.publish(0, weights())
    with pytest.raises(WeightsError, match="version 0 was published already"):
        await store.publish(0, weights(1.0))


async def test_bytes_that_changed_are_refused(store, reader):
    manifest = await store.publish(0, weights(1.0))
    if not manifest.location.startswith("/dev/shm"):
        pytest.skip("TorchStore's own memory cannot be reached from here")
    with open(manifest.location, "r+b") as segment:
        segment.write(b"\xff")
    with pytest.raises(ActorFailure, match="version 0 does not have the checksum"):
        await reader.fetch(store, 0)


async def test_a_writer_that_dies_half_way_publishes_nothing(store):
    with pytest.raises(KeyError):
        await store.publish(0, Broken(weights()))
    assert await store.versions() == []


class Broken(dict):
    """A state dict that fails when its second tensor is read for copying."""

    def __getitem__(self, name):
        if name == "b":
            raise KeyError(name)
        return super().__getitem__(name)


async def test_two_stores_do_not_meet(store):
    other = await WeightStore.start(WeightsConfig())
    await other.publish(0, weights(9.0))
    assert await store.versions() == []
    await other.stop()


async def test_segments_of_runs_that_were_killed_are_swept():
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    alive = own_segment()
    left = Path(str(alive).replace(f"-{os.getpid()}-", f"-{ended.stdout.strip()}-"))
    for path in (left, alive):
        path.write_bytes(b"x")
    store = await WeightStore.start(WeightsConfig())
    assert not left.exists()
    assert alive.exists()
    alive.unlink()
    await store.stop()


async def test_a_segment_that_does_not_fit_is_refused_and_leaves_nothing():
    path = own_segment()
    with pytest.raises(WeightsError, match="no room for 1,000,000,000,000,000 bytes"):
        map_segment(path, 10**15, create=True)
    assert not path.exists()
