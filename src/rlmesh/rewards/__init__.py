"""Reward functions that a recipe can name. One takes a finished episode and returns a number; it may be async.

>>> def my_reward(episode: Episode, bonus: float = 0.0) -> float:
...     return episode.env_return + bonus * (len(episode.turns) == 1)

In the recipe: `reward: {function: my_package.my_module.my_reward, args: {bonus: 0.1}}`.
"""

from __future__ import annotations

from rlmesh.rollout.types import Episode


def episode_return(episode: Episode) -> float:
    """The sum of the environment's own rewards."""
    return episode.env_return
