"""Sessions over a real OpenEnv server: a normal episode, and every way in which a server fails."""

import asyncio
import os
import signal
import sys

import pytest
from websockets.asyncio.server import serve

from rlmesh.envs.config import EnvConfig
from rlmesh.envs.pool import EnvFailure, EnvPool
from rlmesh.envs.server import EnvServer
from rlmesh.errors import ActorFailure
from rlmesh.rollout.types import Outcome

HIT_OR_STAND = {"seed": 1, "deal_seed": 11}  # 10 against 5: no first card ends this game


@pytest.fixture(scope="module")
async def server(tmp_path_factory):
    server = EnvServer(EnvConfig(), tmp_path_factory.mktemp("env") / "env.log")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def own_server(tmp_path):
    """A server that a test may break."""
    server = EnvServer(EnvConfig(step_timeout_s=6.0), tmp_path / "env.log")
    await server.start()
    yield server
    await server.stop()


async def test_episode(server):
    async with EnvPool(server.url, EnvConfig()) as pool, pool.lease() as session:
        first = await session.reset(**HIT_OR_STAND)
        assert (first.step, first.done, first.reward) == (0, False, 0.0)
        assert first.observation.endswith("Hit or stand?")
        second = await session.step("hit")
        assert (second.episode_id, second.step, second.done) == (first.episode_id, 1, False)
        last = await session.step("**Answer:** stand")
        assert last.done and last.step == 2 and last.reward in (-1.0, 0.0, 1.0)
        assert last.metadata["regret"] >= 0


async def test_invalid_answer_is_scored(server):
    async with EnvPool(server.url, EnvConfig()) as pool, pool.lease() as session:
        await session.reset(**HIT_OR_STAND)
        last = await session.step("I would hit")
        assert last.done and last.reward == -1.0 and last.metadata["invalid_action"]


async def test_deal_seed_fixes_what_is_seen(server):
    async with EnvPool(server.url, EnvConfig()) as pool:

        async def first(seed):
            async with pool.lease() as session:
                return (await session.reset(seed=seed, deal_seed=11)).observation

        assert len(set(await asyncio.gather(*(first(seed) for seed in range(20))))) == 1


@pytest.mark.parametrize("call", ["unknown argument", "unknown rules", "step after the end"])
async def test_refusals_name_the_cause_and_keep_the_session(server, call):
    async with EnvPool(server.url, EnvConfig()) as pool:
        async with pool.lease() as session:
            with pytest.raises(
                EnvFailure, match={"step after the end": "over"}.get(call, "decks|rules 'x'")
            ) as failure:
                if call == "unknown argument":
                    await session.reset(decks=2)
                elif call == "unknown rules":
                    await session.reset(rules="x")
                else:
                    await session.reset(seed=1)
                    await session.step("stand")
                    await session.step("stand")
            assert failure.value.outcome is Outcome.ENV_ERROR
        async with pool.lease() as again:
            assert again is session
            assert (await again.reset(seed=2)).step == 0


async def test_sessions_are_reused_and_leases_wait_for_a_slot(server):
    running, most = 0, 0
    async with EnvPool(server.url, EnvConfig(sessions=3)) as pool:

        async def episode(seed):
            nonlocal running, most
            async with pool.lease() as session:
                running += 1
                most = max(most, running)
                await session.reset(seed=seed)
                await session.step("stand")
                running -= 1

        await asyncio.gather(*(episode(seed) for seed in range(30)))
        assert most == 3 and len(pool._idle) == 3


async def test_killed_server_loses_the_episode_and_comes_back(own_server):
    async with EnvPool(own_server.url, EnvConfig()) as pool:
        async with pool.lease() as idle, pool.lease() as session:
            await idle.reset(seed=1)
            await session.reset(**HIT_OR_STAND)
            os.kill(own_server.pid, signal.SIGKILL)
            with pytest.raises(EnvFailure) as failure:
                await session.step("hit")
            assert failure.value.outcome is Outcome.ENV_LOST
            # Nothing brings the episode back, and no other game takes its place.
            with pytest.raises(EnvFailure) as failure:
                await session.step("hit")
            assert failure.value.outcome is Outcome.ENV_LOST
        await restarted(own_server)
        async with pool.lease() as session:
            assert not (await session.reset(**HIT_OR_STAND)).done


async def test_hung_server_is_a_timeout_and_is_replaced(own_server):
    async with EnvPool(own_server.url, EnvConfig(step_timeout_s=1.5)) as pool:
        async with pool.lease() as session:
            await session.reset(**HIT_OR_STAND)
            os.kill(own_server.pid, signal.SIGSTOP)
            with pytest.raises(EnvFailure) as failure:
                await session.step("hit")
            assert failure.value.outcome is Outcome.TIMEOUT
        async with pool.lease() as session:  # the connection itself is answered by nobody
            with pytest.raises(EnvFailure) as failure:
                await session.reset(seed=1)
            assert failure.value.outcome is Outcome.TIMEOUT
    await restarted(own_server)
    async with EnvPool(own_server.url, EnvConfig()) as pool, pool.lease() as session:
        assert not (await session.reset(**HIT_OR_STAND)).done


async def test_cancelled_step_is_not_read_by_the_next_episode(server):
    async with EnvPool(server.url, EnvConfig(sessions=1)) as pool:
        async with pool.lease() as session:
            await session.reset(**HIT_OR_STAND)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await session.step("hit")
        async with pool.lease() as again:
            assert again is not session
            assert (await again.reset(seed=5)).step == 0


@pytest.fixture
async def small_server(tmp_path, monkeypatch):
    """A server with room for one session."""
    monkeypatch.setenv("MAX_CONCURRENT_ENVS", "1")
    server = EnvServer(EnvConfig(), tmp_path / "env.log")
    await server.start()
    yield server
    await server.stop()


async def test_server_at_capacity_is_waited_for(small_server):
    impatient, pool = (EnvPool(small_server.url, EnvConfig(step_timeout_s=limit_s)) for limit_s in (2.0, 30.0))
    async with pool.lease() as held:
        await held.reset(seed=1)
        async with impatient.lease() as session:
            with pytest.raises(EnvFailure, match="no free session") as failure:
                await session.reset(seed=2)
            assert failure.value.outcome is Outcome.CAPACITY
        async with pool.lease() as session:
            waiting = asyncio.create_task(session.reset(seed=2))
            await asyncio.sleep(0.2)
            await held.close()
            assert (await waiting).step == 0


async def restarted(server):
    async with asyncio.timeout(60):
        while not server.restarts:
            await asyncio.sleep(0.05)


async def test_answers_of_another_episode_are_env_lost(server):
    """What OpenEnv's own client does in silence after a dropped socket: go on in another session."""
    async with EnvPool(server.url, EnvConfig()) as pool, pool.lease() as mine, pool.lease() as other:
        await mine.reset(**HIT_OR_STAND)
        await other.reset(**HIT_OR_STAND)
        mine._connection, other._connection = other._connection, mine._connection
        with pytest.raises(EnvFailure) as failure:
            await mine.step("hit")
        assert failure.value.outcome is Outcome.ENV_LOST and not mine.reusable


async def test_server_that_cannot_start_says_why(tmp_path):
    server = EnvServer(EnvConfig(app="no_such_package.app:app"), tmp_path / "env.log")
    with pytest.raises(ActorFailure, match=r"no_such_package(.|\n)*at start(.|\n)*No module named"):
        await server.start()
    await server.stop()


async def test_stop_leaves_no_process_and_frees_the_port(tmp_path):
    server = EnvServer(EnvConfig(), tmp_path / "env.log")
    await server.start()
    pid = server.pid
    async with EnvPool(server.url, EnvConfig()) as pool, pool.lease() as session:
        await session.reset(seed=1)
        await server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(EnvFailure) as failure:
        async with EnvPool(server.url, EnvConfig()) as pool, pool.lease() as session:
            await session.reset(seed=1)
    assert failure.value.outcome is Outcome.ENV_LOST


_PARENT = """
import asyncio, os, signal, sys
from pathlib import Path
from rlmesh.envs.config import EnvConfig
from rlmesh.envs.server import EnvServer

async def main():
    server = EnvServer(EnvConfig(), Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_server_dies_with_its_parent(tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PARENT, str(tmp_path / "env.log"), stdout=asyncio.subprocess.PIPE
    )
    pid = int(await process.stdout.readline())
    await process.wait()
    async with asyncio.timeout(5):
        while _runs(pid):
            await asyncio.sleep(0.02)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class _Says:
    """A server that answers every request with the same words."""

    def __init__(self, words: str):
        self._words = words

    async def __call__(self, connection):
        async for _ in connection:
            await connection.send(self._words)


@pytest.mark.parametrize(
    "words, complaint",
    [
        ("no JSON", "answered a reset with something else than an observation: b'no JSON'"),
        ("[1, 2]", "something else than an observation"),
        ('{"type": "observation", "data": null}', "something else than an observation"),
        (
            '{"type": "observation", "data": {"observation": {"text": 5}, "reward": 0, "done": false, "metadata": '
            '{"episode_id": "a", "step": 0}}}',
            "answered a reset with observation = 5, which is no str",
        ),
        (
            '{"type": "observation", "data": {"observation": {"text": ""}, "reward": "much", "done": false, "metadata": '
            '{"episode_id": "a", "step": 0}}}',
            "could not convert string to float: 'much'",
        ),
        (
            '{"type": "observation", "data": {"observation": {"text": ""}, "reward": "nan", "done": false, "metadata": '
            '{"episode_id": "a", "step": 0}}}',
            "with a reward of nan",
        ),
        ('{"type": "observation", "data": {"observation": {}, "reward": 0}}', "its observations lack 'text'"),
    ],
)
async def test_words_that_are_no_observation_are_the_environments_failure(words, complaint):
    async with serve(_Says(words), "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with EnvPool(url, EnvConfig()) as pool, pool.lease() as session:
            with pytest.raises(EnvFailure) as failure:
                await session.reset()
            assert failure.value.outcome is Outcome.ENV_ERROR and complaint in str(failure.value)
