"""The environment by itself: episodes, what it refuses, and what stays out of the prompt."""

import numpy as np
import pytest
from blackjack_env.models import BlackjackAction
from blackjack_env.server.environment import BlackjackEnvironment
from blackjack_env.solver import VIEWS, solver
from blackjack_env.warm_start import random_play


def act(env, text):
    return env.step(BlackjackAction(text=text))


def test_state_follows_the_episode():
    env = BlackjackEnvironment()
    first = env.reset(seed=1, deal_seed=11, episode_id="mine")
    assert (env.state.episode_id, env.state.step, env.state.done) == ("mine", 0, False)
    act(env, "hit")
    assert env.state.step == env.state.step_count == 1
    assert act(env, "stand").done and env.state.done
    assert env.reset(seed=1).metadata["episode_id"] != first.metadata["episode_id"]


@pytest.mark.parametrize("before", ["nothing", "a finished episode"])
def test_step_outside_an_episode_is_refused(before):
    env = BlackjackEnvironment()
    if before != "nothing":
        env.reset(seed=1)
        act(env, "stand")
    with pytest.raises(RuntimeError, match="reset first"):
        act(env, "stand")


@pytest.mark.parametrize("args", [{"decks": 6}, {"rules": "vegas"}, {"seed": "1"}, {"deal_seed": 1.5}])
def test_bad_reset_arguments_are_named(args):
    with pytest.raises(ValueError, match=next(iter(args))):
        BlackjackEnvironment().reset(**args)


@pytest.mark.parametrize("rules", ["gym_sab", "single_deck"])
def test_return_plus_regret_is_the_optimal_value(rules):
    """Regret is what keeps a policy from the best one, so that on average return + regret = optimal value."""
    env, rng, sums = BlackjackEnvironment(), np.random.default_rng(0), []
    for seed in range(4000):
        result, total = env.reset(seed=seed, rules=rules), 0.0
        while not result.done:
            result = act(env, rng.choice(["hit", "stand", "maybe"], p=[0.3, 0.6, 0.1]))
            total += result.reward
        sums.append(total + result.metadata["regret"])
    error = np.std(sums) / len(sums) ** 0.5
    assert np.mean(sums) == pytest.approx(solver(rules).optimal_by_cards_value, abs=4 * error)


def test_optimal_play_has_no_regret_and_the_text_has_no_hint():
    env = BlackjackEnvironment()
    for seed in range(200):
        result = env.reset(seed=seed)
        while not result.done:
            assert result.text in {view.text for view in VIEWS}
            result = act(env, result.metadata["optimal_action"])
        assert result.metadata["regret"] == 0.0


def test_warm_start_is_legal_and_uninformed():
    pairs = random_play(seed=0, count=5000)
    assert pairs == random_play(seed=0, count=5000) and len(pairs) == 5000
    assert {text for text, _ in pairs} <= {view.text for view in VIEWS}
    good_hands = [answer for text, answer in pairs if text.startswith(("You have 20", "You have 21"))]
    assert np.mean([answer == "hit" for answer in good_hands]) == pytest.approx(0.5, abs=0.06)
