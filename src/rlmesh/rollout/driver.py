"""Plays one episode: the observation goes to the policy, its answer to the environment, until the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from rlmesh.rollout.config import RolloutConfig
from rlmesh.rollout.render import Renderer
from rlmesh.rollout.types import Completion, Episode, Outcome, Turn

Sample = Callable[[int, list[int]], Awaitable[Completion]]  # (turn, prompt) -> completion


class Session(Protocol):
    """One episode's place in an environment server (`rlmesh.envs.EnvPool` leases them)."""

    async def reset(self, **args): ...
    async def step(self, text: str): ...


async def play(
    session: Session,
    reset_args: dict,
    sample: Sample,
    renderer: Renderer,
    config: RolloutConfig,
    max_length: int,
    index: int,
) -> Episode:
    """Play one episode to its end, to `max_turns`, or to the longest sequence that the model takes.

    With `history: full` the prompt of a turn is the tokens of all turns before it, so that the episode is one sequence;
    with `history: none` it is the latest observation alone, and each turn is a sequence of its own.

    Raises: EnvFailure when the environment is lost; what was played so far is then worth nothing.
    """
    result = await session.reset(**reset_args)
    episode = Episode(id=result.episode_id, index=index, metadata=dict(result.metadata))
    prompt = renderer.first_prompt(result.observation)
    while not result.done:
        if len(episode.turns) == config.max_turns or len(prompt) + config.max_tokens > max_length:
            episode.truncated = True
            break
        completion = await sample(len(episode.turns), prompt)
        action = renderer.text(completion.tokens)
        observation, result = result.observation, await session.step(action)
        episode.turns.append(Turn(observation, prompt, completion, action, result.reward))
        episode.metadata = dict(result.metadata)
        if not result.done:
            if config.history == "full":
                prompt = renderer.next_prompt(prompt, completion.tokens, result.observation)
            else:
                prompt = renderer.first_prompt(result.observation)
    if episode.metadata.get("invalid_action"):
        episode.outcome = Outcome.INVALID_ACTION
    return episode
