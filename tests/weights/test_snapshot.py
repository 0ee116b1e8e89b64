"""Blocks of tensors: written by ranks of one layout, put together by readers of another. No processes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh.weights.snapshot import (
    Box,
    Bucket,
    Manifest,
    Part,
    WeightsError,
    check_bytes,
    check_whole,
    fill,
    plan_bucket,
    whole_tensors,
)


def cut(tensor: torch.Tensor, pieces: list[int]) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    """The tensor in a grid of blocks, as even as may be, some of them empty: (start, block)."""
    blocks = [((), tensor)]
    for dim, count in enumerate(pieces):
        step = -(-tensor.shape[dim] // count)
        bounds = [(i * step, min((i + 1) * step, tensor.shape[dim])) for i in range(count)]
        blocks = [
            ((*start, low), part.narrow(dim, low, max(high - low, 0)))
            for start, part in blocks
            for low, high in bounds
            if low <= tensor.shape[dim]
        ]
    return blocks


def published(tensors: dict[str, torch.Tensor], pieces: list[int]) -> tuple[Manifest, list[torch.Tensor]]:
    """Each block written by a rank of its own."""
    parts, buckets = [], []
    for name, tensor in tensors.items():
        for start, block in cut(tensor, pieces[: tensor.dim()]):
            if not block.numel():
                continue
            box = Box(name, "float32", tuple(tensor.shape), start, tuple(block.shape), offset=64)
            bucket = Bucket((box,), (block,), 64 + box.size_bytes)
            buckets.append(torch.zeros(bucket.size_bytes, dtype=torch.uint8))
            parts.append(Part(bucket.boxes, bucket.size_bytes, bucket.write(buckets[-1])))
    return Manifest(0, tuple(parts)), buckets


shapes = st.lists(st.integers(1, 7), min_size=1, max_size=3)


@settings(max_examples=200, deadline=None)
@given(shapes, st.lists(st.integers(1, 4), min_size=3, max_size=3), st.data())
def test_any_block_of_any_cut_is_what_slicing_gives(shape, pieces, data):
    tensor = torch.arange(float(np.prod(shape))).reshape(shape)
    manifest, buckets = published({"a": tensor}, pieces)
    check_bytes(manifest, buckets)
    check_whole(manifest)
    assert torch.equal(whole_tensors(manifest, buckets)["a"], tensor)
    low = [data.draw(st.integers(0, size)) for size in shape]
    high = [data.draw(st.integers(a, size)) for a, size in zip(low, shape, strict=True)]
    index = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    target = torch.full(tensor[index].shape, -1.0)
    blocks = [
        (box, buckets[rank][64:].view(torch.float32).view(box.extent))
        for rank, p in enumerate(manifest.parts)
        for box in p.boxes
    ]
    fill(target, tuple(low), blocks)
    assert torch.equal(target, tensor[index])


def test_a_tensor_in_one_block_is_not_copied():
    manifest, buckets = published({"a": torch.ones(4, 4), "b": torch.ones(4, 4)}, [1, 1])
    whole = whole_tensors(manifest, buckets)
    buckets[1].zero_()
    assert whole["a"].sum() == 16
    assert whole["b"].sum() == 0


def test_parts_that_do_not_make_up_a_tensor_are_refused():
    manifest, _ = published({"a": torch.ones(4, 4)}, [2, 1])
    with pytest.raises(WeightsError, match="the parts of version 0 have 8 of the 16 numbers of a"):
        check_whole(Manifest(0, manifest.parts[:1]))


def test_a_manifest_survives_plain_data():
    manifest, buckets = published({"a": torch.randn(5, 3)}, [2, 2])
    again = Manifest.from_dict(manifest.to_dict())
    assert again == manifest
    check_bytes(again, buckets)


def test_scalars_and_empty_tensors_have_a_place():
    state = {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "strided": torch.arange(6.0).reshape(2, 3).T}
    bucket = plan_bucket(state, None)
    flat = torch.zeros(bucket.size_bytes, dtype=torch.uint8)
    part = Part(bucket.boxes, bucket.size_bytes, bucket.write(flat))
    whole = whole_tensors(Manifest(0, (part,)), [flat])
    assert whole.keys() == state.keys()
    assert all(torch.equal(whole[name], state[name]) for name in state)
