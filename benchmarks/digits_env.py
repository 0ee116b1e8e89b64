"""An OpenEnv environment of one turn: it shows 16 random letters, takes any answer and is done."""

from __future__ import annotations

import string
from random import Random
from typing import Any
from uuid import uuid4

from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

PROMPT_LENGTH = 16


def prompt(seed: int | None) -> str:
    """The letters of one task."""
    random = Random(seed)
    return "".join(random.choice(string.ascii_lowercase) for _ in range(PROMPT_LENGTH))


class DigitsAction(Action):
    """The model's answer as it was given."""

    text: str


class DigitsObservation(Observation):
    """What the model reads."""

    text: str


class DigitsEnvironment(Environment[DigitsAction, DigitsObservation, State]):
    """One prompt, one answer. The reward is not given here: the recipe's reward function reads the answer."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> DigitsObservation:
        """Show the letters that `seed` draws."""
        self._state = State(episode_id=episode_id or uuid4().hex)
        return self._observation(prompt(seed), done=False)

    def step(self, action: DigitsAction, **_: Any) -> DigitsObservation:
        """Take the answer."""
        self._state.step_count += 1
        return self._observation("", done=True)

    # OpenEnv runs asynchronous methods on the event loop; the synchronous ones would each cost a hop to a thread.
    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **args: Any):
        return self.reset(seed, episode_id, **args)

    async def step_async(self, action: DigitsAction, **args: Any):
        return self.step(action, **args)

    @property
    def state(self) -> State:
        return self._state

    def _observation(self, text: str, done: bool) -> DigitsObservation:
        metadata = {"episode_id": self._state.episode_id, "step": self._state.step_count}
        return DigitsObservation(text=text, reward=0.0, done=done, metadata=metadata)


app = create_fastapi_app(
    DigitsEnvironment, DigitsAction, DigitsObservation, max_concurrent_envs=1024, env_name="digits", state_cls=State
)
