"""The run in pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson

_TIMES = {"generate": "tab:blue", "train": "tab:green", "weight_sync": "tab:red", "wait_for_batch": "0.5"}
_LABEL_GAP = 0.045  # of the height of the axes: closer labels would overlap
_WINDOW = 10  # steps in a running mean


def plot_learning_curve(metrics_path: Path, out: Path, references: dict[str, float] | None = None) -> None:
    """Reward and evaluation over the steps, KL and entropy, and where the time went.

    `references` are named values that the evaluation is compared with, drawn as lines.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [orjson.loads(line) for line in metrics_path.read_bytes().splitlines()]
    figure, (value, policy, spent) = plt.subplots(
        3, 1, figsize=(10, 9.5), sharex=True, height_ratios=(3, 1.3, 1.3), layout="constrained"
    )
    _draw_smoothed(value, rows, "reward/mean", "0.45", "reward of the step's episodes")
    evaluations = sorted({name for row in rows for name in row if name.startswith("eval/") and name.endswith("_value")})
    for name, color in zip(evaluations, ("tab:blue", "tab:green", "tab:purple"), strict=False):
        label = name.removeprefix("eval/").replace("/", " ").replace("_", " ")
        _draw(value, rows, name, color=color, label=label, linewidth=2, marker="o", markersize=4)
    _draw_references(value, references or {})
    value.set_ylabel("return of an episode")

    _draw(policy, rows, "entropy", color="tab:orange", label="entropy (nats a token)")
    _draw(policy, rows, "kl", color="tab:red", label="KL to the reference")
    policy.set_ylabel("policy")

    for name, color in _TIMES.items():
        _draw_smoothed(spent, rows, f"time/{name}", color, name.replace("_", " "))
    spent.set_ylabel("seconds a step")
    spent.set_ylim(bottom=0)
    spent.set_xlabel("step")
    for axes in (value, policy, spent):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
        if axes.lines:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=9)
    figure.savefig(out, dpi=130)
    plt.close(figure)


def _draw_references(axes: Any, references: dict[str, float]) -> None:
    """Lines named at the right edge. The first values of an untrained policy may leave the picture below them."""
    if not references:
        return
    low, high = min(references.values()), max(references.values())
    bottom = low - 0.4 * (high - low)
    if axes.get_ylim()[0] < bottom < axes.get_ylim()[1]:
        axes.set_ylim(bottom=bottom)
    place = 0.0
    for name, level in sorted(references.items(), key=lambda reference: reference[1]):
        axes.axhline(level, color="0.3", linewidth=0.8, linestyle=":")
        bottom, top = axes.get_ylim()
        place = max((level - bottom) / (top - bottom), place + _LABEL_GAP)
        axes.annotate(
            f"{name} {level:.3f}", (1.01, place), xycoords="axes fraction", fontsize=8.5, va="center", color="0.3"
        )


def _draw_smoothed(axes: Any, rows: list[dict], name: str, color: str, label: str) -> None:
    """The running mean, with each step's value faintly behind it."""
    steps, values = _points(rows, name)
    if not steps:
        return
    window = np.ones(min(_WINDOW, len(values)))
    smooth = np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")
    axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
    axes.plot(steps, smooth, color=color, label=label, linewidth=1.5)


def _draw(axes: Any, rows: list[dict], name: str, **style) -> None:
    steps, values = _points(rows, name)
    if steps:
        axes.plot(steps, values, **style)


def _points(rows: list[dict], name: str) -> tuple[list[int], list[float]]:
    """Steps that have the metric, and its values; not-a-number is written as null and left out."""
    found = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    return [step for step, _ in found], [value for _, value in found]
