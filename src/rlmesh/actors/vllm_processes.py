"""vLLM's own processes: started from one that has imported vLLM already, and never outliving the actor.

Importing vLLM takes 6 s, and it happens in three processes one after the other: the actor's, the engine core's and the
worker's. A fork server imports it while the actor does, and the other two are forked from it. A fork of the actor itself
would hang: Monarch has threads there. The fork server has none.

Importing this module is what does it: the fork server preloads it (see `PolicyServer.setup`), and so does the actor, before
anything else of vLLM.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from importlib import import_module

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Ask Linux for SIGKILL when the parent dies: an engine whose actor was killed would otherwise run on for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _context() -> multiprocessing.context.BaseContext:
    """How vLLM starts a process: the actor asks the fork server, and the engine core, itself forked from it, forks."""
    return multiprocessing.get_context("forkserver" if multiprocessing.parent_process() is None else "fork")


os.register_at_fork(after_in_child=_die_with_parent)

# vLLM offers `fork` and `spawn` only; its modules take this function by name, so it is replaced before they are imported.
import_module("vllm.utils.system_utils").get_mp_context = _context

# Only to have them imported once.
for _module in (
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.cpu_worker",
):
    import_module(_module)
