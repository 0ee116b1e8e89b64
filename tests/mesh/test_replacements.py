"""Who is replaced after which death, and how often."""

import asyncio

import pytest

from rlmesh.errors import ActorDied
from rlmesh.mesh.replacements import Replacements


class World:
    """Spawns what it is asked for, once it may."""

    def __init__(self):
        self.spawned, self.may, self.failed, self.heard = 0, asyncio.Event(), [], []

    async def replace(self, actor: str) -> str:
        await self.may.wait()
        self.spawned += 1
        return f"{actor}_life{self.spawned}"

    def on_death(self, death):
        self.heard.append(("died", death.actor))

    def on_replaced(self, actor, seconds):
        assert seconds >= 0
        self.heard.append(("replaced", actor))


def death(actor: str, life: int) -> ActorDied:
    return ActorDied("it died", actor, f"{actor}_life{life}")


def replacing(world: World, limit: int = 3) -> Replacements:
    replacements = Replacements(world.replace, limit, world.failed.append, world)
    replacements.watch("reward_0", "reward_0_life0")
    return replacements


async def test_one_death_is_one_replacement_however_often_it_is_met():
    world = World()
    replacements = replacing(world)
    calls = [asyncio.ensure_future(replacements.after(death("reward_0", 0))) for _ in range(5)]
    assert replacements.take_on(death("reward_0", 0))
    await asyncio.sleep(0)
    assert not any(call.done() for call in calls)
    world.may.set()
    await asyncio.gather(*calls)
    await replacements.after(death("reward_0", 0))  # the last to hear of it
    assert world.spawned == 1 and world.heard == [("died", "reward_0"), ("replaced", "reward_0")] and not world.failed


async def test_who_is_not_watched_is_not_replaced():
    replacements = replacing(World())
    assert not replacements.take_on(death("trainer_0", 0))
    with pytest.raises(ActorDied, match="it died"):
        await replacements.after(death("trainer_0", 0))


async def test_what_keeps_dying_is_given_up_until_it_is_forgiven():
    world = World()
    world.may.set()
    replacements = replacing(world, limit=2)
    await replacements.after(death("reward_0", 0))
    await replacements.after(death("reward_0", 1))
    assert not replacements.take_on(death("reward_0", 2))
    replacements.forgive()
    await replacements.after(death("reward_0", 2))
    assert world.spawned == 3


async def test_a_replacement_that_fails_is_told_to_everyone():
    world = World()

    async def replace(actor: str) -> str:
        raise OSError("no memory")

    replacements = Replacements(replace, 3, world.failed.append)
    replacements.watch("reward_0", "reward_0_life0")
    with pytest.raises(ActorDied, match="it died"):
        await replacements.after(death("reward_0", 0))
    assert [str(failure) for failure in world.failed] == ["it died; it could not be replaced: no memory"]


async def test_one_that_fails_after_all_was_forgiven_gives_no_try_more():
    world, begun = World(), asyncio.Event()

    async def replace(actor: str) -> str:
        begun.set()
        await world.may.wait()
        raise OSError("no memory")

    replacements = Replacements(replace, 3, world.failed.append)
    replacements.watch("reward_0", "reward_0_life0")
    assert replacements.take_on(death("reward_0", 0))
    await begun.wait()
    replacements.forgive()
    world.may.set()
    with pytest.raises(ActorDied):
        await replacements.after(death("reward_0", 0))
    assert replacements.counts["reward_0"] == 0


async def test_nothing_is_replaced_after_the_end():
    world = World()
    replacements = replacing(world)
    call = asyncio.ensure_future(replacements.after(death("reward_0", 0)))
    await asyncio.sleep(0)
    await replacements.stop()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not replacements.take_on(death("reward_0", 0)) and world.spawned == 0


async def test_the_death_of_the_new_one_while_it_is_being_set_up_is_not_lost():
    world = World()
    replacements = replacing(world)
    call = asyncio.ensure_future(replacements.after(death("reward_0", 0)))
    await asyncio.sleep(0)
    assert replacements.take_on(death("reward_0", 1))
    world.may.set()
    await call
    await replacements.after(death("reward_0", 1))
    assert world.spawned == 2


async def test_a_listener_that_fails_leaves_nobody_waiting():
    class Full(World):
        def on_death(self, death):
            raise OSError("disk full")

    world = Full()
    with pytest.raises(ActorDied, match="it died"):
        await replacing(world).after(death("reward_0", 0))
    assert [str(failure) for failure in world.failed] == ["it died; it could not be replaced: disk full"]
