"""What travels between the environment and its clients."""

from __future__ import annotations

from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field, computed_field


class BlackjackAction(Action):
    """The model's answer as it was given; the environment parses it."""

    text: str = Field(description="the answer; its last line must be `hit` or `stand`")


class BlackjackObservation(Observation):
    """What the model reads. `metadata` is for the trainer and the reports and never belongs into a prompt:

    `episode_id`, `step`, `total`, `soft`, `dealer` (1 is an ace), `optimal_action` (None at the end), `regret` (what the
    answers so far have cost against best play) and `invalid_action`.
    """

    text: str = Field(description="the situation and the question")


class BlackjackState(State):
    """Where the episode stands."""

    rules: str = Field(default="", description="rules of the episode")
    done: bool = Field(default=False, description="the episode is over")

    @computed_field
    @property
    def step(self) -> int:
        return self.step_count
