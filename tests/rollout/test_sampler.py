import asyncio

import pytest

from rlmesh.rollout.sampler import GroupSampler
from rlmesh.rollout.types import Completion, Task

TASK = Task(step=0, index=0, group_size=4, seed=9, shared_seed=1)


def recorder(requests, delay_s=0.0):
    async def generate(batch):
        requests.extend(batch)
        await asyncio.sleep(delay_s)
        return [[Completion([i], [0.0], "stop", [0]) for i in range(request.n)] for request in batch]

    return generate


async def test_first_turns_are_one_request_and_each_episode_takes_its_own_sample():
    requests = []
    sampler = GroupSampler(recorder(requests), TASK, max_tokens=4)
    samples = await asyncio.gather(*[sampler.sample(index, 0, [5, 6]) for index in range(4)])
    assert [request.n for request in requests] == [4]
    assert [sample.tokens for sample in samples] == [[0], [1], [2], [3]]


async def test_later_turns_have_streams_of_their_own():
    requests = []
    sampler = GroupSampler(recorder(requests), TASK, max_tokens=4)
    await asyncio.gather(*[sampler.sample(index, turn, [5]) for index in range(4) for turn in range(3)])
    assert len({request.seed for request in requests}) == len(requests) == 9


async def test_an_episode_that_is_cancelled_leaves_the_others_their_samples():
    requests = []
    sampler = GroupSampler(recorder(requests, delay_s=0.1), TASK, max_tokens=4)
    waiting = [asyncio.create_task(sampler.sample(index, 0, [5])) for index in range(2)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    assert (await waiting[1]).tokens == [1]
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
