import numpy as np
import pytest
from episodes import group, turn

from rlmesh.errors import RLMeshError
from rlmesh.losses.advantages import resolve_advantage
from rlmesh.rollout.collate import assign_advantages, collate, episode_samples, supervised
from rlmesh.rollout.types import Episode, Outcome

PAD, EOS = 0, 2


def with_advantages(*groups):
    assign_advantages(groups, resolve_advantage("group_mean"))
    return groups


def test_a_turn_that_extends_the_tokens_before_it_continues_the_sequence():
    episode = Episode("e", 0, turns=[turn([5, 6], [7, EOS]), turn([5, 6, 7, EOS, 8, 9], [10, EOS])])
    [sample] = episode_samples(episode)
    assert sample.tokens == [5, 6, 7, EOS, 8, 9, 10, EOS]
    assert sample.loss_mask == [False, False, True, True, False, False, True, True]


def test_a_turn_with_a_fresh_prompt_begins_a_sequence():
    episode = Episode("e", 0, turns=[turn([5, 6], [7, EOS]), turn([5, 8], [10, EOS])])
    assert [sample.tokens for sample in episode_samples(episode)] == [[5, 6, 7, EOS], [5, 8, 10, EOS]]


def test_a_prompt_that_repeats_the_last_prompt_only_is_fresh():
    episode = Episode("e", 0, turns=[turn([5, 6], [7, EOS]), turn([5, 6], [9, EOS])])
    assert [sample.tokens for sample in episode_samples(episode)] == [[5, 6, 7, EOS], [5, 6, 9, EOS]]


def test_logprobs_belong_to_their_tokens():
    batch = collate(with_advantages(group([1.0, 0.0], turns=[turn([5, 6, 4], [7, 8, EOS], [-0.7, -0.8, -0.2])])))
    for s in range(batch.num_samples):
        tokens = batch.tokens[batch.offsets[s] : batch.offsets[s + 1]]
        logprobs = batch.logprobs[batch.offsets[s] : batch.offsets[s + 1]]
        expected = {5: 0, 6: 0, 4: 0, 7: -0.7, 8: -0.8, EOS: -0.2}
        assert dict(zip(tokens.tolist(), logprobs.tolist(), strict=True)) == pytest.approx(expected)


def test_versions_belong_to_their_tokens():
    batch = collate(with_advantages(group([1.0, 0.0], turns=[turn([5, 6], [7, 8, EOS])])))
    batch.versions[3] = 1
    assert batch.select(np.array([1, 0])).versions.tolist() == [-1, -1, 0, 0, 0, -1, -1, 0, 1, 0]


def test_the_mask_is_set_when_a_token_is_made_not_inferred_from_its_id():
    # The policy may sample the pad token or the end of sequence; they are trained on like any other token.
    batch = collate(with_advantages(group([1.0, 0.0], turns=[turn([EOS, PAD], [PAD, EOS])])))
    assert batch.loss_mask.tolist() == [False, False, True, True] * 2


def test_every_sampled_token_carries_its_episodes_advantage_and_no_other_does():
    batch = collate(with_advantages(group([1.0, 0.0, 0.0, 0.0])))
    assert batch.advantages.tolist() == [0, 0, 0.75, 0.75] + [0, 0, -0.25, -0.25] * 3


def test_an_unscored_episode_is_left_out_and_does_not_count_as_zero():
    lost = group([-1.0, None, -1.0])
    lost.episodes[1].outcome = Outcome.ENV_LOST
    batch = collate(with_advantages(lost))
    assert batch.num_samples == 2
    assert not batch.advantages.any()  # a mean over three with 0 for the lost one would give -1/3


def test_an_empty_completion_is_skipped():
    empty = Episode("e", 1, turns=[turn([5, 6], [])], reward=1.0)
    some = group([0.0])
    some.episodes.append(empty)
    assert collate(with_advantages(some)).num_samples == 1


def test_nothing_to_train_on_is_an_error_not_an_empty_batch():
    with pytest.raises(RLMeshError, match="none of the step's episodes"):
        collate(with_advantages(group([None, None])))


def test_logprobs_of_another_length_are_refused():
    with pytest.raises(ValueError, match="'tokens': 2, 'logprobs': 1, 'versions': 2"):
        list(episode_samples(Episode("e", 0, turns=[turn([5], [7, EOS], [-0.1])])))


def test_supervised_learns_the_answer_only():
    batch = supervised([[5, 6], [5]], [[7, EOS], [8, EOS]])
    assert batch.tokens.tolist() == [5, 6, 7, EOS, 5, 8, EOS]
    assert batch.loss_mask.tolist() == [False, False, True, True, False, True, True]


def test_advantages_do_not_mix_groups():
    batch = collate(with_advantages(group([1.0, 1.0]), group([0.0, 2.0], index=1)))
    assert np.unique(batch.advantages[: batch.offsets[2]]).tolist() == [0.0]
    assert sorted(np.unique(batch.advantages[batch.offsets[2] :]).tolist()) == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize("advantages", [[0.0], [0.0, float("nan")], 1.0, [[0.0, 0.0]]])
def test_advantages_that_are_not_a_finite_number_for_each_episode_are_refused(advantages):
    with pytest.raises(ValueError, match="for a group of 2, which needs a finite number for each"):
        assign_advantages([group([0.0, 1.0])], lambda rewards: advantages)
