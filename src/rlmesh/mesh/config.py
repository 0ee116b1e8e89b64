"""Options of the placement. No heavy imports here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict

from rlmesh.schema import option

_MANY = 4096  # a slip of the finger above this


@dataclass
class HostsConfig:
    """One host mesh: machines of a kind."""

    count: int = option(1, "machines", ge=1, le=_MANY)
    gpus: int = option(0, "GPUs of each machine", ge=0, le=_MANY)


@dataclass
class ActorPlacement:
    """Where one kind of actor runs."""

    hosts: str = option("local", "name of the host mesh")
    replicas: int = option(1, "copies of the actor that share the work", ge=1, le=_MANY)
    procs: int = option(1, "processes of one replica", ge=1, le=_MANY)
    gpus: int = option(0, "GPUs of one process", ge=0, le=_MANY)
    gpus_of: str = option("", "name of the actor whose GPUs it uses, instead of `gpus` of its own (see policy.sleep)")
    threads: int = option(1, "threads of one process (OMP_NUM_THREADS)", ge=1, le=_MANY)


def _placed(**defaults):
    return field(default_factory=lambda: ActorPlacement(**defaults))


@dataclass
class ActorsConfig:
    """Where each actor runs."""

    policy: ActorPlacement = _placed()
    trainer: ActorPlacement = _placed()
    ref_model: ActorPlacement = _placed()
    replay_buffer: ActorPlacement = _placed()
    reward: ActorPlacement = _placed()
    rollout: ActorPlacement = _placed()
    env: ActorPlacement = _placed()


@dataclass
class PlacementConfig:
    """The Monarch job, its host meshes, and what runs where."""

    job: str = option(
        "local",
        "`local` (this machine) or `process` (each host of the recipe is a process of this machine)",
        choices=("local", "process"),
    )
    hosts: Dict[str, HostsConfig] = field(default_factory=lambda: {"local": HostsConfig()})
    actors: ActorsConfig = field(default_factory=ActorsConfig)
