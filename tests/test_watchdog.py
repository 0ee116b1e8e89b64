"""Who waits for whom for too long is named, once."""

import asyncio

from rlmesh.watchdog import Watchdog


async def said_while(limit_s: float, details, block) -> list[str]:
    said = []
    watchdog = Watchdog(limit_s, said.append, details)
    watching = asyncio.create_task(watchdog.watch())
    await block(watchdog)
    watching.cancel()
    return said


async def waits(watchdog: Watchdog) -> None:
    with watchdog.waiting("step 3: the trainer waits for groups"):
        await asyncio.sleep(3.5)


async def episodes() -> str:
    return "of the episodes wait 2 for the policy server"


async def test_a_long_wait_is_named_once_with_its_reason():
    [line] = await said_while(1.0, episodes, waits)
    assert line.startswith("step 3: the trainer waits for groups, for ")
    assert line.endswith(" s already; of the episodes wait 2 for the policy server")


async def test_short_waits_are_not_named():
    assert await said_while(60.0, episodes, waits) == []


async def test_who_does_not_say_why_cannot_keep_it_from_being_said():
    async def silent() -> str:
        await asyncio.Event().wait()

    [line] = await said_while(1.0, silent, waits)
    assert line.endswith("who is waited for does not say why (no answer)")


async def test_a_wait_that_ends_while_another_is_looked_into_is_no_error():
    said, ended = [], asyncio.Event()

    async def details() -> str:
        ended.set()
        await asyncio.sleep(0.3)
        return "nothing"

    watchdog = Watchdog(0.5, said.append, details)
    watching = asyncio.create_task(watchdog.watch())
    with watchdog.waiting("first"):
        with watchdog.waiting("second"):
            await ended.wait()
        await asyncio.sleep(1.0)
    assert not watching.done() and [line.partition(",")[0] for line in said] == ["first", "second"]
    watching.cancel()
