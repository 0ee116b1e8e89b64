"""When something was busy: lists of (begin, end) in seconds of one clock."""

from __future__ import annotations

from collections.abc import Iterable

Intervals = list[tuple[float, float]]


def merged(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """Sorted, without overlaps.

    >>> merged([(3, 4), (0, 2), (1, 2.5)])
    [(0, 2.5), (3, 4)]
    """
    result: Intervals = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def intersection(left: Intervals, right: Intervals) -> Intervals:
    """What two merged lists have in common.

    >>> intersection([(0, 2), (3, 5)], [(1, 4)])
    [(1, 2), (3, 4)]
    """
    result, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        begin, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if begin < end:
            result.append((begin, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return result


def length(intervals: Intervals) -> float:
    """Seconds in all."""
    return sum(end - begin for begin, end in intervals)
