import pytest
from episodes import group

from rlmesh.actors.config import RewardConfig
from rlmesh.actors.reward_actor import RewardActor
from rlmesh.actors.service import Replica, Service
from rlmesh.errors import ActorFailure
from rlmesh.rollout.types import Outcome


@pytest.fixture
def scorer(proc, request):
    async def make(function, **options):
        actor = proc.spawn(f"reward_{request.node.name}", RewardActor, RewardConfig(function=function, **options))
        service = Service("RewardActor", [Replica(actor)], limit_s=20)
        await service.setup()
        return service

    return make


async def test_a_function_by_import_path_with_its_arguments(scorer):
    reward = await scorer("reward_functions.longer_is_better", args={"bonus": 0.25})
    assert await reward.score(group([None, None]).episodes) == [1.25, 1.25]


async def test_an_async_function(scorer):
    assert await (await scorer("reward_functions.asynchronous")).score(group([None]).episodes) == [0.5]


async def test_the_default_is_the_environments_return(scorer):
    episodes = group([None]).episodes
    episodes[0].turns[0].reward = -1.0
    assert await (await scorer("rlmesh.rewards.episode_return")).score(episodes) == [-1.0]


async def test_episodes_of_several_groups_get_their_own_rewards(scorer):
    episodes = [*group([None, None], index=0).episodes, *group([None, None], index=1).episodes]
    for place, episode in enumerate(episodes):
        episode.turns[0].reward = float(place)
    assert await (await scorer("rlmesh.rewards.episode_return")).score(episodes) == [0.0, 1.0, 2.0, 3.0]


async def test_a_lost_episode_is_not_scored(scorer):
    episodes = group([None, None]).episodes
    episodes[1].outcome = Outcome.TIMEOUT
    assert await (await scorer("reward_functions.asynchronous")).score(episodes) == [0.5, None]


@pytest.mark.parametrize(
    "function, message",
    [
        ("reward_functions.returns_none", "returned None for episode 0-0, where a finite number is needed"),
        ("reward_functions.returns_nan", "returned nan for episode 0-0"),
        ("reward_functions.raises", r"failed on episode 0-0: KeyError: 'total' \(.*reward_functions.py, line 33\)"),
        ("reward_functions.exits", "failed on episode 0-0: SystemExit: no more"),
        ("reward_functions.exits_asynchronously", "failed on episode 0-0: SystemExit: no more"),
    ],
)
async def test_a_bad_reward_names_the_function_and_the_episode(scorer, function, message):
    with pytest.raises(ActorFailure, match=rf"RewardActor\[0\].score failed: reward.function: {function} {message}"):
        await (await scorer(function)).score(group([None]).episodes)


@pytest.mark.parametrize("function", ["slow", "slow_and_not_async", "asynchronous_and_blocking"])
async def test_a_slow_reward_is_not_waited_for(scorer, function):
    with pytest.raises(ActorFailure, match=rf"reward_functions\.{function} took longer than 0.2 s on episode 0-0"):
        await (await scorer(f"reward_functions.{function}", timeout_s=0.2)).score(group([None]).episodes)


async def test_the_limit_is_for_each_episode_and_not_for_those_before_it(scorer):
    reward = await scorer("reward_functions.takes_its_time", timeout_s=0.3)
    assert await reward.score(group([None] * 8).episodes) == [1.0] * 8


async def test_an_episode_in_which_nothing_was_played_is_not_scored(scorer):
    episodes = group([None, None]).episodes
    episodes[1].turns = []
    assert await (await scorer("reward_functions.asynchronous")).score(episodes) == [0.5, None]


async def test_a_function_that_does_not_import_names_the_key(scorer):
    with pytest.raises(
        ActorFailure, match=r"reward\.function: cannot import 'no_such_module\.f': there is no module 'no_such_module'"
    ):
        await scorer("no_such_module.f")


@pytest.mark.parametrize(
    "module, message",
    [
        ("hanging_module", r"importing it took longer than 0.2 s \(reward.start_timeout_s\)"),
        ("exiting_module", "cannot import 'exiting_module.f': SystemExit: not today"),
    ],
)
async def test_a_module_that_hangs_or_ends_the_process_names_the_key(scorer, module, message):
    with pytest.raises(ActorFailure, match=rf"reward\.function: .*{message}"):
        await scorer(f"{module}.f", start_timeout_s=0.2)


async def test_an_endpoint_before_setup_says_what_to_do(proc):
    actor = proc.spawn("reward_without_setup", RewardActor, RewardConfig())
    with pytest.raises(ActorFailure, match=r"RewardActor: call setup first"):
        await Service("RewardActor", [Replica(actor)], limit_s=20).score(group([None]).episodes)
