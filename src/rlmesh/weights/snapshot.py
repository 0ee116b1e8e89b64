"""What a published version consists of: boxes of tensors in the buckets of its writers, and the manifest that says what is where."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from safetensors import safe_open
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rlmesh.errors import RLMeshError

_ALIGNMENT = 64  # bytes; what any dtype and vector instruction is content with


class WeightsError(RLMeshError):
    """Weights that are not there, or not what they should be."""


@dataclass(frozen=True)
class Box:
    """A block of one tensor, and its place in a bucket."""

    name: str
    dtype: str  # of the bytes, for example "float32"
    shape: tuple[int, ...]  # of the whole tensor
    start: tuple[int, ...]  # first index of the block, in every dimension
    extent: tuple[int, ...]  # shape of the block
    offset: int  # bytes from the bucket's beginning

    @property
    def size_bytes(self) -> int:
        return math.prod(self.extent) * getattr(torch, self.dtype).itemsize


@dataclass(frozen=True)
class Part:
    """What one rank wrote, in one bucket. `location` is where the bucket is, in the words of the transport."""

    boxes: tuple[Box, ...]
    size_bytes: int
    checksum: str  # xxh3_128 of all bytes
    location: Any = None


@dataclass(frozen=True)
class Manifest:
    """One version: a part of each rank that published it, and the probe, if one was published with it.

    The probe is a fixed sequence with the trainer's logprobs: `{"tokens": [...], "logprobs": [...], "dtype": "float32"}`, a
    logprob for each token but the first, at temperature 1.
    """

    version: int
    parts: tuple[Part, ...]
    probe: dict | None = None

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor."""
        return {box.name: box.shape for part in self.parts for box in part.boxes}

    @property
    def dtypes(self) -> set[str]:
        """In which the numbers travel."""
        return {box.dtype for part in self.parts for box in part.boxes}

    def to_dict(self) -> dict:
        """Without the locations: plain data, for a process that is no actor."""
        return {"version": self.version, "parts": [asdict(replace(part, location=None)) for part in self.parts]}

    @classmethod
    def from_dict(cls, content: dict) -> Manifest:
        def box(fields: dict) -> Box:
            return Box(**fields | {name: tuple(fields[name]) for name in ("shape", "start", "extent")})

        parts = (Part(**part | {"boxes": tuple(map(box, part["boxes"]))}) for part in content["parts"])
        return cls(content["version"], tuple(parts))


@dataclass(frozen=True)
class Bucket:
    """What this rank has to write: its blocks, each with the tensor that it is taken from."""

    boxes: tuple[Box, ...]
    sources: tuple[torch.Tensor, ...]
    size_bytes: int

    def write(self, flat: torch.Tensor) -> str:
        """Copy the blocks into `flat` (uint8) and return its checksum: from here on the originals may change."""
        done = 0
        for box, source in zip(self.boxes, self.sources, strict=True):
            if box.offset >= done:  # or it is another name of one before it
                view_of(box, flat).copy_(source)
                done = box.offset + box.size_bytes
        return checksum(flat)


def plan_bucket(state_dict: dict[str, torch.Tensor], dtype: torch.dtype | None) -> Bucket:
    """This rank's blocks: of a DTensor its local shard, if no rank before it has the same one; whole tensors on rank 0.

    Floating-point tensors are written as `dtype`, if one is given. One tensor under two names is written once.
    """
    first = not dist.is_initialized() or dist.get_rank() == 0
    boxes, sources, offset = [], [], 0
    places: dict[tuple, int] = {}  # one tensor -> its offset
    for name, tensor in state_dict.items():
        block = (
            _local_block(tensor) if isinstance(tensor, DTensor) else (tensor, (0,) * tensor.dim()) if first else None
        )
        if block is None or (block[0].numel() == 0 and tensor.numel()):
            continue
        local, start = block
        local, target = local.detach(), dtype if dtype and local.is_floating_point() else local.dtype
        key = (local.data_ptr(), local.shape, local.stride(), local.dtype) if local.numel() else (name,)
        known = places.setdefault(key, offset)
        box = Box(name, str(target).removeprefix("torch."), tuple(tensor.shape), start, tuple(local.shape), known)
        boxes.append(box)
        sources.append(local)
        if known == offset:
            offset = -(-(offset + box.size_bytes) // _ALIGNMENT) * _ALIGNMENT
    return Bucket(tuple(boxes), tuple(sources), max(offset, 1))


def _local_block(tensor: DTensor) -> tuple[torch.Tensor, tuple[int, ...]] | None:
    """This rank's shard and where it begins in the whole; None where another rank has the same.

    A mesh of some of the ranks has a whole tensor, so that the mesh which rank 0 belongs to is enough.
    """
    mesh = tensor.device_mesh
    replicated = zip(tensor.placements, mesh.get_coordinate(), strict=True)
    if 0 not in mesh.mesh or any(isinstance(placement, Replicate) and at for placement, at in replicated):
        return None
    _, start = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
    return tensor.to_local(), tuple(start)


def view_of(box: Box, flat: torch.Tensor) -> torch.Tensor:
    """The block in a bucket's bytes, without a copy."""
    part = flat[box.offset : box.offset + box.size_bytes]
    return part.view(getattr(torch, box.dtype)).view(box.extent)


def checksum(flat: torch.Tensor) -> str:
    """xxh3_128 of the bytes."""
    return xxhash.xxh3_128_hexdigest(flat.numpy())


def check_bytes(manifest: Manifest, buckets: Sequence[torch.Tensor]) -> None:
    """Raises: WeightsError when the bytes are not those that were published."""
    for rank, (part, flat) in enumerate(zip(manifest.parts, buckets, strict=True)):
        if flat.numel() != part.size_bytes or checksum(flat) != part.checksum:
            raise WeightsError(
                f"weights: part {rank} of version {manifest.version} does not have the checksum that it was published with"
            )


def whole_tensors(manifest: Manifest, buckets: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every tensor of the version: a view of its bucket where it is in one block, else put together."""
    blocks = _blocks(manifest, buckets)
    tensors = {}
    for name, shape in manifest.shapes.items():
        box, view = blocks[name][0]
        if box.extent != shape:
            view = torch.empty(shape, dtype=view.dtype)
            fill(view, (0,) * len(shape), blocks[name])
        tensors[name] = view
    return tensors


def fill_shards(manifest: Manifest, buckets: Sequence[torch.Tensor], targets: dict[str, torch.Tensor]) -> None:
    """Fill each target, a whole tensor or a DTensor of any layout, with its part of the version's tensor of that name."""
    blocks = _blocks(manifest, buckets)
    shapes = manifest.shapes
    for name, target in targets.items():
        if tuple(target.shape) != shapes.get(name):
            raise WeightsError(
                f"weights: version {manifest.version} has {name} as {shapes.get(name, 'nothing')}, not {tuple(target.shape)}"
            )
        local, start = target.detach(), (0,) * target.dim()
        if isinstance(target, DTensor):
            _, start = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
            local = local.to_local()
        fill(local, tuple(start), blocks[name])


Blocks = list[tuple[Box, torch.Tensor]]


def fill(target: torch.Tensor, start: tuple[int, ...], blocks: Blocks) -> None:
    """Fill the block `target` of a tensor, which begins at `start`, from the blocks that overlap it."""
    for box, view in blocks:
        low = [max(a, b) for a, b in zip(start, box.start, strict=True)]
        high = [min(a + n, b + m) for a, n, b, m in zip(start, target.shape, box.start, box.extent, strict=True)]
        if all(a < b for a, b in zip(low, high, strict=True)):
            into = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True))
            taken = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, box.start, strict=True))
            target[into].copy_(view[taken])


def _blocks(manifest: Manifest, buckets: Sequence[torch.Tensor]) -> dict[str, Blocks]:
    blocks: dict[str, Blocks] = {}
    for box, view in _views(manifest, buckets):
        blocks.setdefault(box.name, []).append((box, view))
    return blocks


def _views(manifest: Manifest, buckets: Sequence[torch.Tensor]) -> Iterator[tuple[Box, torch.Tensor]]:
    for part, flat in zip(manifest.parts, buckets, strict=True):
        for box in part.boxes:
            yield box, view_of(box, flat)


def check_whole(manifest: Manifest) -> None:
    """Raises: WeightsError when the parts do not make up every tensor: what is missing would be whatever was there before."""
    found: dict[str, int] = {}
    for part in manifest.parts:
        for box in part.boxes:
            found[box.name] = found.get(box.name, 0) + math.prod(box.extent)
    for name, shape in manifest.shapes.items():
        if found[name] != math.prod(shape):
            raise WeightsError(
                f"weights: the parts of version {manifest.version} have {found[name]:,} of the {math.prod(shape):,} numbers of {name}"
            )


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
    published = manifest.shapes
    wrong = sorted(name for name in shapes.keys() | published.keys() if shapes.get(name) != published.get(name))
    if wrong:
        name = wrong[0]
        raise WeightsError(
            f"weights: version {manifest.version} does not fit the model: {name} is {published.get(name, 'not there')} "
            f"and should be {shapes.get(name, 'not there')} ({len(wrong)} tensors differ)"
        )
