import numpy as np
import pytest

from rlmesh.models.packing import pack
from rlmesh.rollout.batch import Batch


def batch_of(lengths):
    return Batch.from_samples([np.ones(n) for n in lengths], [np.zeros(n) for n in lengths])


@pytest.mark.parametrize(
    ("longest", "limit", "expected"), [(13, 256, 64), (40, 256, 160), (100, 256, 256), (13, 32, 32)]
)
def test_rows_are_no_longer_than_their_samples_need(longest, limit, expected):
    # Samples of one token fill every row to its end.
    packed = pack(batch_of([longest] * 8 + [1] * 2000), limit)
    assert packed.row_length == expected


def test_a_small_batch_is_one_row_without_empty_places():
    packed = pack(batch_of([5, 3]), 256)
    assert (packed.num_rows, packed.row_length) == (1, 8)
