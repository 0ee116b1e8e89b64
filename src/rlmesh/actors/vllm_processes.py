"""How vLLM starts its processes in a PolicyServer; import this before anything else of vLLM.

The actor asks its fork server (`vllm_fork_server`) for the engine core, and the engine core forks its workers, if it has some.
"""

from __future__ import annotations

import multiprocessing
from importlib import import_module
from multiprocessing import shared_memory

from rlmesh.segments import own_segment


def _context() -> multiprocessing.context.BaseContext:
    return multiprocessing.get_context("forkserver" if multiprocessing.parent_process() is None else "fork")


def _segment_name() -> str:
    return f"/{own_segment().name}"


# vLLM passes messages through shared memory; by the names of its own, what a killed engine leaves would be nobody's.
shared_memory._make_filename = _segment_name
# vLLM offers `fork` and `spawn` only; its modules take this function by name, so it is replaced before they are imported.
import_module("vllm.utils.system_utils").get_mp_context = _context
