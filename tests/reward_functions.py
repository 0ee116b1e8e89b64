"""Reward functions as users write them, good and bad."""

import asyncio
import re
import time


def takes_anything(episode, **arguments):
    return 0.0


def longer_is_better(episode, bonus=0.0):
    return len(episode.turns) + bonus


async def slow(episode):
    await asyncio.sleep(60)


async def asynchronous(episode):
    return 0.5


def returns_none(episode):
    return None


def returns_nan(episode):
    return float("nan")


def raises(episode):
    raise KeyError("total")


def slow_and_not_async(episode):
    time.sleep(3)
    return 1.0


def takes_its_time(episode):
    time.sleep(0.1)
    return 1.0


async def asynchronous_and_blocking(episode):
    time.sleep(3)


def exits(episode):
    raise SystemExit("no more")


async def exits_asynchronously(episode):
    raise SystemExit("no more")


def never_lets_go(episode):
    """Backtracks for years, in C, without ever giving the interpreter to another thread."""
    return float(bool(re.match(r"(a+)+$", "a" * 60 + "b")))
