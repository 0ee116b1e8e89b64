"""Publishing and fetching versions of a model's weights."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import torch
import torchstore

import rlmesh.weights.torchstore_adapter  # noqa: F401  must be there before a store is used, in every process
from rlmesh.weights.config import WeightsConfig
from rlmesh.weights.snapshot import Manifest, WeightsError, checksum, plan_entries, read_tensors, write_tensors
from rlmesh.weights.transport import SharedMemoryTransport, TorchStoreTransport, Transport


class WeightStore:
    """A picklable handle to the weights that a run publishes; any actor may hold one.

    Invariants: a published version is a snapshot that nothing changes any more, complete or not there at all (its manifest
    is written last); a fetch gives every tensor of one version, with the checksum it was published with, or fails. TorchStore
    holds the manifests, and the bytes too under `transport: torchstore`; under `auto` the bytes are in shared memory.

    >>> store = await WeightStore.start(WeightsConfig())            # doctest: +SKIP  in the controller
    >>> await store.publish(0, model.state_dict())                   # in the trainer
    >>> weights = await store.fetch(0)                               # in any reader
    >>> await store.drop_before(1)
    >>> await store.stop()

    Raises: WeightsError for a version that is not there, or whose bytes are not those that were published.
    """

    def __init__(self, name: str, transport: Transport):
        self._name, self._transport = name, transport

    @classmethod
    async def start(cls, config: WeightsConfig) -> WeightStore:
        """Start a store of this run's own."""
        _sweep_shared_memory()
        # The process in the name tells a later run whether what it finds in /dev/shm still belongs to someone.
        name = f"rlmesh-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        await torchstore.initialize(store_name=name)
        roads = {"auto": SharedMemoryTransport, "torchstore": TorchStoreTransport}
        return cls(name, roads[config.transport](name))

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
        from rlmesh.weights.transport import map_segment

        map_segment(path, manifest.size_bytes, create=True).copy_(flat)
        return path

    async def drop_before(self, version: int) -> None:
        """Forget every older version: call it once every reader has fetched `version` or a newer one."""
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
        for path in Path("/dev/shm").glob(f"{self._name}-*"):
            path.unlink(missing_ok=True)
        await torchstore.shutdown(store_name=self._name)

    @staticmethod
    def _key(version: int) -> str:
        return f"manifest.{version}"


def _sweep_shared_memory() -> None:
    """Remove what runs that were killed left in shared memory: segments whose process is gone."""
    for path in Path("/dev/shm").glob("rlmesh-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)
