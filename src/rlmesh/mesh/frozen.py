"""A process that stands still would be waited for until a call's limit is over; killed, it is noticed at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

log = logging.getLogger(__name__)

_LOOK_S, _LIMIT_S = 2.0, 10.0


async def kill_frozen(killed: Callable[[str], None]) -> None:
    """Kill every process below this one that has been stopped (by SIGSTOP, or by the machine's owner) for 10 s; never returns.

    `killed(title)` is told of each. Linux itself says that a process is stopped: one that is only slow is never meant.
    """
    since: dict[int, float] = {}
    while True:
        await asyncio.sleep(_LOOK_S)
        stopped, now = await asyncio.to_thread(_stopped), time.monotonic()
        since = {process.pid: since.get(process.pid, now) for process in stopped}
        for process in stopped:
            if now - since[process.pid] >= _LIMIT_S:
                with suppress(psutil.Error, IndexError):  # it has gone, or has no name left
                    title = process.cmdline()[0]
                    process.kill()
                    log.warning("%s (process %d) stood still for %.0f s and was killed", title, process.pid, _LIMIT_S)
                    killed(title)


def _stopped() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                found.append(process)
    return found
