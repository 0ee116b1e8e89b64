"""Logprobs of a batch's tokens under a torchtitan model: packed, in micro-batches, over the data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from rlmesh.models.packing import PackedRows, pack
from rlmesh.models.titan import TitanModel
from rlmesh.rollout.batch import Batch


@dataclass(frozen=True)
class TokenLogprobs:
    """One micro-batch's part of the tokens in the loss mask; M may be 0, the graph is there all the same."""

    index_M: np.ndarray  # which of the batch's N tokens these are
    logprobs_M: torch.Tensor  # float32, under the sampling distribution, with gradient
    entropy_M: torch.Tensor  # float32, of the whole distribution at that place, in nats
    # Zero; where M is 0 connected to every weight: a rank without tokens still takes part in the backward pass.
    anchor: torch.Tensor


def token_logprobs(
    titan: TitanModel, batch: Batch, temperature: float, row_length: int, rows: int
) -> Iterator[TokenLogprobs]:
    """This rank's share of the batch, `rows` packed rows at a time; every rank yields equally often.

    The logprob of a token is read where the token before it stands: `logprobs[i]` belongs to `tokens[i]`. Only those places
    are projected to the vocabulary.
    """
    ranks, rank = _data_parallel(titan)
    packed = pack(batch, row_length, rows_multiple=ranks)
    mine = packed.num_rows // ranks
    wanted_N = np.flatnonzero(batch.loss_mask)
    row_N = packed.place_N[wanted_N] // packed.row_length
    for first in range(rank * mine, (rank + 1) * mine, rows):
        last = min(first + rows, (rank + 1) * mine)
        index = wanted_N[(row_N >= first) & (row_N < last)]
        yield _forward(titan, batch, packed, slice(first, last), index, temperature)


def _forward(
    titan: TitanModel, batch: Batch, packed: PackedRows, rows: slice, index: np.ndarray, temperature: float
) -> TokenLogprobs:
    device = titan.device
    tokens, positions = packed.tokens_RL[rows].to(device), packed.positions_RL[rows].to(device)
    hidden_BLD = titan.hidden(tokens, positions, packed.mask(rows).to(device))
    before_M = torch.from_numpy(packed.place_N[index] - 1 - rows.start * packed.row_length).to(device)
    hidden_MD = hidden_BLD.flatten(0, 1)[before_M] if len(index) else hidden_BLD[0, :1]
    log_softmax_MV = torch.log_softmax(titan.logits(hidden_MD) / temperature, dim=-1)
    with torch.no_grad():
        entropy_M = -(log_softmax_MV.exp() * log_softmax_MV).sum(-1)[: len(index)]
    target_M1 = torch.from_numpy(batch.tokens[index]).to(device)[:, None]
    logprobs_M = log_softmax_MV[: len(index)].gather(1, target_M1)[:, 0]
    # The gradient of a sum is as large as what is summed: only where nothing else connects the graph.
    anchor = log_softmax_MV.new_zeros(()) if len(index) else log_softmax_MV.sum() * 0
    return TokenLogprobs(index, logprobs_M, entropy_M, anchor)


@torch.no_grad()
def score_batch(titan: TitanModel, batch: Batch, temperature: float, row_length: int, rows: int) -> np.ndarray:
    """Logprobs of the tokens in the loss mask, float32 [N], 0 elsewhere; the same on every rank."""
    scores = torch.zeros(len(batch.tokens))
    for part in token_logprobs(titan, batch, temperature, row_length, rows):
        scores[torch.from_numpy(part.index_M)] = part.logprobs_M.cpu()
    titan.end_forward()
    return over_ranks(titan, scores).numpy()


def over_ranks(titan: TitanModel, values: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks that share the batch, on the CPU."""
    if _data_parallel(titan)[0] > 1:
        values = values.to(titan.device)
        dist.all_reduce(values, group=titan.dims.get_mesh("batch").get_group())
    return values.cpu()


def _data_parallel(titan: TitanModel) -> tuple[int, int]:
    """Ranks that share the batch, and which one this is."""
    mesh = titan.dims.get_optional_mesh("batch")
    return (mesh.size(), mesh.get_local_rank()) if mesh else (1, 0)
