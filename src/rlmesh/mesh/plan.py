"""Which process of which actor runs on which host and GPU: decided from the recipe alone, before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from rlmesh.errors import RecipeError
from rlmesh.mesh.config import ActorPlacement, PlacementConfig


@dataclass(frozen=True)
class ReplicaPlan:
    """One replica: the hosts (numbers in its host mesh) that it spans and, per host, the GPUs of each of its procs."""

    hosts: tuple[int, ...]
    gpus: tuple[tuple[tuple[int, ...], ...], ...]  # [host][proc][gpu]

    @property
    def procs_per_host(self) -> int:
        return len(self.gpus[0])


def plan_placement(placement: PlacementConfig, actors: list[str]) -> dict[str, list[ReplicaPlan]]:
    """Place every replica of the named actors; no GPU is given twice, unless an actor asks to share (`gpus_of`).

    A single replica spreads its procs evenly over all hosts of its mesh; several replicas take the hosts in turn.

    >>> plan = plan_placement(PlacementConfig(), ["policy"])
    >>> plan["policy"][0].hosts
    (0,)

    Raises: RecipeError when the hosts have fewer GPUs than their actors ask for.
    """
    used = {name: [0] * hosts.count for name, hosts in placement.hosts.items()}
    wanted = {actor: getattr(placement.actors, actor) for actor in actors}
    plans = {
        actor: _plan_actor(actor, config, placement, used) for actor, config in wanted.items() if not config.gpus_of
    }
    return plans | {
        actor: _plan_guest(actor, config, wanted, plans) for actor, config in wanted.items() if config.gpus_of
    }


def _plan_actor(
    actor: str, wanted: ActorPlacement, placement: PlacementConfig, used: dict[str, list[int]]
) -> list[ReplicaPlan]:
    if wanted.hosts not in placement.hosts:
        known = ", ".join(placement.hosts)
        raise RecipeError(
            f"placement.actors.{actor}.hosts: there is no host mesh '{wanted.hosts}' in placement.hosts ({known})"
        )
    hosts = placement.hosts[wanted.hosts]
    spread = wanted.replicas == 1 and wanted.procs % hosts.count == 0
    plans = []
    for replica in range(wanted.replicas):
        span = tuple(range(hosts.count)) if spread else (replica % hosts.count,)
        gpus = []
        for host in span:
            procs = []
            for _ in range(wanted.procs // len(span)):
                first = used[wanted.hosts][host]
                used[wanted.hosts][host] = first + wanted.gpus
                if first + wanted.gpus > hosts.gpus:
                    raise RecipeError(
                        f"placement.actors.{actor}.gpus: host {host} of '{wanted.hosts}' would need {first + wanted.gpus} GPUs "
                        f"and has {hosts.gpus} (placement.hosts.{wanted.hosts}.gpus)"
                    )
                procs.append(tuple(range(first, first + wanted.gpus)))
            gpus.append(tuple(procs))
        plans.append(ReplicaPlan(span, tuple(gpus)))
    return plans


def _plan_guest(
    actor: str, guest: ActorPlacement, wanted: dict[str, ActorPlacement], plans: dict[str, list[ReplicaPlan]]
) -> list[ReplicaPlan]:
    """An actor on the GPUs of another one."""
    where, host = f"placement.actors.{actor}.gpus_of", guest.gpus_of
    if host not in plans:
        raise RecipeError(f"{where}: '{host}' is no actor with GPUs of its own; such actors are {', '.join(plans)}")
    if guest.gpus:
        raise RecipeError(f"{where}: it uses the GPUs of '{host}'; leave placement.actors.{actor}.gpus at 0")
    for key in ("hosts", "procs", "replicas"):
        if (own := getattr(guest, key)) != (other := getattr(wanted[host], key)):
            raise RecipeError(f"{where}: placement.actors.{actor}.{key} is {own!r} and that of '{host}' is {other!r}")
    return plans[host]
