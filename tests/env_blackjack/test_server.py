"""The server as OpenEnv sees it: its validator passes, and its own client plays an episode."""

import subprocess
import sys
from pathlib import Path

import pytest
from openenv.core import GenericEnvClient

from rlmesh.envs.config import EnvConfig
from rlmesh.envs.server import EnvServer


@pytest.fixture(scope="module")
async def server(tmp_path_factory):
    server = EnvServer(EnvConfig(), tmp_path_factory.mktemp("env") / "env.log")
    await server.start()
    yield server
    await server.stop()


async def test_openenv_validates_it(server):
    openenv = Path(sys.executable).with_name("openenv")
    command = [openenv, "validate", "--url", server.url.replace("ws", "http")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and "Verdict: PASS" in result.stdout, result.stdout + result.stderr


async def test_openenv_client_plays_an_episode(server):
    async with GenericEnvClient(base_url=server.url) as env:
        result = await env.reset(seed=1, deal_seed=11, rules="no_bonus")
        assert result.observation["text"] == "You have 10 (hard). Dealer shows 5. Hit or stand?"
        result = await env.step({"text": "hit"})
        assert not result.done and (await env.state())["step"] == 1
        result = await env.step({"text": "stand"})
        assert result.done and result.reward in (-1.0, 0.0, 1.0)


async def test_openenv_client_is_told_of_unknown_arguments(server):
    async with GenericEnvClient(base_url=server.url) as env:
        with pytest.raises(RuntimeError, match="does not know 'decks'"):
            await env.reset(decks=2)
