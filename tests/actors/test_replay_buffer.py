import asyncio

import pytest
from episodes import group

from rlmesh.actors.config import ReplayBufferConfig
from rlmesh.actors.replay_buffer import ReplayBuffer
from rlmesh.actors.service import Replica, Service
from rlmesh.errors import ActorFailure


@pytest.fixture
def buffer(proc, request):
    config = ReplayBufferConfig(max_policy_age=1, take_timeout_s=0.5)
    return Service(
        "ReplayBuffer", [Replica(proc.spawn(f"buffer_{request.node.name}", ReplayBuffer, config))], limit_s=20
    )


async def test_a_step_gets_its_groups_in_their_places_whatever_the_order_of_arrival(buffer):
    taking = asyncio.create_task(buffer.take(0, version=0, count=3))
    for index in (2, 0, 1):
        await buffer.put(group([float(index)], index=index))
    assert [g.task.index for g in await taking] == [0, 1, 2]


async def test_groups_of_later_steps_wait_their_turn(buffer):
    await buffer.put(group([0.0], step=1, version=0))
    await buffer.put(group([0.0], step=0, version=0))
    assert [g.task.step for g in await buffer.take(0, version=0, count=1)] == [0]
    assert await buffer.missing(1, count=3) == [1, 2]
    assert [g.task.step for g in await buffer.take(1, version=1, count=1)] == [1]


async def test_a_group_older_than_the_bound_is_refused(buffer):
    await buffer.put(group([0.0], version=3))
    with pytest.raises(
        ActorFailure, match="group 0 of step 0 was made by versions 3 to 3; version 5 trains on groups of at most 1"
    ):
        await buffer.take(0, version=5, count=1)


async def test_a_negative_age_is_refused(buffer):
    await buffer.put(group([0.0], version=3))
    with pytest.raises(ActorFailure, match="versions 3 to 3; version 2"):
        await buffer.take(0, version=2, count=1)


async def test_no_group_is_taken_twice(buffer):
    await buffer.put(group([0.0]))
    with pytest.raises(ActorFailure, match="group 0 of step 0 came twice"):
        await buffer.put(group([0.0]))
    await buffer.take(0, version=0, count=1)
    with pytest.raises(ActorFailure, match="came twice"):
        await buffer.put(group([0.0]))


async def test_missing_groups_are_named(buffer):
    await buffer.put(group([0.0], index=1))
    with pytest.raises(ActorFailure, match=r"step 0 waited 0.5 s for groups \[0, 2\] of the rollout workers"):
        await buffer.take(0, version=0, count=3)
