"""What died and can be made anew is replaced while the others go on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from rlmesh.errors import ActorDied

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Hears of deaths after which the others go on."""

    def on_death(self, death: ActorDied) -> None:
        """An actor died and is being replaced."""

    def on_replaced(self, actor: str, seconds: float) -> None:
        """There is a new one, so long after the death."""


class Replacements:
    """Replaces actors that died, each at most `limit` times between two calls of `forgive`.

    `replace(actor)` puts a new one into the place of the actor of this name and returns the Monarch name of the new one;
    `failed(death)` is called when it cannot.

    Invariant: one death is one replacement, whoever notices it and however often.

    >>> replacements = Replacements(replace, limit=3, failed=supervision.fail)                       # doctest: +SKIP
    >>> replacements.watch("policy_0", "policy_0_1a2b3c4d")
    >>> await replacements.after(death)                  # returns when policy_0 serves again, or raises the death
    """

    def __init__(
        self,
        replace: Callable[[str], Awaitable[str]],
        limit: int,
        failed: Callable[[ActorDied], None],
        listener: Listener | None = None,
    ):
        self._replace, self._limit, self._failed = replace, limit, failed
        self._listener = listener
        self._living: dict[str, str] = {}  # actor -> its Monarch name
        self._running: dict[str, asyncio.Task[bool]] = {}
        self._late: dict[str, ActorDied] = {}
        self.counts: Counter[str] = Counter()

    def watch(self, actor: str, spawned: str) -> None:
        """This actor is replaced when it dies."""
        self._living[actor] = spawned

    def take_on(self, death: ActorDied) -> bool:
        """Begin to replace the actor, if nobody did before; False when that will not be done."""
        actor = death.actor
        if actor not in self._living:
            return False
        if actor in self._running and death.spawned != self._living[actor]:
            self._late[actor] = death  # perhaps of the one that is just being set up
        if actor in self._running or death.spawned != self._living[actor]:
            return True
        if self.counts[actor] == self._limit:
            return False
        self.counts[actor] += 1
        self._running[actor] = asyncio.create_task(self._run(death))
        return True

    async def after(self, death: ActorDied) -> None:
        """Return when the call that met this death can be made again. Raises: the death, when the actor is not replaced."""
        if not self.take_on(death):
            raise death
        task = self._running.get(death.actor)
        if task and not await asyncio.shield(task):
            raise death

    def forgive(self) -> None:
        """Begin to count anew."""
        self.counts.clear()

    async def stop(self) -> None:
        """Replace nothing any more."""
        self._living.clear()
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, death: ActorDied) -> bool:
        began, actor = time.monotonic(), death.actor
        try:
            if self._listener:
                self._listener.on_death(death)
            self._living[actor] = await self._replace(actor)
            if self._listener:
                self._listener.on_replaced(actor, time.monotonic() - began)
        except Exception as error:
            self._living.pop(actor, None)
            self.counts -= Counter([actor])  # it was none; never below 0, which `forgive` may have set meanwhile
            log.warning("%s could not be replaced", actor, exc_info=True)
            self._failed(ActorDied(f"{death}; it could not be replaced: {error}", actor, death.spawned))
            return False
        finally:
            del self._running[actor]
        late = self._late.pop(actor, None)
        if late and late.spawned == self._living.get(actor) and not self.take_on(late):
            self._failed(late)
        return True
