import numpy as np
import pytest

from rlmesh.rollout.batch import Batch


def make(lengths, seed=0):
    rng = np.random.default_rng(seed)
    tokens = [rng.integers(0, 50, n) for n in lengths]
    masks = [np.arange(n) > 0 for n in lengths]
    return Batch.from_samples(
        tokens, masks, [rng.normal(size=n) for n in lengths], [rng.normal(size=n) for n in lengths]
    )


def test_select_keeps_every_array_aligned():
    batch = make([3, 5, 2])
    part = batch.select(np.array([2, 0]))
    assert part.num_samples == 2
    assert part.tokens.tolist() == [*batch.tokens[8:10], *batch.tokens[0:3]]
    assert part.logprobs.tolist() == [*batch.logprobs[8:10], *batch.logprobs[0:3]]
    assert part.offsets.tolist() == [0, 2, 5]


@pytest.mark.parametrize("field", ["loss_mask", "logprobs", "advantages", "ref_logprobs"])
def test_an_array_of_another_length_is_refused(field):
    batch = make([3, 2])
    fields = {
        f: getattr(batch, f) for f in ("tokens", "offsets", "loss_mask", "logprobs", "advantages", "ref_logprobs")
    }
    fields[field] = np.zeros(4, dtype=bool if field == "loss_mask" else np.float32)
    with pytest.raises(ValueError, match=f"{field} has shape .*4.*batch has 5 tokens"):
        Batch(**fields)


def test_reference_logprobs_of_another_length_are_refused():
    with pytest.raises(ValueError, match="ref_logprobs has shape"):
        make([3, 2]).with_ref_logprobs(np.zeros(6))


def test_the_first_token_of_a_sample_cannot_be_trained_on():
    with pytest.raises(ValueError, match="first token"):
        Batch.from_samples([np.array([1, 2])], [np.array([True, True])])


def test_an_empty_sample_is_refused():
    with pytest.raises(ValueError, match="empty samples"):
        Batch.from_samples(
            [np.array([1, 2]), np.array([], dtype=int)], [np.array([False, True]), np.array([], dtype=bool)]
        )
