"""The version that the policy server serves, and waiting for one."""

from __future__ import annotations

import asyncio


class ServedVersion:
    """The policy version that rollouts begin with now.

    >>> served = ServedVersion(0)
    >>> served.current
    0
    """

    def __init__(self, current: int):
        self.current = current
        self._moved = asyncio.Condition()

    async def advance(self, version: int) -> None:
        """Every policy server serves `version` from here on."""
        async with self._moved:
            self.current = version
            self._moved.notify_all()

    async def reach(self, version: int) -> None:
        """Wait until `version`, or a newer one, is served."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.current >= version)
