"""Roads that a snapshot's bytes can take between processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import torch

from rlmesh.segments import SEGMENTS
from rlmesh.weights.snapshot import WeightsError


class Transport(Protocol):
    """Puts bytes where readers can get them; `location` is what a reader needs to know."""

    async def put(self, version: int, size_bytes: int, fill) -> tuple[str, str]:
        """Let `fill(flat)` write `size_bytes` bytes and return its checksum; returns location and checksum."""

    async def get(self, location: str, size_bytes: int) -> torch.Tensor:
        """The bytes, uint8 [size_bytes]."""

    async def drop(self, location: str) -> None:
        """Forget them."""


class SharedMemoryTransport:
    """A file in /dev/shm: every process of the host maps the same bytes, and nothing is copied to read them."""

    def __init__(self, name: str):
        self._name = name

    async def put(self, version: int, size_bytes: int, fill) -> tuple[str, str]:
        path = SEGMENTS / f"{self._name}-v{version}"
        return str(path), fill(map_segment(path, size_bytes, create=True))

    async def get(self, location: str, size_bytes: int) -> torch.Tensor:
        return map_segment(Path(location), size_bytes)

    async def drop(self, location: str) -> None:
        Path(location).unlink(missing_ok=True)


class TorchStoreTransport:
    """TorchStore carries the bytes, as one flat tensor: its cost is by the key, not by the byte."""

    def __init__(self, name: str):
        self._name = name

    async def put(self, version: int, size_bytes: int, fill) -> tuple[str, str]:
        import torchstore

        flat = torch.zeros(size_bytes, dtype=torch.uint8)
        digest = fill(flat)
        await torchstore.put(f"bytes.{version}", flat, store_name=self._name)
        return f"bytes.{version}", digest

    async def get(self, location: str, size_bytes: int) -> torch.Tensor:
        import torchstore

        return await torchstore.get(location, store_name=self._name)

    async def drop(self, location: str) -> None:
        import torchstore

        await torchstore.delete(location, store_name=self._name)


def map_segment(path: Path, size_bytes: int, create: bool = False) -> torch.Tensor:
    """A file's bytes as a tensor, uint8 [size_bytes], shared with every process that maps it."""
    if create:
        with path.open("wb") as file:
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
        raise WeightsError(
            f"weights: {path} is not there, or not of {size_bytes} bytes; is this the host that published it?"
        )
    return torch.from_file(str(path), shared=True, size=size_bytes, dtype=torch.uint8)
