"""A run's own place for temporary files and shared memory, which goes when the run does."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from rlmesh.segments import PREFIX_VARIABLE, SEGMENTS, new_prefix

# Outlives the process: its input ends when that does. It kills what still has the run's mark (Monarch may be starting a process just
# then, a reward may have started one) and removes the rest, until there has been nothing of both for three times.
_REAPER = """
cat >/dev/null
clean=0
for second in 1 2 3 4 5 6 7 8 9 10 11 12; do
    found=
    for marked in $(grep -slF "$3" /proc/[0-9]*/environ); do
        found=yes process=${marked%/environ}
        # Python's resource tracker ends by itself and removes semaphores before.
        [ $second -lt 4 ] && grep -q resource_tracker "$process/cmdline" && continue
        kill -9 "${process#/proc/}"
    done
    [ -e "$1" ] && found=yes
    rm -rf -- "$1" "$2"*
    if [ $found ]; then clean=0; else clean=$((clean + 1)); fi
    [ $clean -eq 3 ] && exit
    sleep 1
done
"""

# vLLM makes sockets with names of 36 characters there, and the path of a socket has at most 107.
_LONGEST_FOLDER = 50
_KILL_LIMIT_S = 3.0
_RESOURCE_TRACKER = "multiprocessing.resource_tracker"
_MONARCH = ".tmp"  # how the names of its folders begin


class Scratch:
    """While it is entered, the temporary files and the shared memory of this process and all that it starts have a place.

    Invariants: at its exit what was started and still runs is killed, and what is in the place is removed, but for what
    Monarch's host in this process keeps open; however this process ends, also by SIGKILL, the place is gone within 15 s.

    >>> with Scratch():                                           # doctest: +SKIP
    ...     start_processes()
    """

    def __enter__(self) -> Scratch:
        self._before = {name: os.environ.get(name) for name in ("TMPDIR", PREFIX_VARIABLE, "SPT_NOENV")}
        self._prefix, self._folder = new_prefix(), _place_of_this_process().folder
        # A process that gives itself a title must not write it over its environment, which has the mark.
        self._set_environment({"TMPDIR": str(self._folder), PREFIX_VARIABLE: self._prefix, "SPT_NOENV": "1"})
        return self

    def __exit__(self, *error) -> None:
        self._kill()
        self._set_environment(self._before)
        for path in self._folder.iterdir():
            if path.name.startswith(_MONARCH):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for path in SEGMENTS.glob(f"{self._prefix}*"):
            path.unlink(missing_ok=True)

    def _kill(self) -> None:
        """Kill what was started here; again, for one that was just starting another when it was looked at."""
        deadline = time.monotonic() + _KILL_LIMIT_S
        while left := self._running():
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    # It removes the semaphores of those that used it, and ends with the last of them.
                    if _RESOURCE_TRACKER not in " ".join(process.cmdline()) or time.monotonic() > deadline:
                        process.kill()
            psutil.wait_procs(left, timeout=1)
            # Only now: on a machine under load the first look alone may take that long.
            if time.monotonic() > deadline:
                return

    def _running(self) -> list[psutil.Process]:
        """What has this run's mark in its environment, whoever its parent is by now, and all below it."""
        everyone = {process.pid: process for process in psutil.process_iter(["ppid"])}
        found, new = set(), {pid for pid, process in everyone.items() if self._is_ours(process)}
        while new:
            found |= new
            new = {pid for pid, process in everyone.items() if process.info["ppid"] in new} - found
        return [everyone[pid] for pid in found]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.pid != os.getpid() and process.environ().get(PREFIX_VARIABLE) == self._prefix
        except psutil.Error:
            return False

    @staticmethod
    def _set_environment(values: dict[str, str | None]) -> None:
        for name, value in values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        tempfile.tempdir = None  # it is worked out once, from the environment


@dataclass(frozen=True)
class _Place:
    """A folder, and the process that removes it when this one has ended."""

    folder: Path
    reaper: subprocess.Popen  # holds its input open


@functools.cache
def _place_of_this_process() -> _Place:
    """Made once: Monarch's host keeps its sockets there for as long as this process lives."""
    roomy = len(tempfile.gettempdir()) <= _LONGEST_FOLDER
    folder = Path(tempfile.mkdtemp(prefix="rlmesh-", dir=None if roomy else "/tmp"))
    prefix = new_prefix()
    arguments = [str(folder), str(SEGMENTS / prefix), f"{PREFIX_VARIABLE}={prefix}"]
    shell = ["/bin/sh", "-c", _REAPER, "rlmesh-reaper", *arguments]
    atexit.register(leave)
    # A session of its own: Ctrl-C must not end it. No output: who reads this process's must see its end.
    output = subprocess.DEVNULL
    return _Place(
        folder, subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)
    )


def leave() -> None:
    """At the end of this process: remove its place now; the reaper makes sure, and ends some seconds later."""
    if _place_of_this_process.cache_info().currsize:
        place = _place_of_this_process()
        shutil.rmtree(place.folder, ignore_errors=True)
        place.reaper.stdin.close()
        _place_of_this_process.cache_clear()
