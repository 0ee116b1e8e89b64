"""rlmesh and TRL side by side on one workload: seconds a step, tokens and processor seconds; for docs/performance.md.

    python benchmarks/throughput.py [--rounds 3] [--steps 24] [--only rlmesh]

16 prompts x 8 answers of exactly 32 tokens, one optimizer step, a Qwen3 of 4 layers and 128 hidden, float32. The systems take
turns, in another order each round. TRL runs in an environment of its own, `benchmarks/.venv-trl`, which sees the packages of
`.venv`: the same torch, transformers and vLLM. Writes benchmarks/results/throughput.json.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import orjson
import psutil
import typer
from char_model import build_char_model
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ROOT = HERE.parent
TRL = "1.16.0"
TRL_PYTHON = HERE / ".venv-trl" / "bin" / "python"
WARM_UP_STEPS = 5
_SAMPLE_S = 0.25


@dataclass
class Result:
    """What one run of one system showed."""

    steps: list[dict] = field(default_factory=list)  # metrics of each step after the warm-up
    start_s: float = 0.0  # to the beginning of the first step
    cpu_s_per_step: float = 0.0
    peak_rss_mb: float = 0.0  # proportional: what processes share is counted once


@dataclass(frozen=True)
class System:
    """One of those that are compared. `command(model, folder, steps)` writes its steps into `folder/rows`, a JSON row each."""

    system: str
    mode: str
    command: Callable[[Path, Path, int], list[str | Path]]
    rows: str


def rlmesh(max_policy_age: int) -> Callable[[Path, Path, int], list[str | Path]]:
    def command(model: Path, folder: Path, steps: int) -> list[str | Path]:
        options = {
            "run.steps": steps,
            "run.dir": folder,
            "model.source": model,
            "replay_buffer.max_policy_age": max_policy_age,
            "placement.actors.trainer.threads": 1 if max_policy_age else 2,  # both cores are its own, or one is vLLM's
        }
        overrides = [f"{name}={value}" for name, value in options.items()]
        return [sys.executable, "-m", "rlmesh.run", HERE / "throughput.yaml", *overrides]

    return command


def trl(engine: str) -> Callable[[Path, Path, int], list[str | Path]]:
    def command(model: Path, folder: Path, steps: int) -> list[str | Path]:
        return [TRL_PYTHON, HERE / "trl_run.py", model, folder / "steps.jsonl", str(steps), engine]

    return command


SYSTEMS = [
    System("rlmesh", "synchronous", rlmesh(0), "metrics.jsonl"),
    System("rlmesh", "one step off-policy", rlmesh(1), "metrics.jsonl"),
    System("TRL", "generate()", trl("generate"), "steps.jsonl"),
    System("TRL", "vLLM", trl("vllm"), "steps.jsonl"),
]


def make_trl_environment() -> None:
    """An environment of TRL's own over the packages of this one."""
    folder = TRL_PYTHON.parents[1]
    if TRL_PYTHON.exists():
        return
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "project.pth").write_text(f"{next(path for path in sys.path if path.endswith('site-packages'))}\n")
    install = [sys.executable, "-m", "pip", "--python", TRL_PYTHON, "install", "--quiet", "--no-deps", f"trl=={TRL}"]
    subprocess.run(install, check=True)


def measure(system: System, model: Path, steps: int) -> Result:
    """One run, watched from outside."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
        began = time.monotonic()
        with (folder / "log").open("wb") as log:
            command = list(map(str, system.command(model, folder, steps)))
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=scratch)
        result = watch(process, folder / system.rows, began)
        if process.returncode:
            raise SystemExit(
                f"{system.system} {system.mode} ended with {process.returncode}:\n{(folder / 'log').read_text()[-3000:]}"
            )
    return result


def watch(process: subprocess.Popen, rows_path: Path, began: float) -> Result:
    """Sample the processor time and memory of a run's processes until it ends."""
    result, cpu_s, used = Result(), {}, {}  # processor seconds: of each process, and at the end of each step
    root, seen = psutil.Process(process.pid), 0
    while process.poll() is None:
        pss = 0
        for member in _family(root):
            with suppress(psutil.Error):
                cpu_s[member.pid] = sum(member.cpu_times()[:2])
                if seen % 8 == 0:  # slow to find out
                    pss += member.memory_full_info().pss
        result.peak_rss_mb = max(result.peak_rss_mb, pss / 2**20)
        rows = _rows(rows_path)
        if rows and not result.start_s:
            result.start_s = time.monotonic() - began - sum(row["time/step"] for row in rows)
        used[len(rows)] = sum(cpu_s.values())
        seen += 1
        time.sleep(_SAMPLE_S)
    result.steps = _rows(rows_path)[WARM_UP_STEPS:]
    if not result.steps:
        return result
    first, last = min(n for n in used if n >= WARM_UP_STEPS), max(used)
    result.cpu_s_per_step = (used[last] - used[first]) / (last - first)
    return result


def _family(root: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [root, *root.children(recursive=True)]
    return []


def _rows(path: Path) -> list[dict]:
    if not path.exists():
        return []
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return [row for row in rows if "time/step" in row]


def summarize(system: System, results: list[Result]) -> dict[str, float | str | None]:
    """Medians over the steps of all rounds."""
    steps = [step for result in results for step in result.steps]

    def median(name: str) -> float | None:
        values = [step[name] for step in steps if name in step]
        return statistics.median(values) if values else None

    step_s, sync_s = median("time/step"), median("time/weight_sync")
    return {
        "system": system.system,
        "mode": system.mode,
        "step_s_median": step_s,
        "tokens_per_s": median("tokens/sampled") / step_s,
        "cpu_s_per_step": statistics.median(result.cpu_s_per_step for result in results),
        "start_s": statistics.median(result.start_s for result in results),
        "peak_rss_mb": max(result.peak_rss_mb for result in results),
        "sync_share": sync_s / step_s if sync_s else None,
        "both_busy_share": median("perf/both_busy_share"),
        "policy_busy_share": median("perf/policy_busy_share"),
        "trainer_busy_share": median("perf/trainer_busy_share"),
        "steps": len(steps),
        "tokens_per_step": median("tokens/sampled"),
    }


def show(rows: list[dict]) -> None:
    """The rows as a table."""
    table = Table(*(name for name in rows[0]), title=f"{os.cpu_count()} cores, medians")
    for row in rows:
        table.add_row(*("-" if v is None else f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=200).print(table)


def main(
    rounds: int = 3,
    steps: int = 24,
    only: Annotated[str, typer.Option(help="part of a system's name or mode")] = "",
    write: bool = True,
) -> None:
    """Measure, show and write."""
    systems = [system for system in SYSTEMS if only in f"{system.system} {system.mode}"]
    if any(system.system == "TRL" for system in systems):
        make_trl_environment()
    results: dict[System, list[Result]] = {system: [] for system in systems}
    with tempfile.TemporaryDirectory() as folder:
        build_char_model(Path(folder))
        for number in range(rounds):
            for place in range(len(systems)):
                system = systems[(place + number) % len(systems)]
                results[system].append(measure(system, Path(folder), steps))
                found = summarize(system, results[system][-1:])
                print(
                    f"round {number}: {system.system} {system.mode}: {found['step_s_median']:.3f} s a step", flush=True
                )
    rows = [summarize(system, results[system]) for system in systems]
    show(rows)
    if write:
        (HERE / "results" / "throughput.json").write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    typer.run(main)
