"""Roads that a bucket's bytes can take from the process that wrote them to one that reads them."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from rlmesh.segments import SEGMENTS
from rlmesh.weights.snapshot import WeightsError

# A handle is unpickled more than once in a process; what the process wrote is the same for all of them. By the store.
_WRITTEN: defaultdict[str, dict[str, Any]] = defaultdict(dict)


@dataclass(frozen=True)
class Location:
    """Where a bucket is: what a reader needs to know, whichever road it takes."""

    name: str
    host: str  # `host_identity()` of the writer
    process: int  # the writer's number on that host
    path: str | None = None  # the file in the host's shared memory, where there is one
    remote: Any = None  # Monarch's RDMABuffer, where there is one


class Transport(Protocol):
    """Offers buckets where readers can get them. A picklable handle; what it keeps in memory stays in the writer's process."""

    def allocate(self, name: str, size_bytes: int) -> torch.Tensor:
        """Room for a bucket, uint8 [size_bytes]."""

    def abandon(self, name: str) -> None:
        """What was allocated is not going to be offered."""

    async def offer(self, name: str, flat: torch.Tensor) -> Location:
        """From here on readers can get the bucket, which does not change any more."""

    async def read(self, location: Location, size_bytes: int) -> torch.Tensor:
        """The bytes, uint8 [size_bytes]; not a copy where the two ends share memory."""

    async def drop(self, location: Location) -> None:
        """Nobody needs the bucket any more; called in any process."""

    async def keep(self, names: set[str]) -> None:
        """Let go of all that this process offered but the buckets of these names."""


class SharedMemory:
    """A file in /dev/shm: every process of the host maps the same bytes, and nothing is copied to read them.

    A file whose bytes nobody needs any more is written again, by the process that wrote it and still has it mapped: new memory
    costs more than the copy into it. One such file is kept, the others go.
    """

    def __init__(self, prefix: str):
        self._prefix = prefix

    @property
    def _mapped(self) -> dict[str, torch.Tensor]:
        """What this process wrote, by its name."""
        return _WRITTEN[self._prefix]

    def allocate(self, name: str, size_bytes: int) -> torch.Tensor:
        for old, flat in list(self._mapped.items()):
            if flat.numel() != size_bytes:  # of another model
                _spare(self._path(old)).unlink(missing_ok=True)
            elif self._rename(_spare(self._path(old)), self._path(name)):
                self._mapped[name] = self._mapped.pop(old)
                return flat
        self._mapped[name] = map_segment(self._path(name), size_bytes, create=True)
        return self._mapped[name]

    def abandon(self, name: str) -> None:
        self._mapped.pop(name, None)
        self._path(name).unlink(missing_ok=True)

    async def offer(self, name: str, flat: torch.Tensor) -> Location:
        return Location(name, host_identity(), os.getpid(), str(self._path(name)))

    async def read(self, location: Location, size_bytes: int) -> torch.Tensor:
        if location.host != host_identity():
            raise WeightsError(
                "weights.transport: the bytes are in the shared memory of another host than this reader's; use rdma, or tell the "
                "store that its readers are across hosts"
            )
        return map_segment(Path(location.path), size_bytes)

    async def drop(self, location: Location) -> None:
        if location.host != host_identity():
            return
        path = Path(location.path)
        if Path(f"/proc/{location.process}").exists():
            self._rename(path, _spare(path))
        else:
            path.unlink(missing_ok=True)

    async def keep(self, names: set[str]) -> None:
        unneeded = [name for name in self._mapped if name not in names]
        for name in unneeded[:-1] if names else unneeded:
            del self._mapped[name]
            _spare(self._path(name)).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return SEGMENTS / f"{self._prefix}-{name}"

    @staticmethod
    def _rename(old: Path, new: Path) -> bool:
        try:
            old.rename(new)
        except FileNotFoundError:
            return False
        return True


def _spare(path: Path) -> Path:
    """What a file is called while its bytes are nobody's."""
    return path.with_name(f"{path.name}.spare")


class Rdma:
    """Monarch's RDMABuffer over the writer's memory: one read, over ibverbs or, where there is none, TCP."""

    def __init__(self, store_name: str):
        self._store_name = store_name

    @property
    def _offered(self) -> dict[str, tuple[torch.Tensor, Any]]:
        """What this process wrote, and how others get it."""
        return _WRITTEN[f"{self._store_name} rdma"]

    def allocate(self, name: str, size_bytes: int) -> torch.Tensor:
        return torch.zeros(size_bytes, dtype=torch.uint8)

    def abandon(self, name: str) -> None:
        pass

    async def offer(self, name: str, flat: torch.Tensor) -> Location:
        remote = await asyncio.to_thread(_register, flat)
        self._offered[name] = flat, remote  # the memory must stay while others read it
        return Location(name, host_identity(), os.getpid(), remote=remote)

    async def read(self, location: Location, size_bytes: int) -> torch.Tensor:
        flat = torch.zeros(size_bytes, dtype=torch.uint8)
        await location.remote.read_into(flat)
        return flat

    async def drop(self, location: Location) -> None:
        pass  # the memory is the writer's

    async def keep(self, names: set[str]) -> None:
        for name in self._offered.keys() - names:
            _, remote = self._offered.pop(name)
            await remote.drop()


class Auto:
    """Shared memory for the readers on the writer's host; for those on other hosts, if there are any, RDMA from the same bytes."""

    def __init__(self, prefix: str, across_hosts: bool):
        self._shared, self._rdma = SharedMemory(prefix), Rdma(prefix) if across_hosts else None

    def allocate(self, name: str, size_bytes: int) -> torch.Tensor:
        return self._shared.allocate(name, size_bytes)

    def abandon(self, name: str) -> None:
        self._shared.abandon(name)

    async def offer(self, name: str, flat: torch.Tensor) -> Location:
        location = await self._shared.offer(name, flat)
        if self._rdma is None:
            return location
        return replace(location, remote=(await self._rdma.offer(name, flat)).remote)

    async def read(self, location: Location, size_bytes: int) -> torch.Tensor:
        if location.host == host_identity() or location.remote is None:
            return await self._shared.read(location, size_bytes)
        return await self._rdma.read(location, size_bytes)

    async def drop(self, location: Location) -> None:
        await self._shared.drop(location)

    async def keep(self, names: set[str]) -> None:
        if self._rdma:
            await self._rdma.keep(names)
        await self._shared.keep(names)


class TorchStoreBytes:
    """TorchStore carries each bucket as one flat tensor: its cost is by the key, not by the byte."""

    def __init__(self, store_name: str):
        self._store_name = store_name

    def allocate(self, name: str, size_bytes: int) -> torch.Tensor:
        return torch.zeros(size_bytes, dtype=torch.uint8)

    def abandon(self, name: str) -> None:
        pass

    async def offer(self, name: str, flat: torch.Tensor) -> Location:
        import torchstore

        await torchstore.put(f"bytes.{name}", flat, store_name=self._store_name)
        return Location(name, host_identity(), os.getpid())

    async def read(self, location: Location, size_bytes: int) -> torch.Tensor:
        import torchstore

        return await torchstore.get(f"bytes.{location.name}", store_name=self._store_name)

    async def drop(self, location: Location) -> None:
        import torchstore

        await torchstore.delete(f"bytes.{location.name}", store_name=self._store_name)

    async def keep(self, names: set[str]) -> None:
        pass


def make_transport(name: str, store_name: str, across_hosts: bool) -> Transport:
    """The recipe's `weights.transport`."""
    if name == "auto":
        return Auto(store_name, across_hosts)
    if name == "rdma":
        return Rdma(store_name)
    return SharedMemory(store_name) if name == "shared_memory" else TorchStoreBytes(store_name)


@cache
def host_identity() -> str:
    """The same for two processes that see the same /dev/shm, and for no others: containers of one machine may have their own."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}-{SEGMENTS.stat().st_dev}"


def _register(flat: torch.Tensor) -> Any:
    from monarch.rdma import RDMABuffer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says at each buffer that there is no ibverbs here
        return RDMABuffer(flat)


def _private(path: str, flags: int) -> int:
    """Weights are nobody else's to read on a machine that is shared."""
    return os.open(path, flags, 0o600)


def map_segment(path: Path, size_bytes: int, create: bool = False) -> torch.Tensor:
    """A file's bytes as a tensor, uint8 [size_bytes], shared with every process that maps it."""
    if create:
        with open(path, "wb", opener=_private) as file:
            try:
                os.posix_fallocate(
                    file.fileno(), 0, size_bytes
                )  # or the first write to a full /dev/shm kills the process
            except OSError as error:
                path.unlink()
                raise WeightsError(
                    f"weights: no room for {size_bytes:,} bytes in {path.parent} ({error.strerror}); make it larger"
                ) from error
    elif not path.exists() or path.stat().st_size != size_bytes:
        raise WeightsError(f"weights: {path} is not there any more, or not of {size_bytes:,} bytes")
    return torch.from_file(str(path), shared=True, size=size_bytes, dtype=torch.uint8)
