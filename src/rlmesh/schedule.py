"""Numbers that change over a run: a recipe may give a schedule wherever an option says so.

kl_coef: {from: 0.3, to: 0.01}                                  # linear over the whole run
lr: {from: 2e-3, to: 2e-4, shape: cosine, after: 20, over: 100}   # steps 20 to 120; constant before and after
clip_high: {from: 0.4, to: 0.2, over: 0.5}                      # over the first half of the run
"""

from __future__ import annotations

import math
from typing import Any

SHAPES = ("linear", "cosine", "exponential")
KEYS = ("from", "to", "after", "over", "shape")


def value_at(value: Any, step: int, total_steps: int) -> float:
    """The number at `step` (from 0) of `total_steps`: the schedule's, or the constant itself.

    `after` is the step at which the change begins, `over` the steps it takes, or below 1 a share of the run (default: to
    the run's last step).

    >>> value_at({"from": 1.0, "to": 0.0}, step=5, total_steps=11)
    0.5
    >>> value_at(0.1, step=5, total_steps=11)
    0.1
    """
    if not isinstance(value, dict):
        return float(value)
    begin, end, after = value["from"], value["to"], value.get("after", 0)
    over = value.get("over", total_steps - 1 - after)
    if 0 < over < 1:
        over *= total_steps
    share = float(step >= after) if over <= 0 else min(max((step - after) / over, 0.0), 1.0)
    shape = value.get("shape", "linear")
    if shape == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    elif shape == "exponential":
        return float(begin * (end / begin) ** share)
    return float(begin + (end - begin) * share)


def is_number(value: Any) -> bool:
    """A finite number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def ends(value: Any) -> list[float]:
    """Every number that a range check has to look at: the constant, or both ends of the schedule."""
    return [value["from"], value["to"]] if isinstance(value, dict) else [value]


def problems(value: dict[str, Any], total_steps: int) -> list[str]:
    """What is wrong with a schedule's own keys, each as a sentence without the option's path."""
    found = [f"a schedule needs '{key}'" for key in ("from", "to") if key not in value]
    for key in ("from", "to", "after", "over"):
        if key in value and not is_number(value[key]):
            found.append(f"'{key}' of a schedule is a number, not {value[key]!r}")
    if found:
        return found
    shape, after = value.get("shape", "linear"), value.get("after", 0)
    if shape not in SHAPES:
        found.append(f"'shape' of a schedule is one of {', '.join(SHAPES)}, not {shape!r}")
    if shape == "exponential" and min(value["from"], value["to"]) <= 0:
        found.append("an exponential schedule needs 'from' and 'to' above 0")
    if after < 0:
        found.append(f"'after' of a schedule is a step from 0 on, not {after}")
    if value.get("over", 1) <= 0:
        found.append(
            f"the schedule ends before it starts: 'over' is {value['over']}; steps, or a share of the run below 1"
        )
    if after >= max(total_steps, 1):
        found.append(f"the schedule starts at step {after}, after the last step {total_steps - 1}")
    return found
