"""Procs for the tests' actors; as a program, a policy server for a test to kill: `python -m spawning MODEL_FOLDER`."""

import asyncio
import json
import os
import sys

import psutil
from monarch.actor import ProcMesh, default_bootstrap_cmd, this_host

IMPORTABLE = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


def spawn_proc(name: str, env: dict[str, str] | None = None) -> ProcMesh:
    command = default_bootstrap_cmd().with_env({**IMPORTABLE, **(env or {})})
    return this_host().spawn_procs({"procs": 1}, name=name, bootstrap_command=command)


def engine_processes() -> list[psutil.Process]:
    """vLLM's processes below this one."""
    return [p for p in psutil.Process().children(recursive=True) if p.name().startswith("VLLM::")]


async def _serve(model_path: str) -> None:
    from rlmesh.actors.config import PolicyServerConfig
    from rlmesh.actors.launch import policy_environment
    from rlmesh.actors.policy_server import PolicyServer

    config = PolicyServerConfig()
    procs = spawn_proc("policy", policy_environment(config))
    policy = procs.spawn("policy", PolicyServer, config, model_path, 64, 1.0)
    await policy.setup.call_one()
    actor = next(p for p in engine_processes()[0].parents() if "bootstrap_main" in " ".join(p.cmdline()))
    print(json.dumps({"actor": actor.pid, "family": [p.pid for p in actor.children(recursive=True)]}), flush=True)
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
