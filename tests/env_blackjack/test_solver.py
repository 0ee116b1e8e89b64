"""The solver against known exact values, and against games that are played."""

import numpy as np
import pytest
from blackjack_env.rules import RULES, Game, total_of
from blackjack_env.solver import VIEW_INDEX, VIEWS, View, hit_below, solver

# Mean returns to 4 digits: optimal, hit below 17, 15, 12 ('never bust'), always stand, random, always hit.
KNOWN = {
    "gym_sab": (-0.0431, -0.0759, -0.0729, -0.1024, -0.1829, -0.3942, -1.0),
    "no_bonus": (-0.0466, -0.0793, -0.0764, -0.1058, -0.1864, -0.3959, -1.0),
    "gym_natural": (-0.0257, -0.0585, -0.0555, -0.0850, -0.1655, -0.3855, -1.0),
    "single_deck": (-0.0428, -0.0801, -0.0744, -0.1018, -0.1834, -0.3927, -1.0),
}


@pytest.mark.parametrize("rules", RULES)
def test_known_values(rules):
    s = solver(rules)
    policies = [s.optimal_V, *(hit_below(t) for t in (17, 15, 12, 4)), np.full(len(VIEWS), 0.5), hit_below(22)]
    assert [round(s.value(p), 4) for p in policies] == list(KNOWN[rules])


def test_single_deck_player_who_sees_the_cards():
    assert round(solver("single_deck").optimal_by_cards_value, 4) == -0.0425


@pytest.mark.parametrize("rules", RULES)
def test_no_other_answer_to_a_single_view_beats_the_optimum(rules):
    s = solver(rules)
    for i in range(len(VIEWS)):
        other = s.optimal_V.copy()
        other[i] = 1 - other[i]
        assert s.value(other) <= s.optimal_value + 1e-12


@pytest.mark.parametrize("rules", RULES)
def test_value_of_an_arbitrary_policy_agrees_with_games(rules):
    """A policy of random chances, invalid answers among them; 5 standard errors."""
    rng = np.random.default_rng(3)
    p_invalid = rng.uniform(0, 0.1, len(VIEWS))
    p_hit = rng.uniform(0, 1, len(VIEWS)) * (1 - p_invalid)
    p_stand = 1 - p_invalid - p_hit
    returns = []
    for seed in range(10_000):
        game, reward = Game(rules, seed=seed), None
        while reward is None:
            view = VIEW_INDEX[View(*total_of(game.player), game.dealer[0])]
            answer = rng.choice(3, p=(p_hit[view], p_stand[view], p_invalid[view]))
            reward = (game.hit, game.stand, lambda: -1.0)[answer]()
        returns.append(reward)
    error = np.std(returns) / len(returns) ** 0.5
    assert solver(rules).value(p_hit, p_stand) == pytest.approx(np.mean(returns), abs=5 * error)


def test_never_a_valid_answer_costs_the_stake():
    zeros = np.zeros(len(VIEWS))
    assert solver("gym_sab").value(zeros, zeros) == pytest.approx(-1.0)


def test_action_values_tell_a_natural_from_another_21():
    s = solver("gym_sab")
    assert s.action_values([1, 10], 10)["stand"] > s.action_values([1, 5, 5], 10)["stand"]
    assert s.action_values([1, 10], 5)["stand"] == pytest.approx(1.0)


def test_views_have_distinct_texts():
    assert len(VIEWS) == 280 == len({view.text for view in VIEWS})
    assert VIEWS[VIEW_INDEX[View(14, False, 10)]].text == "You have 14 (hard). Dealer shows 10. Hit or stand?"
    assert View(12, True, 1).text == "You have 12 (soft). Dealer shows ace. Hit or stand?"
