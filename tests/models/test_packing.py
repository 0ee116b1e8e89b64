import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmesh.models.packing import pack
from rlmesh.rollout.batch import Batch


def batch_of(lengths):
    rng = np.random.default_rng(sum(lengths))
    return Batch.from_samples([rng.integers(1, 99, n) for n in lengths], [np.arange(n) > 0 for n in lengths])


@given(st.lists(st.integers(1, 16), min_size=1, max_size=60), st.integers(1, 4))
def test_every_token_has_one_place_and_sees_only_its_own_past(lengths, multiple):
    batch = batch_of(lengths)
    packed = pack(batch, 16, rows_multiple=multiple)
    tokens, samples, positions = (
        t.flatten().numpy() for t in (packed.tokens_RL, packed.samples_RL, packed.positions_RL)
    )
    assert len(set(packed.place_N.tolist())) == len(batch.tokens)
    assert (tokens[packed.place_N] == batch.tokens).all()
    assert (samples >= 0).sum() == len(batch.tokens)
    assert packed.num_rows % multiple == 0
    assert packed.row_length == max(1, min(16, packed.row_length))
    # Neighbours in the batch are neighbours in the row, so that the place before a token is its own past.
    inside = np.diff(samples[packed.place_N]) == 0
    assert (np.diff(packed.place_N)[inside] == 1).all()
    assert (positions[packed.place_N] == np.concatenate([np.arange(n) for n in lengths])).all()
    mask = packed.mask(slice(0, packed.num_rows))[:, 0].numpy()
    for row, seen in enumerate(mask):
        who = packed.samples_RL[row].numpy()
        expected = (who[:, None] == who[None, :]) & (np.arange(len(who))[:, None] >= np.arange(len(who))[None, :])
        assert (seen == expected).all()


def test_rows_are_filled():
    assert pack(batch_of([10] * 8 + [6] * 8), 16).num_rows == 8


def test_a_sample_longer_than_a_row_names_the_key():
    with pytest.raises(ValueError, match=r"17 tokens does not fit in a row of trainer\.pack_length = 16"):
        pack(batch_of([3, 17]), 16)
