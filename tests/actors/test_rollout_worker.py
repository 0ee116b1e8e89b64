"""Groups that are played between the real policy server, an environment server and a reward actor."""

import pytest
from spawning import IMPORTABLE, MAX_LENGTH

from rlmesh.actors.config import RewardConfig
from rlmesh.actors.reward_actor import RewardActor
from rlmesh.actors.rollout_worker import RolloutWorker
from rlmesh.actors.service import Replica, Service
from rlmesh.envs.config import EnvConfig
from rlmesh.envs.server import EnvServer
from rlmesh.errors import ActorFailure
from rlmesh.rollout.config import RolloutConfig
from rlmesh.rollout.types import Task

TASK = Task(step=3, index=1, group_size=4, seed=7, shared_seed=8)


@pytest.fixture
async def play(proc, policy, tmp_path, monkeypatch, request):
    """Plays `TASK` in an environment of `failing_envs`."""
    servers, name = [], request.node.name
    monkeypatch.setenv("PYTHONPATH", IMPORTABLE["PYTHONPATH"])

    async def play(app: str, **options):
        env = EnvConfig(app=f"failing_envs:{app}")
        servers.append(EnvServer(env, tmp_path / "env.log"))
        await servers[-1].start()
        reward = Service(
            "RewardActor", [Replica(proc.spawn(f"reward_{name}", RewardActor, RewardConfig()))], limit_s=20
        )
        rollout = RolloutConfig(history="none", **options)
        arguments = (rollout, env, str(policy.model_path), MAX_LENGTH, policy.service, reward)
        worker = Service(
            "RolloutWorker", [Replica(proc.spawn(f"rollout_{name}", RolloutWorker, *arguments))], limit_s=60
        )
        await reward.setup()
        await worker.setup([servers[-1].url])
        return await worker.run_group(TASK)

    yield play
    for server in servers:
        await server.stop()


async def test_a_straggler_is_begun_again_at_the_current_version(play, policy):
    version = await policy.service.version()
    group, metrics = await play("slow_at_first", timeout_s=2.0)
    assert metrics.reduce()["errors/straggler"] == 1
    assert [episode.outcome for episode in group.episodes] == ["invalid_action"] * 4  # an untrained model's answers
    assert group.min_version == group.max_version == version


async def test_a_group_that_straggles_too_often_ends_the_run_with_one_line(play):
    with pytest.raises(
        ActorFailure, match=r"group 1 of step 3 was not played within 1 s \(rollout\.timeout_s; tries: 1\)"
    ):
        await play("slow_at_first", timeout_s=1.0, retries=0)
