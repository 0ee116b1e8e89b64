"""Logprobs of given completions from vLLM's engine."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS, RequestOutputKind

Serve = Callable[[list[int], SamplingParams], Awaitable[Any]]  # (prompt, sampling) -> vLLM's RequestOutput

_ONE_TOKEN = {"max_tokens": 1, "detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}


async def score(
    serve: Serve, temperature: float, prompts: list[list[int]], completions: list[list[int]]
) -> list[np.ndarray]:
    """Logprob of each token of each completion at a temperature, float32 [len(completion)] each."""
    if temperature != 1:
        return await _by_prefix(serve, temperature, prompts, completions)
    pairs = zip(prompts, completions, strict=True)
    return list(await asyncio.gather(*[_at_once(serve, prompt, completion) for prompt, completion in pairs]))


async def _at_once(serve: Serve, prompt: list[int], completion: list[int]) -> np.ndarray:
    """In one pass: vLLM's logprobs of a prompt (always of temperature 1), and the last token as the one to sample."""
    *before, last = completion
    sampling = SamplingParams(prompt_logprobs=0, logprob_token_ids=[last], **_ONE_TOKEN)
    output = await serve(prompt + before, sampling)
    entries = [*output.prompt_logprobs[len(prompt) :], output.outputs[0].logprobs[0]]
    return np.array([entry[token].logprob for token, entry in zip(completion, entries, strict=True)], dtype=np.float32)


async def _by_prefix(
    serve: Serve, temperature: float, prompts: list[list[int]], completions: list[list[int]]
) -> list[np.ndarray]:
    """Each token as the one to be sampled next, where vLLM does apply the temperature; once for each prefix."""

    def places(prompt: list[int], completion: list[int]) -> list[tuple[tuple[int, ...], int]]:
        return [((*prompt, *completion[:place]), token) for place, token in enumerate(completion)]

    pairs = [places(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
    wanted: dict[tuple[int, ...], set[int]] = {}
    for prefix, token in itertools.chain.from_iterable(pairs):
        wanted.setdefault(prefix, set()).add(token)
    logprobs: dict[tuple[tuple[int, ...], int], float] = {}

    async def ask(prefix: tuple[int, ...], tokens: list[int]) -> None:
        sampling = SamplingParams(temperature=temperature, logprob_token_ids=tokens, **_ONE_TOKEN)
        output = await serve(list(prefix), sampling)
        logprobs.update({(prefix, token): entry.logprob for token, entry in output.outputs[0].logprobs[0].items()})

    questions = [
        ask(prefix, sorted(tokens)[first : first + MAX_LOGPROB_TOKEN_IDS])
        for prefix, tokens in wanted.items()
        for first in range(0, len(tokens), MAX_LOGPROB_TOKEN_IDS)
    ]
    await asyncio.gather(*questions)
    return [np.array([logprobs[place] for place in pair], dtype=np.float32) for pair in pairs]
