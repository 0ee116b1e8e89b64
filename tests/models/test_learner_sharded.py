"""The learner where FSDP gathers weights for a forward pass: it does for bfloat16, on one rank as on many."""

import numpy as np
import pytest
import torch

from rlmesh.actors.process_group import join_process_group
from rlmesh.models import forward
from rlmesh.models.config import TinyModelConfig, TrainerConfig
from rlmesh.models.learner import Learner
from rlmesh.models.tiny import build_tiny_model
from rlmesh.rollout.batch import Batch

GRPO = ("grpo", {"clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.0})


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def model_path(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build_tiny_model(TinyModelConfig(words=["hit"], tie_word_embeddings=request.param), 64, folder, seed=0)
    return folder


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    tokens = [rng.integers(4, 100, n) for n in rng.integers(3, 16, 40)]
    masks = [np.arange(len(t)) > 0 for t in tokens]
    logprobs, advantages = [np.where(m, -4.6, 0) for m in masks], [np.where(m, rng.normal(), 0) for m in masks]
    return Batch.from_samples(tokens, masks, logprobs, advantages)


def learner(model_path, dtype="bfloat16"):
    join_process_group()
    return Learner(model_path, TrainerConfig(dtype=dtype, pack_length=64), temperature=1.0)


def test_scoring_before_a_step_changes_nothing(model_path, batch):
    straight, scoring = learner(model_path), learner(model_path)
    straight.forward_backward(batch, *GRPO)
    scoring.forward_backward(batch, *GRPO)
    scoring.score(batch)
    assert scoring.optim_step(lr=1e-2) == straight.optim_step(lr=1e-2)
    np.testing.assert_array_equal(scoring.score(batch), straight.score(batch))


def test_weights_that_are_loaded_after_scoring_are_the_ones_that_score(model_path, batch):
    trained, other = learner(model_path), learner(model_path)
    trained.forward_backward(batch, *GRPO)
    trained.optim_step(lr=1e-2)
    before = other.score(batch)
    other.titan.load_hf(trained.titan.hf_state_dict())
    np.testing.assert_array_equal(other.score(batch), trained.score(batch))
    assert np.abs(other.score(batch) - before).max() > 1e-2


def test_the_vocabulary_is_read_in_pieces_here_too(model_path, batch, monkeypatch):
    whole, pieces = learner(model_path), learner(model_path)
    expected = whole.forward_backward(batch, *GRPO).metrics, whole.optim_step(lr=1e-2)
    monkeypatch.setattr(forward, "_MOST_LOGITS", 7 * pieces.titan.vocab_size)
    found = pieces.forward_backward(batch, *GRPO).metrics, pieces.optim_step(lr=1e-2)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)


def test_logits_are_float32_whatever_the_forward_pass_is_in(model_path, batch):
    """Rounded to bfloat16, logits of this size would differ by steps of 1/64 or more."""
    mine = learner(model_path)
    mine.score(batch)
    titan = mine.titan
    hidden = torch.randn(50, 64, generator=torch.Generator().manual_seed(0)).bfloat16() * 8
    head = titan.hf_state_dict()["lm_head.weight"].bfloat16().double()
    logits = titan.logits(hidden).detach()
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), hidden.double() @ head.T, rtol=1e-5, atol=1e-5)


def test_a_gradient_that_is_not_finite_does_not_outlive_its_step(model_path, batch):
    mine = learner(model_path, "float32")
    spoiled = Batch(
        batch.tokens, batch.offsets, batch.loss_mask, batch.logprobs, np.sign(batch.advantages) * np.float32(1e38)
    )
    mine.forward_backward(spoiled, *GRPO)
    with pytest.raises(FloatingPointError, match="gradient's norm is"):
        mine.optim_step(lr=1e-3)
    mine.forward_backward(batch, *GRPO)
    assert np.isfinite(mine.optim_step(lr=1e-3)["optim/grad_norm"])
