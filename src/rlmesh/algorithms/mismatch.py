"""The comparison of every step: does the policy server compute what the trainer computes, for the same weights?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlmesh.algorithms.config import MismatchConfig
from rlmesh.errors import RLMeshError
from rlmesh.rollout.batch import Batch
from rlmesh.rollout.mismatch import Mismatch, ratio_metrics

if TYPE_CHECKING:
    from rlmesh.actors.service import Service
    from rlmesh.run import Run

_MOST_PREFILLED = 1 << 16  # tokens that the policy server reads for one comparison, at most

Served = tuple[np.ndarray, np.ndarray]  # places in the batch [K], and the policy server's logprobs of these tokens [K]


async def served_logprobs(policy: Service, batch: Batch, version: int, sequences: int, temperature: float) -> Served:
    """The policy server's logprobs of tokens of the batch under the weights of `version`, which it must be serving.

    These are the sampled ones where `version` made the token; where it made none, the first samples are scored again, at
    temperatures other than 1, where each token costs vLLM a request with all before it, as much of them as is bearable.
    """
    made = np.flatnonzero(batch.versions == version)
    if len(made) or not sequences:
        return made, batch.logprobs[made]
    prompts, completions, places, left = [], [], [], _MOST_PREFILLED
    for start, end in zip(batch.offsets[:-1][:sequences], batch.offsets[1:], strict=False):
        inside = np.flatnonzero(batch.loss_mask[start:end]) + start
        if temperature != 1:
            read = np.cumsum(np.arange(inside[0], inside[-1] + 1) - start)[inside - inside[0]]
            inside = inside[read <= left]
            if not len(inside):
                break
            left -= read[len(inside) - 1]
        prompts.append(batch.tokens[start : inside[0]].tolist())
        completions.append(batch.tokens[inside[0] : inside[-1] + 1].tolist())
        places.append(inside)
    if not places:
        return made, batch.logprobs[made]
    scores = await policy.score(prompts, completions)
    served = [score[place - place[0]] for score, place in zip(scores, places, strict=True)]
    return np.concatenate(places), np.concatenate(served)


def compare(
    run: Run, step: int, batch: Batch, served: Served, trained_logprobs: np.ndarray, config: MismatchConfig
) -> None:
    """Record how far the two are from each other. Raises: RLMeshError beyond `stop_above`, naming where the tokens are."""
    run.record(step, ratio_metrics(batch, trained_logprobs))
    index, logprobs = served
    if not len(index):
        return
    mismatch = Mismatch(index, logprobs, trained_logprobs[index])
    run.record(step, mismatch.metrics())
    if config.stop_above and (tokens := mismatch.worst(batch, config.stop_above)):
        path = run.directory.write_mismatch(step, tokens)
        first = tokens[0]
        raise RLMeshError(
            f"algorithm.mismatch.stop_above: for the same weights the trainer gives token {first['token']} a logprob of "
            f"{first['trainer_logprob']:.4g} and the policy server {first['policy_server_logprob']:.4g}, more than "
            f"{config.stop_above:g} apart; {len(tokens)} of {len(index)} tokens of step {step} are, see {path}"
        )
