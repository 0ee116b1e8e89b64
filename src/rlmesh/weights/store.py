"""Publishing and fetching versions of a model's weights."""

from __future__ import annotations

import uuid
from pathlib import Path

import torch
import torchstore
from monarch._src.actor.actor_mesh import ActorMesh
from monarch.actor import this_proc

import rlmesh.weights.torchstore_adapter  # noqa: F401  must be there before a store is used, in every process
from rlmesh.segments import SEGMENTS, own_prefix, sweep_segments
from rlmesh.weights.config import WeightsConfig
from rlmesh.weights.readers import ReaderLedger
from rlmesh.weights.snapshot import Manifest, WeightsError, checksum, plan_entries, read_tensors, write_tensors
from rlmesh.weights.transport import SharedMemoryTransport, TorchStoreTransport, Transport, map_segment


class WeightStore:
    """A picklable handle to the weights that a run publishes; any actor may hold one.

    Invariants: a published version is a snapshot that nothing changes any more, complete or not there at all (its manifest
    is written last); a fetch gives every tensor of one version, with the checksum it was published with, or fails; a version
    is dropped once every registered reader has acknowledged a newer one. TorchStore holds the manifests, and the bytes too
    under `transport: torchstore`; under `auto` the bytes are in shared memory. What a killed run left there is removed when
    the next store on this machine starts.

    >>> store = await WeightStore.start(WeightsConfig())            # doctest: +SKIP  in the controller
    >>> await store.publish(0, model.state_dict())                   # in the trainer
    >>> await store.register("policy")                               # in any reader
    >>> weights = await store.fetch(0)
    >>> await store.acknowledge("policy", 0)
    >>> await store.stop()

    Raises: WeightsError for a version that is not there, or whose bytes are not those that were published.
    """

    def __init__(self, name: str, transport: Transport):
        self._name, self._transport = name, transport
        self._readers: ActorMesh | None = None

    @classmethod
    async def start(cls, config: WeightsConfig) -> WeightStore:
        """Start a store of this run's own."""
        sweep_segments()
        name = f"{own_prefix()}{uuid.uuid4().hex[:8]}"
        await torchstore.initialize(store_name=name)
        roads = {"auto": SharedMemoryTransport, "torchstore": TorchStoreTransport}
        store = cls(name, roads[config.transport](name))
        store._readers = this_proc().spawn(f"readers_{uuid.uuid4().hex[:8]}", ReaderLedger, store)
        return store

    async def publish(self, version: int, state_dict: dict[str, torch.Tensor]) -> Manifest:
        """Publish a snapshot; when this returns, the tensors may change again. A version is published once."""
        if await torchstore.exists(self._key(version), store_name=self._name):
            raise WeightsError(f"weights: version {version} was published already")
        entries, size_bytes = plan_entries(state_dict)

        def fill(flat: torch.Tensor) -> str:
            write_tensors(state_dict, entries, flat)
            return checksum(flat)

        location, digest = await self._transport.put(version, size_bytes, fill)
        manifest = Manifest(version, entries, size_bytes, digest, location)
        await torchstore.put(self._key(version), manifest.to_dict(), store_name=self._name)
        return manifest

    async def manifest(self, version: int) -> Manifest:
        """What the version consists of."""
        try:
            return Manifest.from_dict(await torchstore.get(self._key(version), store_name=self._name))
        except KeyError:
            raise WeightsError(f"weights: version {version} is not in the store") from None

    async def fetch(self, version: int) -> dict[str, torch.Tensor]:
        """Every tensor of the version, whole and checked."""
        manifest = await self.manifest(version)
        flat = await self._transport.get(manifest.location, manifest.size_bytes)
        # A copy: the segment goes away when the version is dropped.
        return {name: tensor.clone() for name, tensor in read_tensors(manifest, flat).items()}

    async def segment(self, manifest: Manifest, path: Path) -> Path:
        """A file in shared memory with the version's bytes, for a process that is no actor: the version's own, or `path`."""
        if isinstance(self._transport, SharedMemoryTransport):
            return Path(manifest.location)
        flat = await self._transport.get(manifest.location, manifest.size_bytes)
        map_segment(path, manifest.size_bytes, create=True).copy_(flat)
        return path

    async def register(self, reader: str) -> None:
        """Nothing is dropped from here on that this reader has not gone past. A reader that starts again does so again."""
        await self._readers.register.call_one(reader)

    async def acknowledge(self, reader: str, version: int) -> None:
        """The reader has `version` and will ask for nothing older: what no reader can ask for any more is dropped."""
        await self._readers.acknowledge.call_one(reader, version)

    async def drop_before(self, version: int) -> None:
        """Forget every older version, whoever may still want it (readers acknowledge instead)."""
        for number in await self.versions():
            if number < version:
                manifest = await self.manifest(number)
                await torchstore.delete(self._key(number), store_name=self._name)
                await self._transport.drop(manifest.location)

    async def versions(self) -> list[int]:
        """The versions that can be fetched."""
        client = await torchstore.client(self._name)  # `torchstore.keys` knows the default store only
        return sorted(int(key.rpartition(".")[2]) for key in await client.keys("manifest"))

    async def stop(self) -> None:
        """Drop everything and stop the store."""
        for path in SEGMENTS.glob(f"{self._name}-*"):
            path.unlink(missing_ok=True)
        await self._readers.stop()
        await torchstore.shutdown(store_name=self._name)

    @staticmethod
    def _key(version: int) -> str:
        return f"manifest.{version}"
