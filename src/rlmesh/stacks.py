"""`rlmesh stacks`: where every process of a live run is, by py-spy."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import psutil

from rlmesh.errors import RLMeshError
from rlmesh.run_directory import RunDirectory

_PY_SPY = Path(sys.executable).parent / "py-spy"
_LIMIT_S = 20.0


def run_processes(run: Path) -> list[psutil.Process]:
    """The controller of a live run and everything below it. Raises: RLMeshError when the run is not going on."""
    pid = RunDirectory(run).user()
    if pid is None:
        raise RLMeshError(f"{run}: no process is using it; the run has ended")
    try:
        controller = psutil.Process(pid)
    except psutil.NoSuchProcess:  # the directory may be on a shared file system
        raise RLMeshError(
            f"{run}: its run, process {pid}, is not on this machine; look from where it was started"
        ) from None
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
        return _grouped(done.stdout.partition("\n\n")[2])  # without py-spy's own header
    if "ermission" in done.stderr:
        raise RLMeshError(
            "py-spy may not look into other processes here: run this with sudo, or give the container the SYS_PTRACE capability"
        )
    return done.stderr.strip().partition("\n\n")[0]  # of a process that has ended, or is not Python


def _grouped(dump: str) -> str:
    """Threads with the same stack, such as those of a pool, once.

    >>> print(_grouped("Thread 1 (idle)\\n    wait\\nThread 2 (idle)\\n    wait\\nThread 3 (idle)\\n    run\\n"))
    Thread 1 (idle) and 1 more
        wait
    Thread 3 (idle)
        run
    """
    threads: defaultdict[str, list[str]] = defaultdict(list)
    for thread in re.split(r"^(?=Thread )", dump, flags=re.MULTILINE)[1:]:
        title, _, stack = thread.rstrip().partition("\n")
        threads[stack].append(title)
    return "\n".join(
        titles[0] + (f" and {len(titles) - 1} more" if len(titles) > 1 else "") + (f"\n{stack}" if stack else "")
        for stack, titles in threads.items()
    )
