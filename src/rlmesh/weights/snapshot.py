"""Tensors as one run of bytes, and the manifest that says what is where."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import xxhash
from safetensors import safe_open

from rlmesh.errors import RLMeshError

_ALIGNMENT = 64  # bytes; what any dtype and vector instruction is content with


class WeightsError(RLMeshError):
    """Weights that are not there, or not what they should be."""


@dataclass(frozen=True)
class Entry:
    """One tensor's place in the bytes."""

    name: str
    dtype: str  # for example "float32"
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Manifest:
    """What a published version consists of. `location` is where its bytes are, in the words of the transport."""

    version: int
    entries: tuple[Entry, ...]
    size_bytes: int
    checksum: str  # xxh3_128 of all bytes
    location: str

    def to_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict) -> Manifest:
        entries = tuple(Entry(**{**entry, "shape": tuple(entry["shape"])}) for entry in content["entries"])
        return cls(**{**content, "entries": entries})


def plan_entries(state_dict: dict[str, torch.Tensor]) -> tuple[tuple[Entry, ...], int]:
    """A place for every tensor, and the size of all in bytes."""
    entries, offset = [], 0
    for name, tensor in state_dict.items():
        size = tensor.numel() * tensor.element_size()
        entries.append(Entry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset, size))
        offset = -(-(offset + size) // _ALIGNMENT) * _ALIGNMENT
    return tuple(entries), max(offset, 1)


def write_tensors(state_dict: dict[str, torch.Tensor], entries: tuple[Entry, ...], flat: torch.Tensor) -> None:
    """Copy the tensors into `flat` (uint8): from here on the originals may change."""
    for entry in entries:
        view_of(entry, flat).copy_(state_dict[entry.name].detach())


def view_of(entry: Entry, flat: torch.Tensor) -> torch.Tensor:
    """The tensor in the bytes, without a copy."""
    part = flat[entry.offset : entry.offset + entry.size_bytes]
    return part.view(getattr(torch, entry.dtype)).view(entry.shape)


def checksum(flat: torch.Tensor) -> str:
    """xxh3_128 of the bytes."""
    return xxhash.xxh3_128_hexdigest(flat.numpy())


def read_tensors(manifest: Manifest, flat: torch.Tensor) -> dict[str, torch.Tensor]:
    """All tensors as views of the bytes. Raises: WeightsError when the bytes are not those that were published."""
    if flat.numel() != manifest.size_bytes or checksum(flat) != manifest.checksum:
        raise WeightsError(f"weights: version {manifest.version} does not have the checksum that it was published with")
    return {entry.name: view_of(entry, flat) for entry in manifest.entries}


def tensor_shapes(model_path: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a snapshot of the folder's model holds, the head of a tied model among them."""
    shapes = {}
    for path in sorted(model_path.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  no mapping
    if "model.embed_tokens.weight" in shapes:
        shapes.setdefault("lm_head.weight", shapes["model.embed_tokens.weight"])
    return shapes


def check_shapes(manifest: Manifest, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raises: WeightsError when the snapshot is not of this model: vLLM keeps what is missing as it was, without a word."""
    published = {entry.name: tuple(entry.shape) for entry in manifest.entries}
    wrong = sorted(name for name in shapes.keys() | published.keys() if shapes.get(name) != published.get(name))
    if wrong:
        name = wrong[0]
        raise WeightsError(
            f"weights: version {manifest.version} does not fit the model: {name} is {published.get(name, 'not there')} "
            f"and should be {shapes.get(name, 'not there')} ({len(wrong)} tensors differ)"
        )
