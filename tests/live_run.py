"""`python -m rlmesh.run` as a process of its own, whose processes a test can stop and kill, and what it says."""

import os
import signal
import subprocess
import sys

import psutil


class LiveRun:
    def __init__(self, *arguments: str):
        self.said = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rlmesh.run", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def wait_for(self, line: str) -> None:
        for said in self._process.stdout:
            self.said += said
            if line in said:
                return
        raise AssertionError(f"it ended before it said '{line}': {self.said}")

    def terminate(self) -> None:
        self._process.terminate()

    def signal_process(self, title: str, number: signal.Signals) -> None:
        os.kill(next(p.pid for p in self._family() if title in " ".join(p.cmdline())), number)

    def titles(self) -> list[str]:
        return [p.cmdline()[0] for p in self._family() if p.cmdline() and p.cmdline()[0].startswith("rlmesh:")]

    def processes(self) -> list[psutil.Process]:
        """Its own, and all below it."""
        return [psutil.Process(self._process.pid), *self._family()]

    def end(self) -> int:
        """Its exit code."""
        self.said += self._process.communicate(timeout=240)[0]
        return self._process.returncode

    def clean_up(self) -> None:
        self._process.kill()

    def _family(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children(recursive=True)
