"""Publishing and fetching versions of a model's weights."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchstore
from monarch._src.actor.actor_mesh import ActorMesh
from monarch.actor import ActorError, ProcMesh, this_host

import rlmesh.weights.torchstore_adapter  # noqa: F401  must be there before a store is used, in every process
from rlmesh.segments import SEGMENTS, own_prefix, own_segment, sweep_segments
from rlmesh.weights.config import WeightsConfig
from rlmesh.weights.ledger import Ledger
from rlmesh.weights.snapshot import (
    Manifest,
    Part,
    WeightsError,
    check_bytes,
    fill_shards,
    plan_bucket,
    whole_tensors,
)
from rlmesh.weights.transport import host_identity, make_transport, map_segment


class WeightStore:
    """A picklable handle to the weights that a run publishes; any actor may hold one.

    Invariants: a published version is a snapshot that nothing changes any more, complete or not there at all (its manifest
    is written when the last rank's part is in); a fetch gives every tensor of one version, with the checksum it was published
    with, or fails; a version is dropped once every registered reader has acknowledged a newer one, and the newest one is
    always there. Each rank writes its own shards, nothing is gathered. TorchStore holds the manifests, which say where the
    bytes are, and the bytes too under `transport: torchstore`. What a killed run left in shared memory is removed when the next
    store on this machine starts.

    >>> store = await WeightStore.start(WeightsConfig())            # doctest: +SKIP  in the controller
    >>> await store.publish(0, model.state_dict())                   # in the trainer, on every rank
    >>> await store.register("policy")                               # in any reader
    >>> weights = await store.fetch()                                # the newest version
    >>> await store.acknowledge("policy", 0)
    >>> await store.stop()

    Raises: WeightsError for a version that is not there, or whose bytes are not those that were published.
    """

    def __init__(self, name: str, config: WeightsConfig, across_hosts: bool):
        self._name = name
        self._dtype = getattr(torch, config.transfer_dtype) if config.transfer_dtype else None
        self.transport = make_transport(config.transport, name, across_hosts)
        self._ledger: ActorMesh | None = None
        self._procs: ProcMesh | None = None

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_procs": None}  # only who started the store stops it

    @classmethod
    async def start(
        cls, config: WeightsConfig, across_hosts: bool = False, procs: ProcMesh | None = None
    ) -> WeightStore:
        """Start a store of this run's own, on `procs` or on a process of its own.

        `across_hosts`: there will be readers on other hosts than the trainer's.
        """
        sweep_segments()
        name = f"{own_prefix()}{uuid.uuid4().hex[:8]}"
        store = cls(name, config, across_hosts)
        if procs is None:
            store._procs = procs = this_host().spawn_procs({"procs": 1}, name="weight_store")
        await torchstore.initialize(store_name=name, mesh=procs)
        store._ledger = procs.spawn(store.ledger_name, Ledger, store)
        return store

    @property
    def ledger_name(self) -> str:
        """Name of the Monarch actor that the store stands and falls with."""
        return f"ledger_{self._name.rpartition('-')[2]}"

    async def publish(self, version: int, state_dict: dict[str, torch.Tensor], probe: dict | None = None) -> None:
        """Publish this rank's part of a snapshot; every rank of the process group calls it, with tensors or DTensors.

        When this returns, this rank's tensors may change; when it has returned on every rank, the version can be fetched. A
        version is published once. The bytes are copied in another thread, so that the caller's event loop goes on.
        """
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        needed = await self._ask("begin", version)
        await self.transport.keep(needed)
        bucket = plan_bucket(state_dict, self._dtype)
        # The process in the name: a rank that begins again does not write over what its predecessor offered.
        name = f"v{version}-{rank}-{os.getpid()}"
        flat = self.transport.allocate(name, bucket.size_bytes)
        try:
            digest = await asyncio.to_thread(bucket.write, flat)
            location = await self.transport.offer(name, flat)
            part = Part(bucket.boxes, bucket.size_bytes, digest, location)
        except BaseException:
            self.transport.abandon(name)
            raise
        await self._ask("commit", version, rank, world_size, part, probe)

    async def manifest(self, version: int | None = None) -> Manifest:
        """What a version, or the newest one, consists of."""
        if version is None:
            version = max(await self.versions(), default=-1)
            if version < 0:
                raise WeightsError("weights: nothing has been published yet")
        try:
            return await torchstore.get(self._key(version), store_name=self._name)
        except KeyError:
            raise WeightsError(f"weights: version {version} is not in the store") from None

    async def fetch(self, version: int | None = None) -> dict[str, torch.Tensor]:
        """Every tensor of a version, or of the newest one, whole and checked."""
        manifest = await self.manifest(version)
        # Copies, and these are what is checked: the bytes are written over when the version is dropped.
        buckets = [flat.clone() for flat in await self._read(manifest)]
        check_bytes(manifest, buckets)
        return whole_tensors(manifest, buckets)

    async def fetch_into(self, targets: dict[str, torch.Tensor], version: int | None = None) -> None:
        """Fill tensors, or this rank's shards of DTensors, from the tensors of the same names; none is put together whole."""
        manifest = await self.manifest(version)
        buckets = await self._read(manifest)
        check_bytes(manifest, buckets)
        fill_shards(manifest, buckets, targets)
        check_bytes(manifest, buckets)  # a version that was dropped meanwhile is written over

    @asynccontextmanager
    async def on_this_host(self, manifest: Manifest) -> AsyncIterator[list[str]]:
        """A file in this host's shared memory for each part, for a process that is no actor; to be mapped within the block."""
        own: list[Path] = []
        try:
            paths = []
            for part in manifest.parts:
                if part.location.path and part.location.host == host_identity():
                    paths.append(part.location.path)
                    continue
                own.append(own_segment())
                flat = await self.transport.read(part.location, part.size_bytes)
                map_segment(own[-1], part.size_bytes, create=True).copy_(flat)
                paths.append(str(own[-1]))
            yield paths
        finally:
            for path in own:
                path.unlink(missing_ok=True)

    async def register(self, reader: str) -> None:
        """Nothing is dropped from here on that this reader has not gone past. A reader that starts again does so again."""
        await self._ask("register", reader)

    async def unregister(self, reader: str) -> None:
        """This reader needs nothing any more; else what it has not acknowledged stays for ever."""
        await self._ask("unregister", reader)

    async def acknowledge(self, reader: str, version: int) -> None:
        """The reader has `version` and will ask for nothing older: what no reader can ask for any more is dropped."""
        await self._ask("acknowledge", reader, version)

    async def drop_before(self, version: int) -> None:
        """Forget every older version, whoever may still want it (readers acknowledge instead)."""
        await self._ask("drop_before", version)

    async def versions(self) -> list[int]:
        """The versions that can be fetched."""
        return await self._ask("versions")

    async def release(self) -> None:
        """In a writer that ends: let go of the memory that it offered."""
        await self.transport.keep(set())

    async def stop(self) -> None:
        """Drop everything and stop the store."""
        await self.release()
        for path in SEGMENTS.glob(f"{self._name}-*"):
            path.unlink(missing_ok=True)
        await self._ledger.stop()
        await torchstore.shutdown(store_name=self._name)
        if self._procs:
            await self._procs.stop()

    async def _ask(self, endpoint: str, *args) -> Any:
        """A call to the ledger; what it refuses is raised here as what it is."""
        try:
            return await getattr(self._ledger, endpoint).call_one(*args)
        except ActorError as error:
            if isinstance(error.exception, WeightsError):
                raise error.exception from None
            raise

    async def put_manifest(self, manifest: Manifest) -> None:
        """For the ledger: from here on the version can be fetched."""
        await torchstore.put(self._key(manifest.version), manifest, store_name=self._name)

    async def delete_manifest(self, version: int) -> None:
        """For the ledger: from here on the version cannot be fetched."""
        await torchstore.delete(self._key(version), store_name=self._name)

    async def _read(self, manifest: Manifest) -> list[torch.Tensor]:
        reads = [self.transport.read(part.location, part.size_bytes) for part in manifest.parts]
        return list(await asyncio.gather(*reads))

    @staticmethod
    def _key(version: int) -> str:
        return f"manifest.{version}"
