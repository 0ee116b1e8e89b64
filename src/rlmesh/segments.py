"""Names in shared memory: each says whose it is, so that what a killed run left can be found and removed."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

SEGMENTS = Path("/dev/shm")
# Set by a run in its own environment, which its processes inherit: how the names of all its segments begin.
PREFIX_VARIABLE = "RLMESH_SEGMENTS"


def own_prefix() -> str:
    """How the names of this run's segments begin. A process number means something in its own namespace only."""
    return os.environ.get(PREFIX_VARIABLE) or new_prefix()


def new_prefix() -> str:
    """How the names of a run's segments begin that this process controls, also when another run started this process."""
    return f"rlmesh-{_namespace()}-{os.getpid()}-"


def own_segment() -> Path:
    """A new segment of this run's own."""
    return SEGMENTS / f"{own_prefix()}{uuid.uuid4().hex}"


def sweep_segments() -> None:
    """Remove what runs that were killed left in shared memory."""
    for path in SEGMENTS.glob(f"rlmesh-{_namespace()}-*"):
        if not Path(f"/proc/{path.name.split('-')[2]}").exists():
            with suppress(PermissionError):  # another user's, on a machine that is shared
                path.unlink(missing_ok=True)


def _namespace() -> int:
    """The process namespace, which containers that share /dev/shm do not share."""
    return Path("/proc/self/ns/pid").stat().st_ino
