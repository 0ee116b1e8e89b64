"""Groups in the order in which they were admitted, with a bound on their age."""

from __future__ import annotations

import asyncio

from rlmesh.errors import ActorFailure
from rlmesh.rollout.types import Group


class GroupQueue:
    """Holds groups until the step that consumes them.

    Every group is admitted for one training step (`group.task.step`) and one place in it (`group.task.index`), and
    `take` returns exactly the groups of a step in their places, whatever the order they arrived in. So what a step
    trains on does not depend on which episode was quicker, and none is trained on twice.

    Invariant: no token of a group returned by `take(step, version, count)` is older than `max_policy_age` versions. The
    caller makes it hold by dispatching a step's groups only once version `step - max_policy_age` is served; it is
    checked here, at consumption.

    State changes only between awaits of one event loop, which is what keeps concurrent calls apart.

    >>> queue = GroupQueue(max_policy_age=1, take_timeout_s=600)
    >>> await queue.put(group)                                                      # doctest: +SKIP
    >>> groups = await queue.take(step=0, version=0, count=32)                      # doctest: +SKIP
    """

    def __init__(self, max_policy_age: int, take_timeout_s: float):
        self._max_policy_age, self._take_timeout_s = max_policy_age, take_timeout_s
        self._steps: dict[int, dict[int, Group]] = {}
        self._taken = -1  # the last step that was taken
        self._arrived = asyncio.Condition()

    async def put(self, group: Group) -> None:
        """Store a group. Raises ActorFailure for a place that is taken or a step that was consumed already."""
        step, index = group.task.step, group.task.index
        async with self._arrived:
            if step <= self._taken or index in self._steps.get(step, {}):
                raise ActorFailure(f"ReplayBuffer: group {index} of step {step} came twice")
            self._steps.setdefault(step, {})[index] = group
            self._arrived.notify_all()

    async def take(self, step: int, version: int, count: int) -> list[Group]:
        """The `count` groups of a step, in their places; waits for them, at most `take_timeout_s`.

        Raises: ActorFailure that names the missing groups, or the group that breaks the bound on age.
        """
        places = self._steps.setdefault(step, {})
        try:
            async with asyncio.timeout(self._take_timeout_s), self._arrived:
                await self._arrived.wait_for(lambda: len(places) == count)
        except TimeoutError:
            raise ActorFailure(
                f"ReplayBuffer: step {step} waited {self._take_timeout_s:g} s for groups {self.missing(step, count)} of the "
                "rollout workers"
            ) from None
        groups = [places[index] for index in range(count)]
        for group in groups:
            self._check_age(group, version)
        del self._steps[step]
        self._taken = step
        return groups

    def missing(self, step: int, count: int) -> list[int]:
        """The places of a step whose groups have not come; none once the step was taken."""
        if step <= self._taken:
            return []
        return sorted(set(range(count)) - set(self._steps.get(step, {})))

    def _check_age(self, group: Group, version: int) -> None:
        if not any(episode.turns for episode in group.episodes):
            return  # nothing was sampled, so nothing is stale; it is not trained on either
        age = version - group.min_version
        if not (0 <= age <= self._max_policy_age and group.max_version <= version):
            raise ActorFailure(
                f"ReplayBuffer: group {group.task.index} of step {group.task.step} was made by versions {group.min_version} to "
                f"{group.max_version}; version {version} trains on groups of at most {self._max_policy_age} versions before it"
            )
