"""Rewards that a recipe can name."""

from rlmesh.rewards import episode_return
from rlmesh.rollout.types import Completion, Episode, Turn


def test_episode_return_is_the_sum_of_the_environments_rewards():
    turns = [Turn("", [], Completion([1], [0.0], "stop", [0]), "hit", reward) for reward in (0.0, 0.25, -1.0)]
    assert episode_return(Episode(id="a", index=0, turns=turns)) == -0.75
    assert episode_return(Episode(id="a", index=0)) == 0
