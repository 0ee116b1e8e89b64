"""Samples for the turns of one group's episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rlmesh.rollout.types import Completion, GenerateRequest, Task
from rlmesh.seeds import fan_out

Generate = Callable[[list[GenerateRequest]], Awaitable[list[list[Completion]]]]

_SEED_BITS = 47  # a long run asks millions of times; the policy server has 16 bits more for the samples of one request


class GroupSampler:
    """Asks the policy for each turn of each episode of a group; every turn draws from a stream of its own.

    The episodes of a group begin with the same prompt, so the first turns are one request with `group_size` samples, of which
    each episode takes its own: that costs the policy server about half of what single requests do.

    >>> sampler = GroupSampler(policy.generate, task, max_tokens=4)            # doctest: +SKIP
    >>> completion = await sampler.sample(index=3, turn=0, prompt=[5, 6, 7])
    """

    def __init__(self, generate: Generate, task: Task, max_tokens: int):
        self._generate, self._task, self._max_tokens = generate, task, max_tokens
        self._first_turns: dict[tuple[int, ...], asyncio.Task] = {}

    async def sample(self, index: int, turn: int, prompt: list[int]) -> Completion:
        """The completion of episode `index` at `turn`."""
        if turn > 0:
            seed = fan_out(self._task.seed, "sample", index, turn, bits=_SEED_BITS)
            [[completion]] = await self._generate([GenerateRequest(prompt, 1, seed, self._max_tokens)])
            return completion
        key = tuple(prompt)
        if key not in self._first_turns:
            seed = fan_out(self._task.seed, "sample", bits=_SEED_BITS)
            request = GenerateRequest(prompt, self._task.group_size, seed, self._max_tokens)
            self._first_turns[key] = asyncio.create_task(self._generate([request]))
        # An episode that is cancelled must not take the others' samples with it.
        [completions] = await asyncio.shield(self._first_turns[key])
        return completions[index]

    def close(self) -> None:
        """Nobody waits for what was asked for and has not come."""
        for asked in self._first_turns.values():
            asked.cancel()
