"""Calls to the actors of one kind: routed over replicas, limited in time, their errors named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch._src.actor.actor_mesh import ActorMesh
from monarch.actor import ActorError

from rlmesh.errors import ActorDied, ActorFailure, RLMeshError
from rlmesh.tasks import together


@dataclass(eq=False)
class Replica:
    """One replica of an actor: its procs' Monarch actors and, where an ActorMesh made it, what it is called."""

    actors: ActorMesh
    name: str = ""  # in the run's `logs/`; stays when it is replaced
    spawned: str = ""  # for Monarch; never used twice


class Replacing(Protocol):
    """Who puts a new replica into the place of one that died."""

    def take_on(self, death: ActorDied) -> bool:
        """Begin with it, if nobody did before; False when it will not be done."""

    async def after(self, death: ActorDied) -> None:
        """Return when it is done. Raises: the death, when it is not."""


class Service:
    """A picklable handle: `await service.endpoint(...)` calls one replica, the one with the fewest calls of this handle.

    A replica of several procs (a trainer's ranks) gets the call on every proc, and the answer of rank 0 is returned.
    `await service.each("endpoint", ...)` calls every replica and returns their answers in order; `service.sticky()` is for a caller
    that does better to stay with one.

    A call whose replica died goes to another one. Where none is left it waits until `replacing` has put a new one there, and is
    made again; without `replacing` (in a handle that was pickled, too) it fails.

    Raises: ActorFailure that names the actor, the replica, the endpoint and the cause; ActorDied when no answer will come, or
    none came within `limit_s` seconds.

    >>> policy = Service("PolicyServer", [Replica(actor_mesh)], limit_s=600)     # doctest: +SKIP
    >>> completions = await policy.generate(requests)
    """

    def __init__(
        self,
        name: str,
        replicas: list[Replica],
        limit_s: float,
        replacing: Replacing | None = None,
    ):
        self._name, self._replicas, self._limit_s, self._replacing = name, list(replicas), limit_s, replacing
        self._pending = [0] * len(replicas)
        self._dead: set[Replica] = set()
        self._sticks, self._kept = False, None

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_replacing": None, "_pending": [0] * len(self._replicas), "_dead": set()}

    def __getattr__(self, endpoint: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if endpoint.startswith("_"):  # pickle asks for such names before the handle is filled
            raise AttributeError(endpoint)

        async def call(*args, **kwargs):
            while True:
                index = self._route()
                try:
                    return await self._call(index, endpoint, args, kwargs)
                except ActorDied as death:
                    await self._after(death)

        return call

    def __len__(self) -> int:
        return len(self._replicas)

    async def each(self, endpoint: str, *args, **kwargs) -> list[Any]:
        """Call every replica at the same time; the replacement of one that dies is called, too."""

        async def call(index: int) -> Any:
            while True:
                try:
                    return await self._call(index, endpoint, args, kwargs)
                except ActorDied as death:
                    if self._replacing is None:
                        raise
                    await self._replacing.after(death)

        return await together(*map(call, range(len(self._replicas))))

    def replicas(self) -> list[Service]:
        """A handle to each replica alone."""
        return [self.alone(replica) for replica in self._replicas]

    def sticky(self) -> Service:
        """A handle whose calls all go to the replica that takes the first one, as long as it lives.

        For a caller whose later calls extend the earlier ones: the turns of an episode find their beginning in the prefix cache.
        """
        handle = object.__new__(Service)
        handle.__dict__ |= self.__dict__ | {"_sticks": True}  # what is known of the replicas is shared
        return handle

    def alone(self, replica: Replica) -> Service:
        """A handle to a replica of this kind, which is not replaced when it dies."""
        return Service(self._name, [replica], self._limit_s)

    def replace(self, index: int, replica: Replica) -> None:
        """From here on this replica is called in the place of the one that was there."""
        self._dead.discard(self._replicas[index])
        self._replicas[index] = replica

    def _route(self) -> int:
        """The living replica with the fewest calls; any of them when none is known to live."""
        indices = range(len(self._replicas))
        living = [index for index in indices if self._replicas[index] not in self._dead] or indices
        kept = [index for index in living if self._replicas[index] is self._kept]
        index = min(kept or living, key=self._pending.__getitem__)
        if self._sticks:
            self._kept = self._replicas[index]
        return index

    async def _after(self, death: ActorDied) -> None:
        """Return when the call can be made again. Raises: the death, when it cannot."""
        # What died may be another actor, that the replica needs.
        own = any(death.spawned == replica.spawned for replica in self._dead)
        if own and any(replica not in self._dead for replica in self._replicas):
            if self._replacing:
                self._replacing.take_on(death)
        elif self._replacing:
            await self._replacing.after(death)
        else:
            raise death

    async def _call(self, index: int, endpoint: str, args, kwargs) -> Any:
        replica, where = self._replicas[index], f"{self._name}[{index}].{endpoint}"
        self._pending[index] += 1
        try:
            async with asyncio.timeout(self._limit_s):
                answers = await getattr(replica.actors, endpoint).call(*args, **kwargs)
            return next(iter(answers.values()))
        except TimeoutError:
            raise self._died(replica, f"{where} did not answer within {self._limit_s:g} s") from None
        except ActorError as error:
            cause = error.exception
            if isinstance(cause, ActorDied) and cause.spawned:
                raise ActorDied(f"{where} failed: {cause}", cause.actor, cause.spawned) from error
            if isinstance(cause, ActorDied):
                raise self._died(replica, f"{where} failed: {cause}") from error
            text = str(cause) if isinstance(cause, RLMeshError) else f"{type(cause).__name__}: {cause}"
            raise ActorFailure(f"{where} failed: {text}") from error
        except SupervisionError as error:
            raise self._died(replica, f"{where}: the process of {self._name}[{index}] died: {error}") from error
        finally:
            self._pending[index] -= 1

    def _died(self, replica: Replica, text: str) -> ActorDied:
        if replica in self._replicas:  # and was not replaced meanwhile
            self._dead.add(replica)
        return ActorDied(text, replica.name, replica.spawned)
