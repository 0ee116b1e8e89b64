"""Samples of a batch in rows of equal length, without padding between them."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
import torch

from rlmesh.rollout.batch import Batch

# Attention costs a token the length of its row, empty places cost a share of it: rows of four of the longest samples lose
# little to either, and below 64 tokens nothing is gained.
_SAMPLES_PER_ROW = 4
_SHORT_ROW = 64


@dataclass(frozen=True)
class PackedRows:
    """Rows [R, L] that hold every sample of a batch whole, and where each of its N tokens went.

    A token sees only what stands before it in its own sample, so that packed equals unpacked.
    """

    tokens_RL: torch.Tensor  # int64; 0 where nothing stands
    positions_RL: torch.Tensor  # int64: place in the sample
    samples_RL: torch.Tensor  # int64: number of the sample, -1 where nothing stands
    place_N: np.ndarray  # int64: row * L + column of each of the batch's tokens

    @property
    def num_rows(self) -> int:
        return self.tokens_RL.shape[0]

    @property
    def row_length(self) -> int:
        return self.tokens_RL.shape[1]

    def mask(self, rows: slice) -> torch.Tensor:
        """Bool [B, 1, L, L], True where attention is allowed: causal, within a sample."""
        samples = self.samples_RL[rows]
        same = samples[:, :, None] == samples[:, None, :]
        causal = torch.ones(self.row_length, self.row_length, dtype=torch.bool, device=samples.device).tril()
        return (same & causal)[:, None]


def pack(batch: Batch, row_length: int, rows_multiple: int = 1) -> PackedRows:
    """Lay the samples into rows of at most `row_length` tokens, each where it fits best, the longest first.

    Rows are shorter where the samples are short: four of the longest, or 64 tokens, are enough.
    The number of rows is filled up to a multiple of `rows_multiple` with empty ones, so that ranks do equal work.

    Raises: ValueError for a sample longer than a row.
    """
    lengths = np.diff(batch.offsets)
    if lengths.max() > row_length:
        raise ValueError(
            f"a sample of {lengths.max()} tokens does not fit in a row of trainer.pack_length = {row_length}"
        )
    row_length = min(row_length, max(_SHORT_ROW, _SAMPLES_PER_ROW * int(lengths.max())))
    row_of, column_of = np.empty(len(lengths), np.int64), np.empty(len(lengths), np.int64)
    free: list[tuple[int, int]] = []  # (tokens left, row), sorted
    num_rows = 0
    for sample in np.argsort(-lengths, kind="stable"):
        at = bisect_left(free, (lengths[sample], -1))
        if at == len(free):
            left, row = row_length, num_rows
            num_rows += 1
        else:
            left, row = free.pop(at)
        row_of[sample], column_of[sample] = row, row_length - left
        insort(free, (left - lengths[sample], row))
    used = int((column_of + lengths).max())  # short batches do not pay for long rows
    num_rows = -(-num_rows // rows_multiple) * rows_multiple

    within = np.arange(len(batch.tokens)) - np.repeat(batch.offsets[:-1], lengths)
    place = np.repeat(row_of * used + column_of, lengths) + within
    tokens, positions, samples = (np.full(num_rows * used, fill, np.int64) for fill in (0, 0, -1))
    tokens[place], positions[place] = batch.tokens, within
    samples[place] = np.repeat(np.arange(len(lengths)), lengths)
    rows = (torch.from_numpy(flat.reshape(num_rows, used)) for flat in (tokens, positions, samples))
    return PackedRows(*rows, place)
