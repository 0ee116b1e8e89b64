"""A run's own place for temporary files and shared memory, which goes when the run does."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from rlmesh.segments import PREFIX_VARIABLE, SEGMENTS, own_prefix

# Outlives a run that is killed: its input ends when the run does. Processes of the run that are still dying may write
# something after the first time.
_REAPER = 'cat >/dev/null; for wait in 0 3 7; do sleep $wait; rm -rf -- "$1" "$2"*; done'

# vLLM makes sockets with names of 36 characters there, and the path of a socket has at most 107.
_LONGEST_FOLDER = 50


class Scratch:
    """While it is entered, the temporary files and the shared memory of this process and all that it starts have a place.

    Invariants: at its exit what was started and still runs is killed, and the place is removed; however this process ends,
    also by SIGKILL, the place is gone within 15 s.

    >>> with Scratch():                                           # doctest: +SKIP
    ...     start_processes()
    """

    def __enter__(self) -> Scratch:
        self._before = {name: os.environ.get(name) for name in ("TMPDIR", PREFIX_VARIABLE)}
        self._prefix = own_prefix()
        roomy = len(tempfile.gettempdir()) <= _LONGEST_FOLDER
        self._folder = Path(tempfile.mkdtemp(prefix="rlmesh-", dir=None if roomy else "/tmp"))
        shell = ["/bin/sh", "-c", _REAPER, "rlmesh-reaper", str(self._folder), str(SEGMENTS / self._prefix)]
        # A session of its own: Ctrl-C must not end it.
        self._reaper = subprocess.Popen(shell, stdin=subprocess.PIPE, start_new_session=True)
        self._set_environment({"TMPDIR": str(self._folder), PREFIX_VARIABLE: self._prefix})
        return self

    def __exit__(self, *error) -> None:
        self._kill()
        self._set_environment(self._before)
        shutil.rmtree(self._folder, ignore_errors=True)
        for path in SEGMENTS.glob(f"{self._prefix}*"):
            path.unlink(missing_ok=True)
        self._reaper.kill()
        self._reaper.wait()
        self._reaper.stdin.close()

    def _kill(self) -> None:
        children = [child for child in psutil.Process().children() if self._is_ours(child)]
        left = [process for child in children for process in _family(child)]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=3)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(PREFIX_VARIABLE) == self._prefix
        except psutil.Error:
            return False

    @staticmethod
    def _set_environment(values: dict[str, str | None]) -> None:
        for name, value in values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        tempfile.tempdir = None  # it is worked out once, from the environment


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
