"""Time and throughput of configs/blackjack.yaml on this machine; the figures of docs/performance.md.

    python benchmarks/blackjack.py [--steps 100] [RUN]

Without RUN a run of `--steps` is made first. Prints a table and writes benchmarks/results/blackjack.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
_WARM_UP_STEPS = 10
_SHOWN = {
    "time/step": "a step",
    "time/generate": "episodes of a step, from dispatch to the last reward",
    "time/wait_for_batch": "the trainer waits for them",
    "time/reference": "reference logprobs",
    "time/train": "forward, backward, optimizer step",
    "time/weight_sync": "publish and fetch",
    "time/eval": "an evaluation (every 20th step)",
}


def summarize(run: Path) -> dict[str, float | str]:
    rows = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    steps = [row for row in rows[_WARM_UP_STEPS:] if "time/step" in row]
    median = {name: statistics.median(row[name] for row in steps if name in row) for name in _SHOWN}
    shares = ("perf/policy_busy_share", "perf/trainer_busy_share", "perf/both_busy_share")
    first = rows[0]
    return {
        "start_s": first["time/since_start"] - first["time/step"] + first.get("time/eval", 0.0),
        **median,
        **{name: statistics.median(row[name] for row in steps) for name in shares},
        "perf/tokens_per_s": statistics.median(row["perf/tokens_per_s"] for row in steps),
        "weight_sync_share": median["time/weight_sync"] / median["time/step"],
        "steps": len(steps),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run
        if run is None:
            run = Path(folder) / "run"
            command = [
                sys.executable,
                "-m",
                "rlmesh.run",
                ROOT / "configs/blackjack.yaml",
                f"run.steps={options.steps}",
                f"run.dir={run}",
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        result = summarize(run)
    table = Table("median", "seconds", title=str(result["machine"]))
    table.add_row("start to first training step", f"{result['start_s']:.1f}")
    for name, meaning in _SHOWN.items():
        table.add_row(f"{name}: {meaning}", f"{result[name]:.3f}")
    console = Console()
    console.print(table)
    for name in (
        "perf/tokens_per_s",
        "perf/policy_busy_share",
        "perf/trainer_busy_share",
        "perf/both_busy_share",
        "weight_sync_share",
    ):
        console.print(f"{name}: {result[name]:.3g}")
    out = ROOT / "benchmarks" / "results" / "blackjack.json"
    out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
