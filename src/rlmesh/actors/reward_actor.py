"""RewardActor: scores finished episodes with the recipe's reward function."""

from __future__ import annotations

import asyncio
import inspect
import math
from numbers import Real

from monarch.actor import Actor, concurrent_endpoint

from rlmesh.actors.config import RewardConfig
from rlmesh.errors import ActorFailure
from rlmesh.imports import import_path
from rlmesh.rollout.types import Episode


class RewardActor(Actor):
    """Calls `config.function(episode, **config.args) -> float` on each episode, in a process of its own.

    Invariant: a reward is a finite number or the run ends; a function that fails, returns nothing or is too slow is never
    mistaken for a reward of 0. Episodes whose environment failed are not scored at all: their reward is None.

    >>> reward = proc_mesh.spawn("reward", RewardActor, RewardConfig())   # doctest: +SKIP
    >>> await reward.setup.call_one()
    >>> await reward.score.call_one([episode])
    [-1.0]
    """

    def __init__(self, config: RewardConfig):
        self._config = config

    @concurrent_endpoint
    async def setup(self) -> None:
        """Import the function. Raises: RecipeError naming `reward.function`."""
        self._function = import_path(self._config.function, "reward.function")

    @concurrent_endpoint
    async def score(self, episodes: list[Episode]) -> list[float | None]:
        """The episodes' rewards; None where the outcome is a failure of the infrastructure.

        Raises: ActorFailure that names the function and the episode.
        """
        return [await self._score(episode) if episode.outcome.scored else None for episode in episodes]

    async def _score(self, episode: Episode) -> float:
        name = f"reward.function: {self._config.function}"
        try:
            async with asyncio.timeout(self._config.timeout_s):
                value = self._function(episode, **self._config.args)
                if inspect.isawaitable(value):
                    value = await value
        except TimeoutError:
            raise ActorFailure(
                f"{name} took longer than {self._config.timeout_s:g} s on episode {episode.id}"
            ) from None
        except Exception as error:
            raise ActorFailure(f"{name} failed on episode {episode.id}: {type(error).__name__}: {error}") from error
        if not isinstance(value, Real) or not math.isfinite(value):  # numpy's scalars are real numbers too
            raise ActorFailure(f"{name} returned {value!r} for episode {episode.id}, where a finite number is needed")
        return float(value)
