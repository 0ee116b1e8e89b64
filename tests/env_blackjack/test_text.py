"""Answers are parsed strictly: the final answer, never a substring."""

import time

import pytest
from blackjack_env.text import parse_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("hit", "hit"),
        ("  STAND\n", "stand"),
        ("**Hit**", "hit"),
        ("`stand`.", "stand"),
        ("Answer: hit", "hit"),
        ("**Answer:** *stand*!", "stand"),
        ("16 against a ten is weak, so I should hit.\n\nanswer: stand\n\n", "stand"),
        ("Hit or stand?\nhit", "hit"),
    ],
)
def test_valid(text, answer):
    assert parse_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    ["", "\n", "stand hit", "I would hit", "hit me", "hitstand", "hit\nbecause 12 is low", "answer hit", "white", "hi t",
     "answer: answer: hit", "stands", "final answer: hit", "hit, stand", "1hit", "[hit] or [stand]", "answer:", "*" * 40],
)  # fmt: skip
def test_invalid(text):
    assert parse_answer(text) is None


def test_hostile_text_costs_no_time():
    started = time.perf_counter()
    assert parse_answer("answer" + "*" * 10**6 + "x") is None
    assert time.perf_counter() - started < 0.1
