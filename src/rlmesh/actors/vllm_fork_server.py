"""What the fork server of a PolicyServer's process imports at its start; vLLM's engine core is forked from it.

Importing vLLM takes 6 s, and it would happen in the actor and then again in the engine core (and in the workers, which on GPUs are
processes of their own). The fork server imports it while the actor does. A fork of the actor itself would hang: Monarch has
threads there. The fork server has none.

None of them outlives the actor. They would: an engine core holds the pipe whose end tells the fork server to stop.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from importlib import import_module

import rlmesh.actors.vllm_processes  # noqa: F401  before anything of vLLM

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Ask Linux for SIGKILL when the parent dies: an engine whose actor was killed would otherwise run on for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# The fork server dies with the actor, the engine core with the fork server, a worker with the engine core.
_die_with_parent()
os.register_at_fork(after_in_child=_die_with_parent)

for _module in (
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.cpu_worker",
):
    import_module(_module)

import torch  # noqa: E402  what is above makes these cheap
from vllm.v1.engine.core import EngineCore  # noqa: E402

# Linux has to allow a process the tiles of newer CPUs before it uses them; vLLM's attention in bfloat16 does, and asks nobody.
torch.cpu._init_amx()


def _output_counts(core: EngineCore) -> dict[str, int]:
    """How many tokens each request that has not ended has by now; vLLM itself tells nobody."""
    return {name: request.num_output_tokens for name, request in core.scheduler.requests.items()}


EngineCore.output_counts = _output_counts  # what a client of the engine core can call
