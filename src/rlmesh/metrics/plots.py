"""The run in pictures."""

from __future__ import annotations

from pathlib import Path

import orjson


def plot_learning_curve(metrics_path: Path, out: Path, references: dict[str, float] | None = None) -> None:
    """Reward and evaluation over the steps, KL and entropy, and where the time went.

    `references` are named values that the evaluation is compared with, drawn as lines.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [orjson.loads(line) for line in metrics_path.read_bytes().splitlines()]
    figure, (value, policy, spent) = plt.subplots(3, 1, figsize=(9, 10), sharex=True, height_ratios=(3, 1.4, 1.4))
    _draw(value, rows, "reward/mean", color="0.8", label="reward (this step's episodes)")
    evaluations = sorted({name for row in rows for name in row if name.startswith("eval/") and name.endswith("_value")})
    for name, color in zip(evaluations, ("tab:blue", "tab:green", "tab:purple"), strict=False):
        _draw(value, rows, name, color=color, label=name.rpartition("/")[2].replace("_", " "), linewidth=2, marker=".")
    for label, level in (references or {}).items():
        value.axhline(level, color="0.35", linewidth=0.8, linestyle=":")
        value.annotate(
            f"{label} {level:.3f}", (1, level), xycoords=("axes fraction", "data"), fontsize=8, ha="right", va="bottom"
        )
    value.set_ylabel("return of an episode")
    value.legend(loc="lower right", frameon=False)

    _draw(policy, rows, "entropy", color="tab:orange", label="entropy (nats a token)")
    _draw(policy, rows, "kl", color="tab:red", label="KL to the reference")
    policy.set_ylabel("policy")
    policy.legend(loc="upper right", frameon=False)

    for name, color in zip(
        ("generate", "train", "weight_sync", "wait_for_batch"), ("tab:blue", "tab:green", "tab:red", "0.6"), strict=True
    ):
        _draw(spent, rows, f"time/{name}", color=color, label=name.replace("_", " "), linewidth=1)
    spent.set_ylabel("seconds a step")
    spent.set_ylim(bottom=0)
    spent.set_xlabel("step")
    spent.legend(loc="upper right", frameon=False, ncols=4)
    for axes in (value, policy, spent):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    figure.tight_layout()
    figure.savefig(out, dpi=130)
    plt.close(figure)


def _draw(axes, rows: list[dict], name: str, **style) -> None:
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), **style)
