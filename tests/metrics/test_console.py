import math

import pytest

from rlmesh.metrics.console import Console, duration, step_line

METRICS = {
    "time/step": 0.94,
    "reward/mean": -0.213,
    "groups": 32.0,
    "off_policy/mean": 0.42,
    "off_policy/max": 1.0,
    "errors/timeout": 2.0,
    "errors/env_lost": 1.0,
    "episodes/truncated": 0.054,
}


def test_the_line_of_a_step():
    assert step_line(12, 150, METRICS, groups=32, left_s=130) == (
        "step 12 | 0.9 s | reward -0.21 | groups 32/32 | age 0.4 (max 1) | errors 3 | truncated 5 % | 13/150, 2 min left"
    )


def test_numbers_that_are_not_finite_are_named():
    line = step_line(0, 2, METRICS | {"kl": math.nan, "loss": math.inf}, groups=32, left_s=1)
    assert line.endswith("| not finite: kl, loss")


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (130, "2 min"),
        (3569, "59 min"),
        (3590, "1 h 0 min"),
        (7190, "2 h 0 min"),
        (90000, "25 h 0 min"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_waiting_is_plain_lines_without_a_terminal(capsys):
    console = Console()
    with console.waiting("policy server [0]"), console.waiting("trainer"):
        console.print("between")
    first, second, third, fourth, fifth = capsys.readouterr().out.splitlines()
    assert [first, second, third] == ["  waiting for policy server [0]", "  waiting for trainer", "between"]
    assert fourth.startswith("  trainer: ready after 0.0 s") and fifth.startswith("  policy server [0]: ready after")


def test_two_replicas_may_have_one_name(capsys):
    console = Console()
    with console.waiting("policy"), console.waiting("policy"):
        pass
    assert capsys.readouterr().out.count("policy: ready") == 2


def test_what_failed_is_not_called_ready(capsys):
    console = Console()
    with pytest.raises(OSError), console.waiting("trainer"):
        raise OSError
    assert "ready" not in capsys.readouterr().out


def test_a_terminal_shows_a_clock_while_something_is_pending(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    console = Console()
    with console.waiting("policy server"), console.waiting("trainer"):
        pass
    out = capsys.readouterr().out
    assert "waiting for policy server" in out and "\x1b[" in out and "trainer: ready after" in out


def test_a_console_that_is_switched_off_is_silent(capsys):
    console = Console(enabled=False)
    with console.waiting("trainer"):
        console.print("hello")
    assert capsys.readouterr().out == ""


def test_long_lines_are_not_broken(capsys):
    Console().print("x" * 500)
    assert capsys.readouterr().out == "x" * 500 + "\n"
