import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from spawning import spawn_proc
from weight_reader import Reader

from rlmesh.actors.service import Replica, Service
from rlmesh.errors import ActorFailure
from rlmesh.segments import own_segment
from rlmesh.weights.config import WeightsConfig
from rlmesh.weights.snapshot import WeightsError, check_bytes
from rlmesh.weights.store import WeightStore
from rlmesh.weights.transport import map_segment


def weights(fill=0.0):
    return {
        "a": torch.arange(12, dtype=torch.float32).reshape(3, 4) + fill,
        "b": torch.full((5,), fill, dtype=torch.bfloat16),
        "scalar": torch.tensor(fill),
        "empty": torch.zeros(0, 4),
    }


@pytest.fixture(scope="session")
async def store_proc():
    """One process for the stores' own actors; a store starts one by itself where it is not given one."""
    procs = spawn_proc("stores")
    await procs.initialized
    yield procs
    await procs.stop()


@pytest.fixture(params=["auto", "auto_across_hosts", "shared_memory", "rdma", "torchstore"])
async def store(request, store_proc):
    transport, _, across_hosts = request.param.partition("_across_")
    store = await WeightStore.start(WeightsConfig(transport=transport), bool(across_hosts), store_proc)
    yield store
    await store.stop()
    assert not list(Path("/dev/shm").glob(f"{store._name}*"))


@pytest.fixture
def reader(proc, store, request):
    name = request.node.name.replace("[", "_").replace("]", "")
    return Service("Reader", [Replica(proc.spawn(f"reader_{name}", Reader))], limit_s=30)


@pytest.fixture
def reader_proc(proc, request):
    name = f"reader_{abs(hash(request.node.name))}"
    return Service("Reader", [Replica(proc.spawn(name, Reader))], limit_s=30)


@pytest.fixture
def writer_proc(reader_proc):
    return reader_proc


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
    with pytest.raises(WeightsError, match="'nobody' acknowledges version 0, but did not register"):
        await store.acknowledge("nobody", 0)


async def test_a_version_is_published_once(store):
    await store.publish(0, weights())
    with pytest.raises(WeightsError, match="version 0 was published already"):
        await store.publish(0, weights(1.0))


async def test_bytes_that_changed_are_refused(store, reader):
    await store.publish(0, weights(1.0))
    [part] = (await store.manifest(0)).parts
    if not part.location.path:
        pytest.skip("the memory of another process cannot be reached from here")
    with open(part.location.path, "r+b") as segment:
        segment.write(b"\xff")
    with pytest.raises(ActorFailure, match="version 0 does not have the checksum"):
        await reader.fetch(store, 0)


async def test_a_late_reader_gets_the_newest_version(store, reader):
    with pytest.raises(ActorFailure, match="nothing has been published yet"):
        await reader.fetch(store, None)
    await store.register("early")
    for version in range(3):
        await store.publish(version, weights(version))
        await store.acknowledge("early", version)
    assert same(await reader.fetch(store, None), weights(2))


async def test_a_reader_that_is_gone_keeps_nothing(store):
    await store.register("gone")
    await store.register("here")
    for version in range(3):
        await store.publish(version, weights(version))
    await store.acknowledge("here", 2)
    assert await store.versions() == [0, 1, 2]
    await store.unregister("gone")
    assert await store.versions() == [2]
    await store.unregister("here")
    assert await store.versions() == [2]  # the newest one stays for whoever comes


async def test_what_is_dropped_is_not_kept_in_memory(store):
    await store.register("only")
    for version in range(4):
        await store.publish(version, weights(version))
        await store.acknowledge("only", version)
    assert len(list(Path("/dev/shm").glob(f"{store._name}-v*"))) <= 2  # the newest, and one to write the next into
    transport = getattr(store.transport, "_rdma", None) or store.transport
    assert len(getattr(transport, "_offered", ())) <= 2  # the newest, and the one before until the next publish


async def test_memory_that_nobody_needs_is_written_again_and_a_late_reader_never_sees_the_mixture():
    store = await WeightStore.start(WeightsConfig(transport="shared_memory"))
    await store.register("only")
    files = []
    for version in range(5):
        await store.publish(version, weights(version))
        files.append(os.stat((await store.manifest(version)).parts[0].location.path).st_ino)
        if version == 0:
            late = await store.manifest(0)
            mapped = await store._read(late)
        await store.acknowledge("only", version)
        assert same(await store.fetch(version), weights(version))
    assert len(set(files)) == 2 and files[2] == files[0]
    with pytest.raises(
        WeightsError, match="does not have the checksum"
    ):  # what a reader had before it was written over
        check_bytes(late, mapped)
    with pytest.raises(WeightsError, match="is not there any more"):
        await store._read(late)
    await store.publish(5, {"a": torch.zeros(10**6)})  # another size: the memory of the old one goes
    await store.acknowledge("only", 5)
    await store.publish(6, {"a": torch.zeros(10**6)})
    await store.acknowledge("only", 6)
    assert len(list(Path("/dev/shm").glob(f"{store._name}-v*"))) == 2
    await store.stop()
    assert not list(Path("/dev/shm").glob(f"{store._name}*"))


async def test_the_probe_travels_with_the_manifest(store, reader):
    probe = {"tokens": [1, 2], "logprobs": [-0.5], "dtype": "float32"}
    await store.publish(0, weights(), probe)
    assert (await store.manifest()).probe == probe


async def test_a_writer_that_fails_half_way_publishes_nothing(store):
    with pytest.raises(NotImplementedError):  # the second tensor has no bytes to copy
        await store.publish(0, weights() | {"b": torch.empty(5, device="meta")})
    assert await store.versions() == []
    assert not list(Path("/dev/shm").glob(f"{store._name}-v*"))
    await store.publish(0, weights())
    assert await store.versions() == [0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
async def test_numbers_travel_in_the_type_that_is_asked_for(reader_proc, dtype):
    store = await WeightStore.start(WeightsConfig(transfer_dtype=dtype))
    state = {"a": torch.randn(7, 3), "count": torch.arange(3), "b": torch.randn(4).bfloat16()}
    await store.publish(0, state)
    fetched = await reader_proc.fetch(store, 0)
    target = getattr(torch, dtype)
    assert fetched["a"].dtype == fetched["b"].dtype == target
    assert torch.equal(fetched["a"], state["a"].to(target))
    assert torch.equal(fetched["b"], state["b"].to(target))
    assert torch.equal(fetched["count"], state["count"])
    assert (await store.manifest()).dtypes == {dtype, "int64"}
    await store.stop()


async def test_one_tensor_under_two_names_travels_once(reader_proc):
    store = await WeightStore.start(WeightsConfig())
    embedding = torch.randn(1000, 8)
    await store.publish(0, {"embed": embedding, "head": embedding, "head_cut": embedding[:500]})
    assert (await store.manifest()).size_bytes < 1.6 * embedding.numel() * 4
    fetched = await reader_proc.fetch(store, 0)
    assert torch.equal(fetched["embed"], embedding)
    assert torch.equal(fetched["head"], embedding)
    assert torch.equal(fetched["head_cut"], embedding[:500])
    await store.stop()


async def test_a_reader_on_another_host_reads_from_the_writers_memory(writer_proc, monkeypatch):
    """This process stands for the other host: it may not look into shared memory, and reads over RDMA what another wrote."""
    store = await WeightStore.start(WeightsConfig(), across_hosts=True)
    await writer_proc.publish(store, 0, weights(1.5))
    monkeypatch.setattr("rlmesh.weights.transport.host_identity", lambda: "elsewhere")
    monkeypatch.setattr("rlmesh.weights.store.host_identity", lambda: "elsewhere")
    monkeypatch.setattr("rlmesh.weights.transport.SharedMemory.read", None)
    assert same(await store.fetch(), weights(1.5))
    async with store.on_this_host(await store.manifest()) as [path]:
        assert Path(path).name.startswith("rlmesh-")
        assert Path(path).stat().st_size == (await store.manifest()).size_bytes
    assert not Path(path).exists()
    monkeypatch.undo()
    await store.stop()


async def test_shared_memory_of_another_host_is_refused(writer_proc, monkeypatch):
    store = await WeightStore.start(WeightsConfig(transport="shared_memory"))
    await writer_proc.publish(store, 0, weights())
    monkeypatch.setattr("rlmesh.weights.transport.host_identity", lambda: "elsewhere")
    with pytest.raises(WeightsError, match=r"weights\.transport: the bytes are in the shared memory of another host"):
        await store.fetch()
    monkeypatch.undo()
    await store.stop()


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


async def test_a_segment_is_nobody_elses_to_read():
    path = own_segment()
    map_segment(path, 8, create=True)
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()


async def test_a_segment_that_does_not_fit_is_refused_and_leaves_nothing():
    path = own_segment()
    with pytest.raises(WeightsError, match="no room for 1,000,000,000,000,000 bytes"):
        map_segment(path, 10**15, create=True)
    assert not path.exists()
