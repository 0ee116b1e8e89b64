"""`rlmesh stacks`: where every process of a live run is, by py-spy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from rlmesh.checkpoint import RunDirectory
from rlmesh.errors import RLMeshError

_PY_SPY = Path(sys.executable).parent / "py-spy"
_LIMIT_S = 20.0


def run_processes(run: Path) -> list[psutil.Process]:
    """The controller of a live run and everything below it. Raises: RLMeshError when the run is not going on."""
    pid = RunDirectory(run).user()
    if pid is None:
        raise RLMeshError(f"{run}: no process is using it; the run has ended")
    controller = psutil.Process(pid)
    return [controller, *controller.children(recursive=True)]


def stacks(run: Path) -> Iterator[tuple[str, str]]:
    """A title and the stack of every thread, for each process of the run."""
    for process in run_processes(run):
        try:
            title = f"{process.pid} {' '.join(process.cmdline()).strip()[:100]} | {process.status()}"
        except psutil.NoSuchProcess:
            continue
        yield title, _stack(process.pid)


def _stack(pid: int) -> str:
    try:
        done = subprocess.run([_PY_SPY, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"py-spy could not read it within {_LIMIT_S:g} s"
    if done.returncode == 0:
        return done.stdout.partition("\n\n")[2].rstrip()  # without py-spy's own header
    if "ermission" in done.stderr:
        raise RLMeshError(
            "py-spy may not look into other processes here: run as root, or allow it (in a container: the SYS_PTRACE capability)"
        )
    return done.stderr.strip()
