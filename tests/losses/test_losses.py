import numpy as np
import pytest
import torch

from rlmesh.errors import RecipeError
from rlmesh.losses import resolve_loss
from rlmesh.losses.advantages import group_mean, group_norm, resolve_advantage
from rlmesh.losses.inputs import LossInputs

RNG = np.random.default_rng(0)


def random_inputs(count=200, spread=0.5):
    logprobs = -RNG.exponential(1.0, count)
    old = logprobs + RNG.normal(0, spread, count)
    return {
        "logprobs": logprobs,
        "old_logprobs": old,
        "advantages": RNG.normal(0, 1, count),
        "ref_logprobs": logprobs + RNG.normal(0, spread, count),
    }


def as_tensors(values):
    return LossInputs(
        **{
            name: torch.tensor(value, dtype=torch.float32, requires_grad=name == "logprobs")
            for name, value in values.items()
        }
    )


def reference_grpo(values, clip_low, clip_high, kl_coef):
    """One token at a time in float64, written from the papers' formulas: loss and d loss / d logprob."""
    losses, gradients = [], []
    for logprob, old, advantage, ref in zip(
        *(np.float64(values[n]) for n in ("logprobs", "old_logprobs", "advantages", "ref_logprobs")), strict=True
    ):
        ratio = np.exp(logprob - old)
        clipped = min(max(ratio, 1 - clip_low), 1 + clip_high)
        surrogate = min(ratio * advantage, clipped * advantage)
        flows = ratio * advantage <= clipped * advantage  # the unclipped term is the smaller one, or they are equal
        kl = np.exp(ref - logprob) - (ref - logprob) - 1
        losses.append(-surrogate + kl_coef * kl)
        gradients.append(-(ratio * advantage if flows else 0.0) + kl_coef * (1 - np.exp(ref - logprob)))
    return np.array(losses), np.array(gradients)


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
@pytest.mark.parametrize("clip", [(0.2, 0.28), (0.1, 0.1), (0.5, 2.0)])
def test_grpo_against_a_float64_reference(clip, kl_coef):
    values = random_inputs()
    inputs = as_tensors(values)
    loss, _ = resolve_loss("grpo")(inputs, clip_low=clip[0], clip_high=clip[1], kl_coef=kl_coef)
    loss.sum().backward()
    expected, gradient = reference_grpo(values, *clip, kl_coef)
    np.testing.assert_allclose(loss.detach().numpy(), expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(inputs.logprobs.grad.numpy(), gradient, rtol=2e-5, atol=2e-6)


def test_where_the_policies_agree_the_gradient_is_reinforce():
    values = random_inputs(spread=0.0)
    inputs = as_tensors(values)
    loss, metrics = resolve_loss("grpo")(inputs, kl_coef=0.5)
    loss.sum().backward()
    np.testing.assert_allclose(inputs.logprobs.grad.numpy(), -values["advantages"], rtol=1e-5, atol=1e-6)
    assert metrics["kl"].abs().max() < 1e-6
    assert metrics["clip_ratio/low"].sum() == metrics["clip_ratio/high"].sum() == 0


def test_clipped_tokens_are_counted_where_clipping_bites():
    values = {
        "logprobs": np.log([2.0, 2.0, 0.5, 0.5]),
        "old_logprobs": np.zeros(4),
        "advantages": [1.0, -1.0, 1.0, -1.0],
    }
    _, metrics = resolve_loss("grpo")(as_tensors(values))
    assert metrics["clip_ratio/high"].tolist() == [1, 0, 0, 0]
    assert metrics["clip_ratio/low"].tolist() == [0, 0, 0, 1]


def test_a_group_without_variance_still_feels_the_reference():
    # An explicit choice: its advantages are 0, and the KL term's gradient is not.
    values = random_inputs() | {"advantages": np.zeros(200)}
    inputs = as_tensors(values)
    resolve_loss("grpo")(inputs, kl_coef=0.3)[0].sum().backward()
    assert inputs.logprobs.grad.abs().sum() > 1


def test_the_kl_estimate_is_never_negative_and_has_the_right_mean():
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
    draws = RNG.choice(3, 200_000, p=p)
    values = {
        "logprobs": np.log(p[draws]),
        "old_logprobs": np.log(p[draws]),
        "advantages": np.zeros(len(draws)),
        "ref_logprobs": np.log(q[draws]),
    }
    kl = resolve_loss("grpo")(as_tensors(values))[1]["kl"]
    assert kl.min() >= -1e-6
    assert kl.mean().item() == pytest.approx((p * np.log(p / q)).sum(), abs=3e-3)


def test_cross_entropy_is_the_negative_logprob():
    loss, _ = resolve_loss("cross_entropy")(LossInputs(logprobs=torch.tensor([-0.5, -2.0])))
    assert loss.tolist() == [0.5, 2.0]


def test_an_unknown_loss_names_the_key():
    with pytest.raises(RecipeError, match=r"algorithm\.loss: cannot import 'no_such\.loss'"):
        resolve_loss("no_such.loss")


@pytest.mark.parametrize("function", [group_mean, group_norm])
class TestAdvantages:
    def test_the_whole_group_is_the_baseline(self, function):
        rewards = RNG.normal(0, 3, 16)
        expected = rewards - sum(rewards) / len(rewards)
        if function is group_norm:
            expected = expected / (sum(expected**2) / len(rewards)) ** 0.5
        np.testing.assert_allclose(function(list(rewards)), expected)

    def test_an_unscored_episode_is_left_out(self, function):
        with_hole = function([-1.0, None, 1.0])
        assert with_hole[1] == 0
        np.testing.assert_allclose(with_hole[[0, 2]], function([-1.0, 1.0]))
        assert not function([-1.0, None, -1.0]).any()  # as 0 the hole would lift itself above its siblings

    def test_one_reward_has_nothing_to_be_compared_with(self, function):
        assert function([None, 3.0, None]).tolist() == [0, 0, 0]

    def test_no_reward_at_all(self, function):
        assert function([None, None]).tolist() == [0, 0]

    def test_no_variance_no_advantage(self, function):
        assert function([0.1] * 7).tolist() == pytest.approx([0] * 7, abs=1e-12)


def test_advantages_are_found_by_name_and_by_path():
    assert resolve_advantage("group_norm") is group_norm
    assert resolve_advantage("rlmesh.losses.advantages.group_mean") is group_mean
