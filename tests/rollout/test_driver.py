"""Episodes in the real environment, with the policy's answers written by hand."""

import pytest

from rlmesh.envs.config import EnvConfig
from rlmesh.envs.pool import EnvPool
from rlmesh.envs.server import EnvServer
from rlmesh.rollout.collate import episode_samples
from rlmesh.rollout.config import RolloutConfig
from rlmesh.rollout.driver import play
from rlmesh.rollout.render import Renderer
from rlmesh.rollout.types import Completion, Outcome


@pytest.fixture(scope="module")
async def pool(tmp_path_factory):
    config = EnvConfig(sessions=4)
    server = EnvServer(config, tmp_path_factory.mktemp("env") / "env.log")
    await server.start()
    async with EnvPool(server.url, config) as pool:
        yield pool
    await server.stop()


async def episode(pool, model, answers, max_length=256, **options):
    """Play the deal of seed 22 with the given answers, the last one repeated; also returns the prompts that were seen."""
    renderer, prompts = Renderer(model), []
    config = RolloutConfig(max_tokens=4, **options)

    async def sample(turn, prompt):
        prompts.append(prompt)
        tokens = renderer.answer(answers[min(turn, len(answers) - 1)])[:4]
        return Completion(tokens, [-0.5] * len(tokens), "stop", [0] * len(tokens))

    async with pool.lease() as session:
        reset = {"seed": 3, "deal_seed": 22, "rules": "gym_sab"}
        return await play(session, reset, sample, renderer, config, max_length, index=0), prompts


async def test_an_episode_ends_with_the_game(pool, untied):
    played, prompts = await episode(pool, untied, ["stand"])
    assert len(played.turns) == len(prompts) == 1
    assert played.outcome == Outcome.OK
    assert not played.truncated
    assert played.env_return in (-1, 0, 1)
    assert played.turns[0].observation.startswith("You have ")


async def test_hitting_goes_on_turn_by_turn(pool, untied):
    played, prompts = await episode(pool, untied, ["hit"], history="none")
    assert len(played.turns) >= 2
    assert played.env_return == -1
    renderer = Renderer(untied)
    assert prompts == [renderer.first_prompt(turn.observation) for turn in played.turns]
    assert len(list(episode_samples(played))) == len(played.turns)


async def test_with_history_the_episode_is_one_sequence(pool, untied):
    played, prompts = await episode(pool, untied, ["hit"], history="full")
    for before, turn, after in zip(prompts, played.turns, prompts[1:], strict=False):
        assert after[: len(before) + len(turn.completion.tokens)] == before + turn.completion.tokens
    [sample] = episode_samples(played)
    assert sum(sample.loss_mask) == sum(len(turn.completion.tokens) for turn in played.turns)


async def test_a_bad_answer_is_the_models_outcome(pool, untied):
    played, _ = await episode(pool, untied, ["You hit"])
    assert played.outcome == Outcome.INVALID_ACTION
    assert played.outcome.scored
    assert played.env_return == -1


async def test_an_episode_that_is_cut_says_so(pool, untied):
    played, _ = await episode(pool, untied, ["hit"], max_turns=1)
    assert played.truncated
    assert len(played.turns) == 1
    played, prompts = await episode(pool, untied, ["hit"], max_length=20, history="full")
    assert played.truncated
    assert len(prompts) == 1
