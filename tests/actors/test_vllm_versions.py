import asyncio

import pytest

from rlmesh.actors.vllm_versions import Admission


async def admitted(admission, name):
    async with admission.enter(name):
        pass


async def test_tokens_before_and_after_two_updates():
    admission = Admission()
    await admitted(admission, "7")
    async with admission.update(1):
        admission.note({"0_7-ab": 2, "1_7-cd": 0}, 1)  # sample 2 had ended
    async with admission.update(2):
        admission.note({"0_7-ab": 3}, 2)  # sample 1 had ended too
    versions = admission.leave("7")
    assert versions.of(0, 5) == [0, 0, 1, 2, 2]
    assert versions.of(1, 3) == [1, 1, 1]
    assert versions.of(2, 4) == [0, 0, 0, 0]


async def test_a_request_of_one_sample():
    admission = Admission()
    await admitted(admission, "12")
    async with admission.update(5):
        admission.note({"12-ab": 1, "13-cd": 1}, 5)  # 13 is nobody's any more
    assert admission.leave("12").of(0, 3) == [0, 5, 5]


async def test_a_request_that_comes_during_an_update_begins_with_the_new_version():
    admission = Admission()
    async with admission.update(1):
        waiting = asyncio.create_task(admitted(admission, "1"))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting
    assert admission.leave("1").of(0, 1) == [1]


async def test_an_update_waits_for_requests_that_are_entering():
    admission, entered = Admission(), asyncio.Event()

    async def enter():
        async with admission.enter("1"):
            await entered.wait()

    async def update():
        async with admission.update(1):
            return admission._entering

    entering = asyncio.create_task(enter())
    await asyncio.sleep(0)
    updating = asyncio.create_task(update())
    await asyncio.sleep(0.01)
    assert not updating.done()
    entered.set()
    await entering
    assert await updating == 0


async def test_an_update_that_fails_changes_no_version_and_lets_requests_in():
    admission = Admission()
    with pytest.raises(RuntimeError):
        async with admission.update(1):
            raise RuntimeError
    await admitted(admission, "1")
    assert admission.leave("1").of(0, 1) == [0]


async def test_a_request_that_could_not_enter_leaves_nothing():
    admission = Admission()
    with pytest.raises(RuntimeError):
        async with admission.enter("1"):
            raise RuntimeError
    assert admission._requests == {}
