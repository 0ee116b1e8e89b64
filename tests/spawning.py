"""Procs for the tests' actors; as a program, a policy server for a test to kill: `python -m spawning MODEL_FOLDER`."""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from monarch.actor import ProcMesh, default_bootstrap_cmd, this_host

from rlmesh.actors.config import EngineConfig, PolicyServerConfig
from rlmesh.actors.launch import policy_environment
from rlmesh.actors.policy_server import PolicyServer
from rlmesh.actors.service import Replica, Service
from rlmesh.weights.config import WeightsConfig
from rlmesh.weights.store import WeightStore

MAX_LENGTH = 64

IMPORTABLE = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


def spawn_proc(name: str, env: dict[str, str] | None = None) -> ProcMesh:
    command = default_bootstrap_cmd().with_env({**IMPORTABLE, **(env or {})})
    return this_host().spawn_procs({"procs": 1}, name=name, bootstrap_command=command)


def engine_processes() -> list[psutil.Process]:
    """vLLM's processes below this one."""
    return [p for p in psutil.Process().children(recursive=True) if p.name().startswith("VLLM::")]


@dataclass
class ServedPolicy:
    service: Service
    store: WeightStore
    model_path: Path
    temperature: float
    ends: set[int]  # tokens that end a sequence
    versions: Iterator[int]
    procs: ProcMesh


async def serve_policy(
    model_path: Path, temperature: float, ends: set[int], weights: WeightsConfig, engine: EngineConfig, sleep: bool
):
    config = PolicyServerConfig(engine=engine, sleep=sleep)
    procs = spawn_proc("policy", policy_environment(config))
    actor = procs.spawn("policy", PolicyServer, config, str(model_path), MAX_LENGTH, temperature, weights.pause)
    service, store = Service("PolicyServer", [Replica(actor)], limit_s=120), await WeightStore.start(weights)
    await service.setup(store)
    yield ServedPolicy(service, store, model_path, temperature, ends, itertools.count(), procs)
    before = len(engine_processes())
    await service.close()
    assert len(engine_processes()) == before - 1  # the engine core is gone
    await store.stop()
    await procs.stop()


async def _serve(model_path: str) -> None:
    config = PolicyServerConfig()
    procs = spawn_proc("policy", policy_environment(config))
    policy = procs.spawn("policy", PolicyServer, config, model_path, 64, 1.0)
    await policy.setup.call_one()
    actor = next(p for p in engine_processes()[0].parents() if "bootstrap_main" in " ".join(p.cmdline()))
    print(json.dumps({"actor": actor.pid, "family": [p.pid for p in actor.children(recursive=True)]}), flush=True)
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
