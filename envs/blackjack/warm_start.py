"""Pairs of observation and answer to teach a model the form of the game, and nothing about playing it well."""

from __future__ import annotations

from random import Random

from blackjack_env.rules import Game, Rules, total_of
from blackjack_env.text import ANSWERS, observation_text


def random_play(seed: int, count: int, rules: Rules = "gym_sab") -> list[tuple[str, str]]:
    """`count` observations met in uniformly random play, each with the answer that was drawn for it.

    >>> random_play(seed=0, count=1)
    [('You have 12 (hard). Dealer shows 4. Hit or stand?', 'stand')]
    """
    rng, pairs = Random(seed), []
    while len(pairs) < count:
        game, over = Game(rules, seed=rng.getrandbits(31)), False
        while not over:
            answer = rng.choice(ANSWERS)
            pairs.append((observation_text(*total_of(game.player), game.dealer[0]), answer))
            over = answer == "stand" or game.hit() is not None
    return pairs[:count]
