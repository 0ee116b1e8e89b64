"""Calls to the actors of one kind: routed over replicas, limited in time, their errors named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch._src.actor.actor_mesh import ActorMesh
from monarch.actor import ActorError

from rlmesh.errors import ActorDied, ActorFailure, RLMeshError
from rlmesh.tasks import together


class Service:
    """A picklable handle: `await service.endpoint(...)` calls one replica, the one with the fewest calls of this handle.

    A replica of several procs (a trainer's ranks) gets the call on every proc, and the answer of rank 0 is returned.
    `await service.each("endpoint", ...)` calls every replica and returns their answers in order.

    Raises: ActorFailure that names the actor, the replica, the endpoint and the cause; ActorDied when no answer will come, or
    none came within `limit_s` seconds.

    >>> policy = Service("PolicyServer", [actor_mesh], limit_s=600)     # doctest: +SKIP
    >>> completions = await policy.generate(requests)
    """

    def __init__(self, name: str, replicas: list[ActorMesh], limit_s: float, logs: Sequence[str] = ()):
        self._name, self._replicas, self._limit_s = name, replicas, limit_s
        self._logs = logs or [""] * len(replicas)  # the replicas' names in the run's `logs/`, where it has any
        self._pending = [0] * len(replicas)

    def __getattr__(self, endpoint: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if endpoint.startswith("_"):  # pickle asks for such names before the handle is filled
            raise AttributeError(endpoint)

        async def call(*args, **kwargs):
            replica = min(range(len(self._replicas)), key=self._pending.__getitem__)
            return await self._call(replica, endpoint, args, kwargs)

        return call

    async def each(self, endpoint: str, *args, **kwargs) -> list[Any]:
        """Call every replica at the same time."""
        replicas = range(len(self._replicas))
        return await together(*[self._call(replica, endpoint, args, kwargs) for replica in replicas])

    async def _call(self, replica: int, endpoint: str, args, kwargs) -> Any:
        where = f"{self._name}[{replica}].{endpoint}"
        self._pending[replica] += 1
        try:
            async with asyncio.timeout(self._limit_s):
                answers = await getattr(self._replicas[replica], endpoint).call(*args, **kwargs)
            return next(iter(answers.values()))
        except TimeoutError:
            raise ActorDied(f"{where} did not answer within {self._limit_s:g} s", self._logs[replica]) from None
        except ActorError as error:
            cause = error.exception
            if isinstance(cause, ActorDied):
                raise ActorDied(f"{where} failed: {cause}", cause.actor or self._logs[replica]) from error
            text = str(cause) if isinstance(cause, RLMeshError) else f"{type(cause).__name__}: {cause}"
            raise ActorFailure(f"{where} failed: {text}") from error
        except SupervisionError as error:
            raise ActorDied(
                f"{where}: the process of {self._name}[{replica}] died: {error}", self._logs[replica]
            ) from error
        finally:
            self._pending[replica] -= 1
