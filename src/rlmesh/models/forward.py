"""Logprobs of a batch's tokens under a torchtitan model: packed, in micro-batches, over the data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from rlmesh.models.packing import PackedRows, pack
from rlmesh.models.titan import TitanModel
from rlmesh.rollout.batch import Batch

_MOST_LOGITS = 2**26  # at a time; 256 MiB in float32


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
    # A rank without tokens reads one place all the same: its graph must reach every weight.
    hidden_MD = hidden_BLD.flatten(0, 1)[before_M] if len(index) else hidden_BLD[0, :1]
    target_M = torch.from_numpy(batch.tokens[index] if len(index) else np.zeros(1, np.int64)).to(device)
    logprobs_M, entropy_M = _read(titan, hidden_MD, target_M, temperature)
    # The gradient of a sum is as large as what is summed: only where nothing else connects the graph.
    anchor = logprobs_M.new_zeros(()) if len(index) else logprobs_M.sum() * 0
    return TokenLogprobs(index, logprobs_M[: len(index)], entropy_M[: len(index)], anchor)


def _read(titan: TitanModel, hidden_MD: torch.Tensor, target_M: torch.Tensor, temperature: float):
    """Logprobs of the targets and the distributions' entropy, of some places at a time.

    The logits of all places are more than a model's activations where the vocabulary is large: no more than `_MOST_LOGITS` are kept,
    and each part's are computed again in the backward pass.
    """

    def read(hidden: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_softmax = torch.log_softmax(titan.logits(hidden) / temperature, dim=-1)
        with torch.no_grad():
            entropy = -(log_softmax.exp() * log_softmax).sum(-1)
        return log_softmax.gather(1, target[:, None])[:, 0], entropy

    places = max(1, _MOST_LOGITS // titan.vocab_size)
    if len(target_M) <= places:
        return read(hidden_MD, target_M)
    parts = [
        checkpoint(read, hidden, target, use_reentrant=False)
        for hidden, target in zip(hidden_MD.split(places), target_M.split(places), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


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
