"""EnvPool: episodes over the sessions of one OpenEnv server.

It speaks OpenEnv's WebSocket protocol itself. OpenEnv's own client reconnects in silence when a socket drops, so that an
episode goes on in another game; it has no deadline that also frees the session; and it pings idle sessions out.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.protocol import State

from rlmesh.envs.config import EnvConfig
from rlmesh.envs.serve import MAX_MESSAGE_BYTES
from rlmesh.errors import RLMeshError
from rlmesh.rollout.types import Outcome

_CAPACITY_RETRY_S = 0.1


class EnvFailure(RLMeshError):
    """The environment, not the model, failed; `outcome` says how. The episode is worth nothing and can be played again."""

    def __init__(self, outcome: Outcome, message: str):
        super().__init__(message)
        self.outcome = outcome


class _AtCapacity(Exception):
    """The server refused a new session for now."""


@dataclass(slots=True)
class StepResult:
    """What the environment said: to the model (`observation`), and to the trainer (the rest)."""

    observation: str
    reward: float
    done: bool
    metadata: dict[str, Any]
    episode_id: str
    step: int


class EnvSession:
    """One session of a server, good for one episode at a time.

    Invariant: every answer is checked to belong to this episode and to follow the step before; whatever does not ends the
    episode as `env_lost`. A session that failed in any way that leaves its socket in doubt is never used again.
    """

    def __init__(self, url: str, timeout_s: float):
        self._url, self._timeout_s = url, timeout_s
        self._connection: ClientConnection | None = None
        self._in_sync = True  # no request is waiting for its answer
        self._episode_id, self._step = "", 0

    @property
    def reusable(self) -> bool:
        return self._in_sync and self._connection is not None and self._connection.state is State.OPEN

    async def reset(self, **args: Any) -> StepResult:
        """Begin an episode; the arguments go to the environment.

        Raises: EnvFailure (`capacity` when the server has had no free session for the whole limit).
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while True:
            try:
                result = await self._call("reset", args)
                break
            except _AtCapacity:
                self.abort()
                self._connection, self._in_sync = None, True
                if loop.time() + _CAPACITY_RETRY_S > deadline:
                    raise self._failure(Outcome.CAPACITY, f"no free session for {self._timeout_s:g} s") from None
                await asyncio.sleep(_CAPACITY_RETRY_S)
        if result.step != 0:
            self._in_sync = False
            raise self._failure(Outcome.ENV_LOST, f"reset gave episode {result.episode_id} at step {result.step}")
        self._episode_id, self._step = result.episode_id, 0
        return result

    async def step(self, text: str) -> StepResult:
        """Give the model's answer to the environment.

        Raises: EnvFailure.
        """
        result = await self._call("step", {"text": text})
        self._step += 1
        if (result.episode_id, result.step) != (self._episode_id, self._step):
            self._in_sync = False
            raise self._failure(
                Outcome.ENV_LOST,
                f"episode {self._episode_id} at step {self._step} was answered from {result.episode_id} at {result.step}",
            )
        return result

    async def _call(self, kind: str, data: dict[str, Any]) -> StepResult:
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._connection is None:
                    self._connection = await self._connect()
                self._in_sync = False
                # A server at capacity says so and closes before it is asked: what it said is still to be received.
                with suppress(ConnectionClosed):
                    await self._connection.send(orjson.dumps({"type": kind, "data": data}), text=True)
                raw = await self._connection.recv(decode=False)
                self._in_sync = True
        except TimeoutError:
            self._in_sync = False
            raise self._failure(Outcome.TIMEOUT, f"no answer to a {kind} within {self._timeout_s:g} s") from None
        except (OSError, WebSocketException) as error:
            self._in_sync = False
            raise self._failure(Outcome.ENV_LOST, f"lost at a {kind} ({type(error).__name__}: {error})") from error
        return self._result(kind, raw)

    def _result(self, kind: str, raw: bytes) -> StepResult:
        """What the server's message says. Raises: EnvFailure when it is a refusal, or none of OpenEnv's messages."""
        try:
            message = orjson.loads(raw)
            refused, answer = message["type"] == "error", message["data"]
            if refused and answer.get("code") == "CAPACITY_REACHED":
                raise _AtCapacity
            if not refused:
                metadata = answer.get("metadata") or {}
                result = StepResult(
                    observation=answer["observation"]["text"],
                    reward=float(answer["reward"] or 0.0),
                    done=answer["done"],
                    metadata=metadata,
                    episode_id=metadata["episode_id"],
                    step=metadata["step"],
                )
        except KeyError as key:
            why = f"its observations lack {key}: rlmesh needs `text`, and `episode_id` and `step` in the metadata"
            raise self._failure(Outcome.ENV_ERROR, why) from None
        except (ValueError, TypeError, AttributeError) as error:
            why = f"answered a {kind} with something else than an observation: {raw[:200]!r} ({error})"
            raise self._failure(Outcome.ENV_ERROR, why) from None
        if refused:
            why = f"refused a {kind}: {answer.get('message')} {answer.get('errors', '')}"
            raise self._failure(Outcome.ENV_ERROR, why)
        self._check_types(kind, result)
        return result

    def _check_types(self, kind: str, result: StepResult) -> None:
        for name, wanted in (("observation", str), ("done", bool), ("metadata", dict), ("step", int)):
            if not isinstance(value := getattr(result, name), wanted):
                raise self._failure(
                    Outcome.ENV_ERROR, f"answered a {kind} with {name} = {value!r:.200}, which is no {wanted.__name__}"
                )
        if not math.isfinite(result.reward):
            raise self._failure(Outcome.ENV_ERROR, f"answered a {kind} with a reward of {result.reward}")

    async def _connect(self) -> ClientConnection:
        # No pings: a session is silent for as long as the model generates; the deadlines find a lost server.
        return await connect(
            f"{self._url}/ws",
            compression=None,
            ping_interval=None,
            open_timeout=None,
            close_timeout=1.0,
            max_size=MAX_MESSAGE_BYTES,
            proxy=None,
        )

    def _failure(self, outcome: Outcome, what: str) -> EnvFailure:
        return EnvFailure(outcome, f"environment server {self._url}: {what}")

    def abort(self) -> None:
        """Drop the socket at once, without the closing handshake that a hung server would not answer."""
        if self._connection:
            self._connection.transport.abort()

    async def close(self) -> None:
        """End the session in good order."""
        if self._connection:
            await self._connection.close()


class EnvPool:
    """At most `config.sessions` episodes at a time on one server; sessions open when needed and serve again.

    >>> async with EnvPool("ws://127.0.0.1:8000", EnvConfig()) as pool:      # doctest: +SKIP
    ...     async with pool.lease() as session:
    ...         result = await session.reset(seed=1, deal_seed=0)
    ...         while not result.done:
    ...             result = await session.step("stand")
    """

    def __init__(self, url: str, config: EnvConfig):
        self.url, self._config = url.rstrip("/"), config
        self._slots = asyncio.Semaphore(config.sessions)
        self._idle: list[EnvSession] = []

    async def __aenter__(self) -> EnvPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the sessions that no episode uses."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(session.close() for session in idle))

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[EnvSession]:
        """A session for one episode; waits while `config.sessions` episodes are running."""
        async with self._slots:
            session = self._take_idle() or EnvSession(self.url, self._config.step_timeout_s)
            try:
                yield session
            finally:
                if session.reusable:
                    self._idle.append(session)
                else:
                    session.abort()

    def _take_idle(self) -> EnvSession | None:
        while self._idle:
            if (session := self._idle.pop()).reusable:
                return session
        return None
