"""Ctrl-C and SIGTERM, from the first import to the last process: the first one ends what is done, in good order."""

from __future__ import annotations

import _thread
import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Soon = Callable[[Callable[[], None]], bool]

_PATIENCE_S = 3.0  # a loop that has not heard of a signal by then is blocked
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
    stopper = _Stopper(task, soon)
    for number in _SIGNALS:
        loop.add_signal_handler(number, stopper.hear, number)
        signal.signal(number, stopper.arrive)
    if _received:
        stopper.end()
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


class _Stopper:
    """What signals do to a task: the loop hears of them and cancels it; a loop that is blocked is interrupted."""

    def __init__(self, task: asyncio.Future, soon: Soon):
        self._task, self._soon = task, soon
        self._ending = self._unheard = self._blocked = False

    def end(self) -> None:
        if not self._ending:
            self._ending = True
            self._task.cancel()

    def hear(self, number: int) -> None:
        """In the loop, which a signal wakes."""
        self._unheard = False
        _received.append(number)
        if not (_received == [signal.SIGTERM] and self._soon(self.end)):
            self.end()

    def arrive(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, between any two of its bytecodes: also while somebody's code blocks the loop."""
        if self._blocked:
            self._blocked = False
            raise KeyboardInterrupt(number)
        self._unheard = True
        timer = threading.Timer(_PATIENCE_S, self._insist, [number])
        timer.daemon = True
        timer.start()

    def _insist(self, number: int) -> None:
        if self._unheard:
            self._blocked = True
            _thread.interrupt_main(number)
