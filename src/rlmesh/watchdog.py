"""Names who has waited for whom for too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

_LOOK_S = 1.0


class Watchdog:
    """Says once of each wait that it goes on for longer than `limit_s` seconds.

    `details()` is asked then, for what those who are waited for are waiting for themselves.

    >>> watchdog = Watchdog(300, warn=print, details=mesh.waits)                          # doctest: +SKIP
    >>> with watchdog.waiting("step 3: the trainer waits for groups of the rollout workers"):
    ...     groups = await replay_buffer.take(...)
    """

    def __init__(self, limit_s: float, warn: Callable[[str], None], details: Callable[[], Awaitable[str]]):
        self._limit_s, self._warn, self._details = limit_s, warn, details
        self._waits: dict[object, tuple[str, float]] = {}

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """The block waits for what `what` says."""
        wait = object()
        self._waits[wait] = (what, time.monotonic())
        try:
            yield
        finally:
            self._waits.pop(wait, None)

    async def watch(self) -> None:
        """Look now and then; never returns."""
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            long = [wait for wait, (_, since) in self._waits.items() if now - since > self._limit_s]
            # All at once: a wait may end while another one's details are asked for.
            for what, since in [self._waits.pop(wait) for wait in long]:
                self._warn(f"{what}, for {now - since:.0f} s already; {await self._ask()}")

    async def _ask(self) -> str:
        """The details; those who know them may be what hangs."""
        try:
            async with asyncio.timeout(_LOOK_S):
                return await self._details()
        except Exception as error:
            return f"who is waited for does not say why ({str(error) or 'no answer'})"
