import json
import shutil

import numpy as np
import pytest
import reference
import torch
from transformers import AutoModelForCausalLM

from rlmesh.actors.process_group import join_process_group
from rlmesh.errors import RecipeError
from rlmesh.models import forward
from rlmesh.models.config import TrainerConfig
from rlmesh.models.learner import Learner
from rlmesh.models.titan import TitanModel
from rlmesh.rollout.batch import Batch
from rlmesh.rollout.mismatch import ratio_metrics


def random_batch(seed=0, count=24, masked=0.6):
    rng = np.random.default_rng(seed)
    tokens = [rng.integers(4, 100, rng.integers(2, 16)) for _ in range(count)]
    masks = [np.r_[False, rng.random(len(t) - 1) < masked] for t in tokens]
    masks[0][1] = True
    logprobs = [np.where(m, -4.9 + rng.normal(0, 0.3, len(m)), 0) for m in masks]  # about what a fresh model says
    advantages = [np.where(m, rng.normal(), 0) for m in masks]
    batch = Batch.from_samples(tokens, masks, logprobs, advantages)
    return batch.with_ref_logprobs(np.where(batch.loss_mask, batch.logprobs + rng.normal(0, 0.3, len(batch.tokens)), 0))


def learner(path, temperature=1.0, **options):
    torch.manual_seed(0)
    join_process_group()
    return Learner(path, TrainerConfig(**{"pack_length": 64, **options}), temperature)


def gradient(a_learner):
    return torch.cat([p.grad.flatten() for p in a_learner.titan.model.parameters()])


GRPO = ("grpo", {"clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.2})


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", ["untied", "tied"])
def test_logprobs_are_transformers(name, temperature, request):
    path, batch = request.getfixturevalue(name), random_batch()
    scores, model = learner(path, temperature).score(batch), reference.load(path)
    for begin, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        tokens = batch.tokens[begin:end].tolist()
        expected = np.r_[0.0, reference.logprobs(model, tokens[:1], tokens[1:], temperature).numpy()]
        np.testing.assert_allclose(scores[begin:end], np.where(batch.loss_mask[begin:end], expected, 0), atol=2e-6)


@pytest.mark.parametrize(
    "layout",
    [
        {"rows_per_micro_batch": 1},
        {"rows_per_micro_batch": 3},
        {"pack_length": 16},
        {"pack_length": 16, "rows_per_micro_batch": 2},
    ],
)
def test_gradient_and_metrics_do_not_depend_on_packing_or_micro_batches(untied, layout):
    batch, whole, split = random_batch(), learner(untied), learner(untied, **layout)
    expected, stats = whole.forward_backward(batch, *GRPO), split.forward_backward(batch, *GRPO)
    assert (gradient(split) - gradient(whole)).norm() < 1e-5 * gradient(whole).norm()
    assert stats.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(stats.logprobs, expected.logprobs, atol=1e-5)


def test_the_vocabulary_is_read_in_pieces_and_nothing_else_changes(untied, monkeypatch):
    batch, whole, pieces = random_batch(), learner(untied), learner(untied)
    expected = whole.forward_backward(batch, *GRPO)
    monkeypatch.setattr(forward, "_MOST_LOGITS", 5 * pieces.titan.vocab_size)
    sizes, logits = [], pieces.titan.logits
    monkeypatch.setattr(pieces.titan, "logits", lambda hidden: sizes.append(len(hidden)) or logits(hidden))
    output = pieces.forward_backward(batch, *GRPO)
    assert max(sizes) == 5 and sum(sizes) == 2 * batch.num_loss_tokens  # once more in the backward pass
    np.testing.assert_allclose(output.logprobs, expected.logprobs, atol=1e-6)
    assert output.metrics == pytest.approx(expected.metrics, abs=1e-6)
    torch.testing.assert_close(gradient(pieces), gradient(whole), rtol=1e-4, atol=1e-7)


def test_accumulated_parts_weigh_by_their_tokens(untied):
    """Two halves with the whole's token count as denominator are the whole: what ranks with fewer tokens must not change."""
    batch, whole, parts = random_batch(masked=0.3), learner(untied), learner(untied)
    whole.forward_backward(batch, *GRPO)
    total = torch.zeros_like(gradient(whole))
    for part in (batch.select(np.arange(3)), batch.select(np.arange(3, batch.num_samples))):
        parts.forward_backward(part, *GRPO)
        total += gradient(parts) * part.num_loss_tokens / batch.num_loss_tokens
        parts.optimizer.zero_grad()
    assert (total - gradient(whole)).norm() < 1e-5 * gradient(whole).norm()


def test_tokens_outside_the_mask_have_no_effect(untied):
    batch, other = random_batch(), random_batch()
    other.logprobs[~other.loss_mask] = 77.0
    other.advantages[~other.loss_mask] = 99.0
    other.ref_logprobs[~other.loss_mask] = 55.0
    first, second = learner(untied), learner(untied)
    assert first.forward_backward(batch, *GRPO).metrics == second.forward_backward(other, *GRPO).metrics
    assert torch.equal(gradient(first), gradient(second))


def test_the_denominator_counts_exactly_the_masked_tokens(untied):
    """Truncated or not, a token is in the numerator and in the denominator or in neither."""
    batch = random_batch()
    stats = learner(untied).forward_backward(batch, "cross_entropy", {}).metrics
    scores = learner(untied).score(batch)
    assert stats["loss"] == pytest.approx(-scores[batch.loss_mask].mean(), rel=1e-5)


def test_with_its_own_logprobs_the_ratio_is_one_at_any_temperature(untied):
    batch = random_batch()
    for temperature in (0.7, 1.3):
        mine = learner(untied, temperature)
        batch.logprobs[:] = mine.score(batch)
        output = mine.forward_backward(batch, "grpo", {"kl_coef": 0.0})
        assert ratio_metrics(batch, output.logprobs) == pytest.approx(
            {"ratio/max": 1, "ratio/min": 1, "ratio/above_2": 0, "ratio/below_half": 0}, abs=1e-5
        )
        np.testing.assert_array_equal(output.logprobs[~batch.loss_mask], 0)


def test_entropy_is_that_of_the_distribution(untied):
    batch, model = random_batch(count=1, masked=1.0), reference.load(untied)
    log_softmax = torch.log_softmax(model(torch.from_numpy(batch.tokens)[None]).logits[0, :-1], -1)
    expected = -(log_softmax.exp() * log_softmax).sum(-1).mean().item()
    metrics = learner(untied).forward_backward(batch, "cross_entropy", {}).metrics
    assert metrics["entropy"] == pytest.approx(expected, rel=1e-5)


def test_steps_of_cross_entropy_learn(untied):
    mine, batch = learner(untied), random_batch()
    losses = []
    for _ in range(20):
        losses.append(mine.forward_backward(batch, "cross_entropy", {}).metrics["loss"])
        mine.optim_step(lr=1e-2)
    assert losses[-1] < 0.7 * losses[0]


def test_one_step_is_adamw_with_a_clipped_norm(untied):
    mine, batch = learner(untied), random_batch()
    mine.forward_backward(batch, *GRPO)
    before = torch.cat([p.detach().flatten().clone() for p in mine.titan.model.parameters()])
    g = gradient(mine).double()
    stats = mine.optim_step(lr=1e-3)
    assert stats["optim/grad_norm"] == pytest.approx(g.norm().item(), rel=1e-5)
    g *= min(1.0, 1.0 / g.norm().item())
    after = torch.cat([p.detach().flatten() for p in mine.titan.model.parameters()])
    torch.testing.assert_close((before - after).double(), 1e-3 * g / (g.abs() + 1e-8), rtol=2e-2, atol=2e-6)


@pytest.mark.parametrize("name", ["untied", "tied"])
def test_save_and_load_go_on_as_if_nothing_had_happened(name, request, tmp_path):
    path, batch = request.getfixturevalue(name), random_batch()
    straight, stopped = learner(path), learner(path)
    for mine in (straight, stopped):
        mine.forward_backward(batch, *GRPO)
        mine.optim_step(lr=1e-2)
    stopped.save(tmp_path)
    resumed = learner(path)
    resumed.load(tmp_path)
    for mine in (straight, resumed):
        mine.forward_backward(batch, *GRPO)
        mine.optim_step(lr=1e-2)
    for name, tensor in straight.titan.hf_state_dict().items():
        assert torch.equal(tensor, resumed.titan.hf_state_dict()[name]), name


@pytest.mark.parametrize("name", ["untied", "tied"])
def test_what_is_saved_is_an_ordinary_model_folder(name, request, tmp_path):
    path, batch = tmp_path / "rounded", random_batch()
    shutil.copytree(request.getfixturevalue(name), path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    mine = learner(path)
    mine.forward_backward(batch, *GRPO)
    mine.optim_step(lr=1e-2)
    mine.save(tmp_path)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert saved.dtype == torch.float32  # as it is saved, whatever the source's config.json says
    tokens = torch.from_numpy(batch.tokens[: batch.offsets[1]])[None]
    expected = learner(tmp_path / "model").score(batch)
    assert np.array_equal(mine.score(batch), expected)
    assert reference.load(tmp_path / "model")(tokens).logits.isfinite().all()
    assert {p.name for p in path.iterdir()} == {p.name for p in (tmp_path / "model").iterdir()}


def test_a_gradient_that_is_not_finite_is_not_a_step(untied):
    mine, batch = learner(untied), random_batch()
    before = {name: tensor.clone() for name, tensor in mine.titan.hf_state_dict().items()}
    batch.advantages[batch.loss_mask] = 1e38  # finite, and its square is not
    mine.forward_backward(batch, *GRPO)
    with pytest.raises(FloatingPointError, match="gradient's norm is"):
        mine.optim_step(lr=1e-3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in mine.titan.hf_state_dict().items())


@pytest.mark.parametrize(
    "loss, complaint",
    [
        ("broken_losses.not_finite", "a loss that is not finite, for 1 of "),
        ("broken_losses.detached", "a loss that the logprobs have no part in"),
        ("broken_losses.odd_metric", "AttributeError: 'str' object has no attribute 'sum'"),
        ("broken_losses.of_another_shape", r"a loss of shape \[1\] for "),
    ],
)
def test_a_loss_that_cannot_be_used_is_named(untied, loss, complaint):
    with pytest.raises(RecipeError, match=rf"^algorithm.loss: {loss} failed: .*{complaint}"):
        learner(untied).forward_backward(random_batch(), loss, {})


def test_a_batch_without_tokens_to_train_on_is_refused(untied):
    with pytest.raises(ValueError, match="no tokens to train on"):
        learner(untied).forward_backward(Batch.from_samples([[4, 5]], [[False, False]]), "cross_entropy", {})


def test_an_architecture_that_is_not_known_is_named(untied, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    join_process_group()
    with pytest.raises(
        RecipeError, match=r"model\.source: .* is a 'mamba' model; the trainer knows llama, qwen2, qwen3"
    ):
        TitanModel(tmp_path, TrainerConfig(), 1)


def test_a_llama_is_transformers_too(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=120,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    batch = random_batch()
    scores, model = learner(tmp_path).score(batch), reference.load(tmp_path)
    begin, end = batch.offsets[3], batch.offsets[4]
    tokens = batch.tokens[begin:end].tolist()
    expected = np.r_[0.0, reference.logprobs(model, tokens[:1], tokens[1:]).numpy()]
    np.testing.assert_allclose(scores[begin:end], np.where(batch.loss_mask[begin:end], expected, 0), atol=1e-5)


def test_numbers_that_are_not_finite_never_reach_the_gradient(untied):
    a_learner = learner(untied)
    for name in ("logprobs", "advantages", "ref_logprobs"):
        batch = random_batch()
        place = int(np.flatnonzero(batch.loss_mask)[3])
        getattr(batch, name)[place] = np.nan
        with pytest.raises(ValueError, match=rf"{name} of token {place} is nan, and 1 are not finite in all"):
            a_learner.forward_backward(batch, *GRPO)
    batch = random_batch()
    batch.tokens[2] = a_learner.titan.vocab_size
    with pytest.raises(ValueError, match="are not all of the model's"):
        a_learner.forward_backward(batch, *GRPO)
    assert all(p.grad is None for p in a_learner.titan.model.parameters())


@pytest.mark.parametrize("missing", ["advantages", "ref_logprobs"])
def test_a_loss_names_what_the_batch_lacks(untied, missing):
    batch = random_batch()
    setattr(batch, missing, None)
    with pytest.raises(RecipeError, match=f"algorithm.loss: grpo failed: ValueError: the loss needs {missing}"):
        learner(untied).forward_backward(batch, *GRPO)


@pytest.mark.parametrize("lr", [float("nan"), float("inf"), -1e-3])
def test_a_learning_rate_that_is_none_is_refused_and_changes_nothing(untied, lr):
    a_learner, batch = learner(untied), random_batch()
    before = a_learner.score(batch)
    a_learner.forward_backward(batch, *GRPO)
    with pytest.raises(ValueError, match="the learning rate must be a finite number of at least 0"):
        a_learner.optim_step(lr)
    np.testing.assert_array_equal(a_learner.score(batch), before)
