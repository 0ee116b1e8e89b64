"""RewardActor: scores finished episodes with the recipe's reward function."""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import inspect
import math
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from numbers import Real
from typing import Any

from monarch.actor import concurrent_endpoint

from rlmesh.actors.config import RewardConfig
from rlmesh.actors.needs_setup import NeedsSetup
from rlmesh.errors import ActorFailure
from rlmesh.imports import described, import_path
from rlmesh.rollout.types import Episode
from rlmesh.tasks import together

_GRACE_S, _BEAT_S = 10.0, 1.0
_STDERR = 2


class RewardActor(NeedsSetup):
    """Calls `config.function(episode, **config.args) -> float` on each episode, in a process of its own.

    Invariant: a reward is a finite number or the run ends; a function that fails, returns nothing or is too slow is never
    mistaken for a reward of 0. Episodes whose environment failed, or in which nothing was played, are not scored at all: their
    reward is None.

    A function that keeps the interpreter to itself (a regular expression that does not end) leaves nobody to notice the limit: then
    the process ends some seconds after it, with every thread's stack in its log.

    >>> reward = proc_mesh.spawn("reward", RewardActor, RewardConfig())   # doctest: +SKIP
    >>> await reward.setup.call_one()
    >>> await reward.score.call_one([episode])
    [-1.0]
    """

    def __init__(self, config: RewardConfig):
        self._config = config
        self._name = f"reward.function: {config.function}"
        # The function gets a thread, so that a slow one is noticed. An ordinary one: one call after the other, as it would
        # expect. An async one: an event loop of its own, which it may block.
        self._thread, self._turn = ThreadPoolExecutor(1), asyncio.Lock()

    @concurrent_endpoint
    async def setup(self) -> None:
        """Import the function. Raises: RecipeError naming `reward.function`."""
        name, limit_s = self._config.function, self._config.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                function = await asyncio.get_running_loop().run_in_executor(
                    self._thread, import_path, name, "reward.function"
                )
        except TimeoutError:
            raise ActorFailure(
                f"{self._name}: importing it took longer than {limit_s:g} s (reward.start_timeout_s)"
            ) from None
        self._function = functools.partial(function, **self._config.args)
        self._beating = asyncio.create_task(self._beat())
        if inspect.iscoroutinefunction(function):
            self._loop = asyncio.new_event_loop()
            self._thread.submit(self._loop.run_forever)

    async def _beat(self) -> None:
        """Put off the end of this process again and again; its clock is one of C's and needs no interpreter."""
        while True:
            faulthandler.dump_traceback_later(self._config.timeout_s + _GRACE_S, exit=True, file=_STDERR)
            await asyncio.sleep(_BEAT_S)

    @concurrent_endpoint
    async def score(self, episodes: list[Episode]) -> list[float | None]:
        """The episodes' rewards; None where nothing was played, or the outcome is a failure of the infrastructure.

        Raises: ActorFailure that names the function and the episode.
        """
        played = [episode for episode in episodes if episode.outcome.scored and episode.turns]
        if inspect.iscoroutinefunction(self._function.func):
            rewards = await together(*[self._await(episode) for episode in played])
        else:
            rewards = await self._in_thread(played)
        given = dict(zip(map(id, played), rewards, strict=True))
        return [given.get(id(episode)) for episode in episodes]

    async def _await(self, episode: Episode) -> float:
        async def score() -> float:
            with self._named(episode):
                return self._checked(await self._function(episode), episode)

        scoring = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(score(), self._loop))
        await asyncio.wait({scoring}, timeout=self._config.timeout_s)
        if not scoring.done():
            scoring.cancel()
            raise self._too_slow(episode)
        return scoring.result()

    async def _in_thread(self, episodes: list[Episode]) -> list[float]:
        """All in one call of the thread, which costs more than most rewards; the limit holds for each episode all the same."""
        async with self._turn:
            self._begin(0)
            scoring = asyncio.get_running_loop().run_in_executor(self._thread, self._score_each, episodes)
            while not scoring.done():
                index, began = self._current
                left_s = began + self._config.timeout_s - time.monotonic()
                if left_s <= 0:
                    raise self._too_slow(episodes[index])
                await asyncio.wait({scoring}, timeout=left_s)
            return scoring.result()

    def _score_each(self, episodes: list[Episode]) -> list[float]:
        rewards = []
        for index, episode in enumerate(episodes):
            self._begin(index)
            with self._named(episode):
                rewards.append(self._checked(self._function(episode), episode))
        return rewards

    def _begin(self, index: int) -> None:
        self._current = index, time.monotonic()

    @contextmanager
    def _named(self, episode: Episode) -> Iterator[None]:
        """Errors of the user's function name it and the episode."""
        try:
            yield
        except ActorFailure:
            raise
        except BaseException as error:  # `sys.exit` and its like in a reward must not end the actor without a word
            traceback.print_exc()  # into the actor's log
            raise ActorFailure(f"{self._name} failed on episode {episode.id}: {described(error)}") from error

    def _checked(self, value: Any, episode: Episode) -> float:
        if not isinstance(value, Real) or not math.isfinite(value):  # numpy's scalars are real numbers too
            raise ActorFailure(
                f"{self._name} returned {value!r} for episode {episode.id}, where a finite number is needed"
            )
        return float(value)

    def _too_slow(self, episode: Episode) -> ActorFailure:
        return ActorFailure(f"{self._name} took longer than {self._config.timeout_s:g} s on episode {episode.id}")
