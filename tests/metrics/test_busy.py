import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlmesh.metrics.busy import intersection, length, merged

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def painted(intervals):
    line = np.zeros(60, dtype=bool)
    for begin, end in intervals:
        line[begin:end] = True
    return line


@given(INTERVALS, INTERVALS)
def test_lengths_are_those_of_the_painted_line(left, right):
    assert length(merged(left)) == painted(left).sum()
    assert length(intersection(merged(left), merged(right))) == (painted(left) & painted(right)).sum()
