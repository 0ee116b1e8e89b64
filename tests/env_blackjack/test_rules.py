"""The rules against Gymnasium's Blackjack-v1, card by card, and the two seeds."""

from collections import Counter
from itertools import product

import gymnasium
import pytest
from blackjack_env.rules import DECK, RULES, Game, total_of

GYM_ARGS = {
    "gym_sab": {"sab": True, "natural": False},
    "gym_natural": {"sab": False, "natural": True},
    "no_bonus": {"sab": False, "natural": False},
}


class Stacked:
    """Gymnasium's generator, made to deal given cards."""

    def __init__(self, cards):
        self.cards = iter(cards)

    def choice(self, _deck):
        return next(self.cards)


def stacked_game(rules, player, dealer, cards):
    """A game with known cards to come; `_draw` is the only place where a Game takes a card from."""
    game = Game(rules)
    game.player, game.dealer = list(player), list(dealer)
    coming = iter(cards)
    game._draw = lambda _rng: next(coming)
    return game


@pytest.mark.parametrize("rules", GYM_ARGS)
@pytest.mark.parametrize("hits", [0, 1, 2])
def test_agrees_with_gymnasium_state_by_state(rules, hits):
    env = gymnasium.make("Blackjack-v1", disable_env_checker=True, **GYM_ARGS[rules]).unwrapped
    env.reset(seed=0)
    tails = [(10, 10, 10, 10, 10), (2, 3, 9, 4, 10, 10), (1, 1, 5, 1, 1, 1, 1, 1, 9), (8, 7, 1, 6, 10, 10)]
    for a, b, shown, hole, tail in product(range(1, 11), range(1, 11), range(1, 11), range(1, 11), tails):
        env.player, env.dealer, env.np_random = [a, b], [shown, hole], Stacked(tail)
        game, reward, over = stacked_game(rules, (a, b), (shown, hole), tail), None, False
        for _ in range(hits):
            reward = game.hit()
            (total, dealer, soft), gym_reward, over, _, _ = env.step(1)
            assert (*total_of(game.player), game.dealer[0]) == (total, bool(soft), dealer)
            assert (reward is not None, reward or 0.0) == (over, gym_reward)
            if over:
                break
        if not over:
            _, gym_reward, over, _, _ = env.step(0)
            assert (game.stand(), True) == (gym_reward, over)
            assert game.dealer == env.dealer


@pytest.mark.parametrize("rules", RULES)
def test_deal_seed_fixes_the_visible_cards_and_seed_the_hidden_ones(rules):
    games = [Game(rules, seed=seed, deal_seed=5) for seed in range(200)]
    assert len({(*game.player, game.dealer[0]) for game in games}) == 1
    assert len({game.dealer[1] for game in games}) == 10
    again = Game(rules, seed=7, deal_seed=5)
    assert again.dealer == games[7].dealer and again.hit() == games[7].hit() and again.player == games[7].player
    assert len({(*Game(rules, 1, deal_seed).player,) for deal_seed in range(200)}) > 30


def test_one_number_for_both_seeds_gives_independent_streams():
    same = sum(game.player[0] == game.dealer[1] for game in (Game("gym_sab", s, s) for s in range(2000)))
    assert same / 2000 == pytest.approx(sum((c / 52) ** 2 for c in Counter(DECK).values()), abs=0.04)


def test_single_deck_deals_each_card_once():
    for seed in range(100):
        game = Game("single_deck", seed=seed)
        while len(game._cards):
            game.player.append(game._draw(game._hidden))
        assert sorted(game.player + game.dealer) == sorted(DECK)
