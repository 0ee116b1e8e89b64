"""How a component declares an option of the recipe: its default, its meaning and its range, in one place.

    @dataclass
    class OptimizerConfig:
        lr: Any = option(1e-3, "learning rate", gt=0, schedule=True)

The reference of every recipe key and the checks of `rlmesh.recipe` are both made from these declarations.
This module imports nothing heavy, so that a recipe can be checked without torch, vLLM or Monarch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

LONGEST_S = 1e7  # of any limit in time: the system's own clocks take no more than some years


def option(
    default: Any = dataclasses.MISSING,
    doc: str = "",
    *,
    factory: Any = dataclasses.MISSING,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: tuple[Any, ...] | None = None,
    schedule: bool = False,
) -> Any:
    """A dataclass field with its documentation and its range.

    `schedule=True` marks a number that may also be a schedule (`{from: 0.3, to: 0.01, ...}`): annotate it `Any`.
    """
    limits = {name: value for name, value in (("ge", ge), ("gt", gt), ("le", le), ("lt", lt)) if value is not None}
    metadata = {"doc": doc, "limits": limits, "choices": choices, "schedule": schedule}
    return dataclasses.field(default=default, default_factory=factory, metadata=metadata)
