"""Calls over replicas that die and are replaced."""

import asyncio
import os
import signal

import pytest
from places import Place
from spawning import spawn_proc

from rlmesh.actors.service import Replica, Service
from rlmesh.errors import ActorDied
from rlmesh.mesh.supervision import Supervision


@pytest.fixture
async def places():
    """Spawns replicas, whose deaths end nothing."""
    procs = []
    with Supervision():

        def spawn(name: str) -> Replica:
            procs.append(spawn_proc(name))
            return Replica(procs[-1].spawn(name, Place), name, f"{name}_{len(procs)}")

        yield spawn
        for proc in procs:
            try:
                await proc.stop()
            except Exception as error:  # the ones that the test killed
                assert "process" in str(error) or "proc" in str(error)


@pytest.mark.slow  # Monarch takes 10 s to tell of a death
async def test_calls_go_to_the_replicas_that_live(places):
    service = Service("Place", [places("a"), places("b")], limit_s=20)
    first, second = await service.each("pid")
    os.kill(first, signal.SIGKILL)
    assert [await service.pid() for _ in range(3)] == [second] * 3
    with pytest.raises(ActorDied, match=r"Place\[0\].pid: the process of Place\[0\] died") as death:
        await service.each("pid")
    assert (death.value.actor, death.value.spawned) == ("a", "a_1")


async def test_a_sticky_handle_stays_with_one_replica_and_the_others_get_the_rest(places):
    service = Service("Place", [places("a"), places("b")], limit_s=20)
    first, second = service.sticky(), service.sticky()
    both = await asyncio.gather(first.pid(), second.pid())
    assert len(set(both)) == 2
    later = await asyncio.gather(*[handle.pid() for handle in (first, second) for _ in range(3)])
    assert later == [both[0]] * 3 + [both[1]] * 3
    service.replace(0, places("c"))
    assert await second.pid() == both[1]
    moved = await first.pid()
    assert moved != both[0] and [await first.pid() for _ in range(3)] == [moved] * 3


@pytest.mark.slow  # Monarch takes 10 s to tell of a death
async def test_a_call_waits_for_the_replacement_and_is_made_again(places):
    deaths = []

    class Replacing:
        async def after(self, death: ActorDied) -> None:
            deaths.append(death.actor)
            service.replace(0, places("a"))

    service = Service("Place", [places("a")], limit_s=20, replacing=Replacing())
    before = await service.pid()
    os.kill(before, signal.SIGKILL)
    after = await service.pid()
    assert after != before and await service.each("pid") == [after] and deaths == ["a"]


@pytest.mark.slow  # Monarch takes 10 s to tell of a death
async def test_the_death_of_what_a_replica_needs_is_told_as_that(places):
    needed, needs = Service("Needed", [places("a")], limit_s=20), Service("Needs", [places("b")], limit_s=20)
    os.kill(await needed.pid(), signal.SIGKILL)
    with pytest.raises(ActorDied, match=r"Needs\[0\].pid_of failed: Needed\[0\].pid: the process .* died") as death:
        await needs.pid_of(needed)
    assert (death.value.actor, death.value.spawned) == ("a", "a_1")
    assert await needs.pid()  # it lives on
