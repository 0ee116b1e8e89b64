"""RewardActor: scores finished episodes with the recipe's reward function."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from concurrent.futures import ThreadPoolExecutor
from numbers import Real
from typing import Any

from monarch.actor import Actor, concurrent_endpoint

from rlmesh.actors.config import RewardConfig
from rlmesh.errors import ActorFailure
from rlmesh.imports import import_path
from rlmesh.rollout.types import Episode
from rlmesh.tasks import together


class RewardActor(Actor):
    """Calls `config.function(episode, **config.args) -> float` on each episode, in a process of its own.

    Invariant: a reward is a finite number or the run ends; a function that fails, returns nothing or is too slow is never
    mistaken for a reward of 0. Episodes whose environment failed, or in
    which nothing was played, are not scored at all: their reward is None.

    >>> reward = proc_mesh.spawn("reward", RewardActor, RewardConfig())   # doctest: +SKIP
    >>> await reward.setup.call_one()
    >>> await reward.score.call_one([episode])
    [-1.0]
    """

    def __init__(self, config: RewardConfig):
        self._config = config
        # An ordinary function gets a thread, so that a slow one is noticed; one after the other, as it would expect.
        self._thread, self._turn = ThreadPoolExecutor(1), asyncio.Lock()

    @concurrent_endpoint
    async def setup(self) -> None:
        """Import the function. Raises: RecipeError naming `reward.function`."""
        self._function = import_path(self._config.function, "reward.function")

    @concurrent_endpoint
    async def score(self, episodes: list[Episode]) -> list[float | None]:
        """The episodes' rewards; None where nothing was played, or the outcome is a failure of the infrastructure.

        Raises: ActorFailure that names the function and the episode.
        """
        return await together(*[self._score(episode) for episode in episodes])

    async def _score(self, episode: Episode) -> float | None:
        if not (episode.outcome.scored and episode.turns):
            return None
        name = f"reward.function: {self._config.function}"
        try:
            value = await self._value(episode)
        except TimeoutError:
            raise ActorFailure(
                f"{name} took longer than {self._config.timeout_s:g} s on episode {episode.id}"
            ) from None
        except Exception as error:
            raise ActorFailure(f"{name} failed on episode {episode.id}: {type(error).__name__}: {error}") from error
        if not isinstance(value, Real) or not math.isfinite(value):  # numpy's scalars are real numbers too
            raise ActorFailure(f"{name} returned {value!r} for episode {episode.id}, where a finite number is needed")
        return float(value)

    async def _value(self, episode: Episode) -> Any:
        call = functools.partial(self._function, episode, **self._config.args)
        if inspect.iscoroutinefunction(self._function):
            async with asyncio.timeout(self._config.timeout_s):
                return await call()
        async with self._turn, asyncio.timeout(self._config.timeout_s):
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
