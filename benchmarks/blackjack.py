"""Time and throughput of configs/blackjack.yaml on this machine; the figures of docs/performance.md.

    python benchmarks/blackjack.py [--steps 100] [RUN]

Without RUN a run of `--steps` is made first. Prints a table and writes benchmarks/results/blackjack.json.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Optional

import orjson
import psutil
import typer
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
_SHARES = (
    "perf/tokens_per_s",
    "perf/policy_busy_share",
    "perf/trainer_busy_share",
    "perf/both_busy_share",
    "weight_sync_share",
)
_PROCESSES = {  # a word of the command line, and what it is
    "VLLM::EngineCore": "vLLM: scheduler, model and sampling",
    "rlmesh:policy": "PolicyServer",
    "rlmesh:rollout": "RolloutWorker",
    "rlmesh:trainer": "TitanTrainer",
    "rlmesh:ref_model": "ReferenceModel",
    "rlmesh:reward": "RewardActor",
    "rlmesh:replay_buffer": "ReplayBuffer",
    "rlmesh.envs.serve": "environment server",
    "rlmesh.run": "controller",
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


def processor_seconds(process: psutil.Process) -> Counter[str]:
    """Processor seconds so far of a run's processes, by their names."""
    used: Counter[str] = Counter()
    for member in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            words = member.cmdline()
            name = next((name for mark, name in _PROCESSES.items() if any(mark in word for word in words)), "other")
            used[name] += sum(member.cpu_times()[:2])
    return used


def measure(steps: int, run: Path) -> dict[str, float]:
    """Make a run; returns the processor seconds that a step takes, by process."""
    recipe = ROOT / "configs" / "blackjack.yaml"
    command = [sys.executable, "-m", "rlmesh.run", recipe, f"run.steps={steps}", f"run.dir={run}"]
    snapshots: list[tuple[int, Counter[str]]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        process = psutil.Process(child.pid)
        for line in child.stdout:
            if line.startswith("step ") and int(line.split()[1]) % _WARM_UP_STEPS == 0:
                snapshots.append((int(line.split()[1]), processor_seconds(process)))
    if child.returncode:
        raise SystemExit(f"the run ended with {child.returncode}")
    (first, before), (last, after) = snapshots[1], snapshots[-1]
    return {name: (after[name] - before[name]) / (last - first) for name, _ in after.most_common()}


def main(run: Annotated[Optional[Path], typer.Argument(metavar="RUN")] = None, steps: int = 100) -> None:
    """Measure, show and write."""
    processors: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        if run is None:
            run = Path(folder) / "run"
            processors = measure(steps, run)
        result = summarize(run)
    console = Console()
    table = Table("median", "seconds", title=str(result["machine"]))
    table.add_row("start to first training step", f"{result['start_s']:.1f}")
    for name, meaning in _SHOWN.items():
        table.add_row(f"{name}: {meaning}", f"{result[name]:.3f}")
    console.print(table)
    for name in _SHARES:
        console.print(f"{name}: {result[name]:.3g}")
    if processors:
        table = Table("process", "processor seconds a step")
        for name, seconds in processors.items():
            table.add_row(name, f"{seconds:.3f}")
        table.add_row("all", f"{sum(processors.values()):.3f}")
        console.print(table)
    out = ROOT / "benchmarks" / "results" / "blackjack.json"
    out.write_text(json.dumps({**result, "processor_seconds": processors}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
