"""Ctrl-C and SIGTERM, from the first import to the last process: the first one ends what is done, in good order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Soon = Callable[[Callable[[], None]], bool]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: list[int] = []  # of the process, whose signals are one


@contextmanager
def interruptible() -> Iterator[None]:
    """In this block the first SIGINT or SIGTERM raises KeyboardInterrupt with its number; needs the main thread.

    If it is lost on its way, in a callback that takes no exceptions (imports have such), `until_stopped` raises it.
    """
    if signal.getsignal(signal.SIGINT) is _interrupt:
        yield
        return
    _received.clear()
    before = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    if len(_received) == 1:
        raise KeyboardInterrupt(number)


async def until_stopped(work: Coroutine, soon: Soon = lambda end: False) -> Any:
    """Do the work; the first SIGINT or SIGTERM cancels it, and later ones cannot disturb what it does then to end.

    At a first SIGTERM, `soon(end)` may promise to call `end` when the work has reached a good place to be cancelled; it
    returns whether it does. Another signal does not wait for that.

    Raises: KeyboardInterrupt with the signal's number, once the work has ended.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    ending = False

    def end() -> None:
        nonlocal ending
        if not ending:
            ending = True
            task.cancel()

    def stop(number: int) -> None:
        _received.append(number)
        if not (_received == [signal.SIGTERM] and soon(end)):
            end()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    if _received:
        end()
    try:
        return await task
    except asyncio.CancelledError:
        if not _received:
            raise
        raise KeyboardInterrupt(_received[0]) from None
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, _interrupt)
