"""The death of an actor's process ends what the controller is doing, with one error that names it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import monarch.actor
from monarch.actor import MeshFailure

from rlmesh.errors import ActorFailure

log = logging.getLogger(__name__)


class Supervision:
    """Hears from Monarch about failures that nobody handled; left to itself Monarch would interrupt the controller.

    >>> with Supervision() as supervision:                    # doctest: +SKIP
    ...     await supervision.guard(training())
    """

    def __enter__(self) -> Supervision:
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[ActorFailure] = self._loop.create_future()
        monarch.actor.unhandled_fault_hook = self._on_failure
        return self

    def __exit__(self, *error) -> None:
        # Monarch reports late what was killed at the end, and its own hook would end this process over it.
        monarch.actor.unhandled_fault_hook = _too_late

    async def guard(self, work: Coroutine) -> Any:
        """Do the work until it is done, or until a process dies. Raises: ActorFailure that names the actor."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._failed}, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done() and not task.done():
                raise self._failed.result()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _on_failure(self, failure: MeshFailure) -> None:
        """Called by Monarch, on a thread of its own."""
        log.debug("%s", failure.report())
        name = failure.mesh_name or ""
        actor = name.partition("-")[0]
        if actor.lower() in (
            "logger",
            "setup",
            "spmdactor",
        ):  # Monarch's own companions of every actor; the actor itself is reported too
            return
        self._loop.call_soon_threadsafe(
            self._fail, ActorFailure(f"{actor}: its process died; its log is the last word on why")
        )

    def _fail(self, failure: ActorFailure) -> None:
        if not self._failed.done():
            self._failed.set_result(failure)


def _too_late(failure: MeshFailure) -> None:
    log.debug("after the end: %s", failure.report())
