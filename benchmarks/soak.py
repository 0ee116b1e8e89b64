"""A long run in which processes are killed and frozen at random; the figures of docs/performance.md.

    python benchmarks/soak.py [--minutes 20]

Prints what each kind of process came back in, and how memory, open files, temporary files and shared memory grew; writes
benchmarks/results/soak.json.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import typer
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
KINDS = (
    "rlmesh:policy",
    "VLLM::EngineCore",
    "rlmesh:trainer",
    "rlmesh:ref_model",
    "rlmesh:rollout",
    "rlmesh:reward",
    "rlmesh:replay_buffer",
    "rlmesh:weight_store",
    "rlmesh:env",
    "rlmesh.envs.serve",
)
_SETTINGS = (
    "run.steps=1000000",
    "checkpoint.every=25",
    "eval.every=200",
    "warm_start.steps=20",
    "run.max_restarts=100",
    "metrics.rollouts_every=0",
)
_SAMPLE_S, _WARM_UP_S, _PAUSE_S = 5.0, 60.0, 20.0


class Soak:
    """The run, what it says, and what its processes hold."""

    def __init__(self, folder: Path):
        command = [
            sys.executable,
            "-m",
            "rlmesh.run",
            "configs/blackjack.yaml",
            *_SETTINGS,
            f"run.dir={folder / 'run'}",
        ]
        self.tmp = folder / "tmp"
        self.tmp.mkdir()
        self.child = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(self.tmp)}
        )
        self.events = folder / "run" / "events.jsonl"
        self.lines: queue.Queue[str] = queue.Queue()
        self.said = 0
        self.samples: defaultdict[str, list[tuple[float, dict[str, float]]]] = defaultdict(list)
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._sample, daemon=True).start()

    def wait_for_step(self) -> None:
        """Until two steps have ended from now on: the first may have been made already."""
        while not self.lines.empty():
            self.lines.get()
        for _ in range(2):
            while not (line := self.lines.get(timeout=300)).startswith("step "):
                if not line:
                    raise SystemExit(f"the run ended with {self.child.wait()}")

    def wait_until_back(self, kind: str, before: int) -> None:
        """Until the run has said that something took the place of what was hit, and goes on."""
        if kind != "rlmesh.envs.serve":  # which its host starts again, without an event
            deadline = time.monotonic() + 300
            while not any(f'"{word}"' in self.told()[before:] for word in ("actor replaced", "restarted")):
                if time.monotonic() > deadline or self.child.poll() is not None:
                    raise SystemExit(f"nothing took the place of {kind}")
                time.sleep(0.1)
        self.wait_for_step()

    def told(self) -> str:
        return self.events.read_text()

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.child.pid).children(recursive=True)

    def hit(self, kind: str, number: signal.Signals) -> None:
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                if kind in " ".join(process.cmdline()):
                    return os.kill(process.pid, number)
        raise SystemExit(f"there is no {kind}")

    def _read(self) -> None:
        for line in self.child.stdout:
            self.said += 1
            self.lines.put(line)
        self.lines.put("")

    def _sample(self) -> None:
        """One series for each process and one for the run as a whole."""
        began = time.monotonic()
        while self.child.poll() is None:
            now = time.monotonic() - began
            with suppress(psutil.Error):
                for process in [psutil.Process(self.child.pid), *self.family()]:
                    with suppress(psutil.Error):
                        words = " ".join(process.cmdline())
                        kind = next((k for k in (*KINDS, "rlmesh.run") if k in words), "")
                        if kind:
                            held = {"MB": process.memory_full_info().uss / 1e6, "files": process.num_fds()}
                            self.samples[f"{kind} {process.pid}"].append((now, held))
            temporary = sum(1 for _ in self.tmp.rglob("*"))
            shared = sum(1 for _ in Path("/dev/shm").iterdir())
            self.samples["run"].append((now, {"temporary files": temporary, "shared memory": shared}))
            time.sleep(_SAMPLE_S)


def growth(samples: list[tuple[float, dict[str, float]]], what: str) -> float | None:
    """Per minute, after a warm-up; None for a process that did not live long enough to say."""
    late = [(t, held[what]) for t, held in samples if t - samples[0][0] >= _WARM_UP_S]
    if len(late) < 12:
        return None
    return float(np.polyfit(*zip(*late, strict=True), 1)[0]) * 60


def hit_at_random(
    soak: Soak, seconds: float, chance: random.Random, recovered: dict[str, list[tuple[str, float]]]
) -> None:
    """After a quarter of the time, in which growth is seen best, one process after another."""
    soak.wait_for_step()
    ends, todo = time.monotonic() + seconds, []
    time.sleep(seconds / 4)
    while time.monotonic() < ends:
        if not todo:
            todo = chance.sample(KINDS, len(KINDS))
        kind, number = todo.pop(), chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        before, hit_at = len(soak.told()), time.monotonic()
        soak.hit(kind, number)
        soak.wait_until_back(kind, before)
        recovered[kind].append((number.name, time.monotonic() - hit_at))
        time.sleep(chance.uniform(0, _PAUSE_S))


def main(minutes: float = 20.0, seed: int = 0) -> None:
    """Hit one process after another, in random order, and report."""
    recovered: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder))
        try:
            hit_at_random(soak, minutes * 60, random.Random(seed), recovered)
            soak.child.send_signal(signal.SIGTERM)
            code = soak.child.wait(60)
        finally:
            soak.child.kill()
        events = soak.told().count("\n")
        steps = sum(1 for _ in (Path(folder) / "run" / "metrics.jsonl").open())
    report(soak, recovered, {"minutes": minutes, "exit": code, "steps": steps, "lines": soak.said, "events": events})


def report(soak: Soak, recovered: dict[str, list[tuple[str, float]]], result: dict[str, object]) -> None:
    """Tables, and the file."""
    console = Console()
    table = Table("process", "hits", "back after (s), median", "longest")
    for kind, hits in {**recovered, "all": [*itertools.chain(*recovered.values())]}.items():
        times = [seconds for _, seconds in hits]
        if times:
            table.add_row(kind, str(len(times)), f"{statistics.median(times):.1f}", f"{max(times):.1f}")
    console.print(table)
    table, grown = Table("held by", "at the end", "growth per minute"), {}
    for name, samples in soak.samples.items():
        for what in samples[-1][1]:
            if (per_minute := growth(samples, what)) is not None:
                grown[f"{name}: {what}"] = per_minute
                table.add_row(f"{name}: {what}", f"{samples[-1][1][what]:.1f}", f"{per_minute:+.3f}")
    console.print(table)
    console.print(result)
    out = ROOT / "benchmarks" / "results" / "soak.json"
    out.write_text(json.dumps({**result, "recovered": recovered, "growth_per_minute": grown}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
