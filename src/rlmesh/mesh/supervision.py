"""The death of an actor's process is heard of, and ends what the controller is doing unless something is done about it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import monarch.actor
from monarch.actor import MeshFailure

from rlmesh.errors import ActorDied, RecipeError, RLMeshError
from rlmesh.mesh.frozen import kill_frozen
from rlmesh.mesh.procs import title_of

log = logging.getLogger(__name__)

_HEARD_S = 3.0  # in which Monarch tells of a death
_FOLLOWS_S = 60.0  # in which the work may fail because of it


class Supervision:
    """Hears from Monarch about failures that nobody handled; left to itself Monarch would interrupt the controller.

    `handles(death)` says whether something is done about a death; what is guarded goes on then.

    Only the actors that were named to it count: Monarch reports late what was killed at the end of an earlier mesh, and it
    reports its own companions of every actor too.

    >>> with Supervision() as supervision:                    # doctest: +SKIP
    ...     procs.spawn(supervision.name("trainer_0"), TitanTrainer, ...)
    ...     await supervision.guard(training())
    """

    def __init__(self, handles: Callable[[ActorDied], bool] = lambda death: False):
        self._handles = handles
        self._heard_last: tuple[float, ActorDied] | None = None
        self._actors: dict[str, str] = {}  # name of the Monarch actor -> what a person calls it

    def __enter__(self) -> Supervision:
        self._loop, self._context = asyncio.get_running_loop(), contextvars.copy_context()
        self._failed: asyncio.Future[ActorDied] = self._loop.create_future()
        monarch.actor.unhandled_fault_hook = self._on_failure
        return self

    def __exit__(self, *error) -> None:
        # Monarch's own hook would end this process over what was killed at the end.
        monarch.actor.unhandled_fault_hook = _too_late

    def name(self, actor: str) -> str:
        """A name for a Monarch actor, like no other of this process; its death ends what is guarded."""
        name = f"{actor}_{uuid.uuid4().hex[:8]}"
        self.watch(name, actor)
        return name

    def watch(self, name: str, actor: str) -> None:
        """The death of the Monarch actor of this name ends what is guarded, too."""
        self._actors[name] = actor

    def forget(self, name: str) -> None:
        """Whatever happens to the Monarch actor of this name does not matter any more."""
        self._actors.pop(name, None)

    def fail(self, failure: ActorDied) -> None:
        """End what is guarded."""
        if not self._failed.done():
            self._failed.set_result(failure)

    async def guard(self, work: Coroutine) -> Any:
        """Do the work until it is done, or until a process dies. Raises: ActorDied that names the actor."""
        task, watchdog = asyncio.ensure_future(work), asyncio.create_task(kill_frozen(self._killed))
        try:
            await asyncio.wait({task, self._failed}, return_when=asyncio.FIRST_COMPLETED)
            if (
                task.done()
                and isinstance(task.exception(), RLMeshError)
                and not isinstance(task.exception(), RecipeError)
            ):
                # What fails first may only follow from a death that is not heard of yet.
                await asyncio.wait({self._failed}, timeout=_HEARD_S)
                if death := self._latest_death():
                    raise death from task.exception()
            if not task.done():
                raise self._failed.result()
            return task.result()
        finally:
            watchdog.cancel()
            task.cancel()
            await asyncio.gather(task, watchdog, return_exceptions=True)

    def _on_failure(self, failure: MeshFailure) -> None:
        """Called by Monarch, on a thread of its own."""
        log.debug("%s", failure.report())
        name = (failure.mesh_name or "").partition("-")[0]
        if actor := self._actors.get(name):
            why = f"{actor}: its process died; its log says why, or nothing where it was killed (for lack of memory, for example)"
            death = ActorDied(why, actor, name)
            # Monarch's thread has a context in which nothing can be spawned.
            self._loop.call_soon_threadsafe(self._heard, death, context=self._context)

    def _killed(self, title: str) -> None:
        """A process that stood still was killed; Monarch, which lost touch with it before, tells of that 20 s later."""
        for name, actor in self._actors.items():
            if title_of(actor) == title:
                return self._heard(ActorDied(f"{actor}: its process stood still and was killed", actor, name))

    def _latest_death(self) -> ActorDied | None:
        """What an error of the work may only follow from, also when something is done about it."""
        if self._failed.done():
            return self._failed.result()
        if self._heard_last and time.monotonic() - self._heard_last[0] < _FOLLOWS_S:
            return self._heard_last[1]
        return None

    def _heard(self, death: ActorDied) -> None:
        self._heard_last = (time.monotonic(), death)
        if not self._handles(death):
            self.fail(death)


def _too_late(failure: MeshFailure) -> None:
    log.debug("after the end: %s", failure.report())
