"""ReplayBuffer: groups wait here for the trainer, in admission order, with a bound on their age."""

from __future__ import annotations

from monarch.actor import Actor, concurrent_endpoint

from rlmesh.actors.config import ReplayBufferConfig
from rlmesh.rollout.group_queue import GroupQueue
from rlmesh.rollout.types import Group


class ReplayBuffer(Actor):
    """Holds groups until the step that consumes them; `rlmesh.rollout.group_queue` has what holds and why.

    >>> buffer = proc_mesh.spawn("replay_buffer", ReplayBuffer, ReplayBufferConfig(max_policy_age=1))   # doctest: +SKIP
    >>> await buffer.put.call_one(group)
    >>> groups = await buffer.take.call_one(step=0, version=0, count=32)
    """

    def __init__(self, config: ReplayBufferConfig):
        self._queue = GroupQueue(config.max_policy_age, config.take_timeout_s)

    @concurrent_endpoint
    async def put(self, group: Group) -> None:
        """Store a group. Raises ActorFailure for a place that is taken or a step that was consumed already."""
        await self._queue.put(group)

    @concurrent_endpoint
    async def take(self, step: int, version: int, count: int) -> list[Group]:
        """The `count` groups of a step, in their places; waits for them, at most `config.take_timeout_s`.

        Raises: ActorFailure that names the missing groups, or the group that breaks the bound on age.
        """
        return await self._queue.take(step, version, count)

    @concurrent_endpoint
    async def missing(self, step: int, count: int) -> list[int]:
        """The places of a step whose groups have not come; none once the step was taken."""
        return self._queue.missing(step, count)
