"""What rollouts are made of: a group of episodes, an episode of turns.

task -> rollout -> reward -> group -> buffer -> batch -> trainer
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How an episode (or one call to its environment) ended.

    Only `OK` and `INVALID_ACTION` are the model's doing; the others are failures of the infrastructure: they are
    counted and retried and never become a reward.
    """

    OK = "ok"
    INVALID_ACTION = "invalid_action"
    ENV_ERROR = "env_error"
    ENV_LOST = "env_lost"
    CAPACITY = "capacity"
    TIMEOUT = "timeout"

    @property
    def scored(self) -> bool:
        return self in (Outcome.OK, Outcome.INVALID_ACTION)


@dataclass(slots=True)
class Completion:
    """One sampled answer. `logprobs[i]` and `versions[i]` belong to `tokens[i]`, under the distribution it was sampled from."""

    tokens: list[int]
    logprobs: list[float]
    finish_reason: str  # "stop" (an end-of-sequence token, which is the last of `tokens`) or "length"
    versions: list[int]  # policy version that made the token; never falls within a completion

    @property
    def min_version(self) -> int:
        return self.versions[0]

    @property
    def max_version(self) -> int:
        return self.versions[-1]


@dataclass(slots=True)
class GenerateRequest:
    """`n` samples of one prompt; sample i draws from the stream of `seed + i`."""

    prompt: list[int]
    n: int
    seed: int
    max_tokens: int


@dataclass(slots=True)
class Turn:
    """One exchange: the prompt as the model saw it, what it sampled, and what the environment said to it."""

    observation: str  # text that the environment showed before this turn
    prompt: list[int]
    completion: Completion
    action: str  # text of the completion, as given to the environment
    reward: float = 0.0


@dataclass(slots=True)
class Episode:
    """One run of an environment."""

    id: str  # the environment's own episode id
    index: int  # place in its group
    turns: list[Turn] = field(default_factory=list)
    outcome: Outcome = Outcome.OK
    truncated: bool = False  # cut by max_turns or by the model's length, not ended by the environment
    reward: float | None = None  # set by the RewardActor; None: unscored, and left out of the group's mean
    advantage: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)  # the environment's own notes, never shown to the model

    @property
    def env_return(self) -> float:
        """Sum of the environment's rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def min_version(self) -> int:
        return min(turn.completion.min_version for turn in self.turns)

    @property
    def max_version(self) -> int:
        return max(turn.completion.max_version for turn in self.turns)


@dataclass(slots=True)
class Task:
    """What a group of episodes plays. `step` is the training step that will consume the group, `index` its place there."""

    step: int
    index: int
    group_size: int
    seed: int  # fans out to the episodes' hidden randomness and to sampling
    shared_seed: int  # what the episodes of the group share: the task itself


@dataclass(slots=True)
class Group:
    """Episodes that share a task."""

    task: Task
    episodes: list[Episode]

    @property
    def has_signal(self) -> bool:
        """Not all of its episodes have the same reward."""
        return len({episode.reward for episode in self.episodes if episode.reward is not None}) > 1

    @property
    def min_version(self) -> int:
        return min((e.min_version for e in self.episodes if e.turns), default=0)

    @property
    def max_version(self) -> int:
        return max((e.max_version for e in self.episodes if e.turns), default=0)
