"""Groups of episodes to the trainer's batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlmesh.errors import RLMeshError
from rlmesh.losses.advantages import Advantage
from rlmesh.rollout.batch import Batch
from rlmesh.rollout.types import Episode, Group


@dataclass(slots=True)
class Sample:
    """One sequence to train on; the three lists are aligned."""

    tokens: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def extend(self, tokens: Sequence[int], logprobs: Sequence[float] | None) -> None:
        self.tokens.extend(tokens)
        self.loss_mask.extend([logprobs is not None] * len(tokens))
        self.logprobs.extend([0.0] * len(tokens) if logprobs is None else logprobs)


def episode_samples(episode: Episode) -> Iterator[Sample]:
    """The episode's sequences: a turn whose prompt extends the tokens before it continues the sequence, any other begins one.

    Only what the policy sampled is in the loss mask; observations and template text are not.
    """
    sample = Sample()
    for turn in episode.turns:
        known = len(sample.tokens)
        if known and turn.prompt[:known] == sample.tokens:
            sample.extend(turn.prompt[known:], None)
        else:
            if known:
                yield sample
            sample = Sample()
            sample.extend(turn.prompt, None)
        if len(turn.completion.logprobs) != len(turn.completion.tokens):
            raise ValueError(
                f"episode {episode.id}: {len(turn.completion.tokens)} tokens, {len(turn.completion.logprobs)} logprobs"
            )
        sample.extend(turn.completion.tokens, turn.completion.logprobs)
    if sample.tokens:
        yield sample


def assign_advantages(groups: Iterable[Group], advantage: Advantage) -> None:
    """Set each episode's advantage from the rewards of its group; unscored episodes stay without one."""
    for group in groups:
        advantages = advantage([episode.reward for episode in group.episodes])
        for episode, value in zip(group.episodes, advantages, strict=True):
            episode.advantage = None if episode.reward is None else float(value)


def collate(groups: Sequence[Group]) -> Batch:
    """All trainable sequences of the groups, each token with its episode's advantage; unscored episodes are left out."""
    samples, advantages = [], []
    for group in groups:
        for episode in group.episodes:
            if episode.advantage is None:
                continue
            for sample in episode_samples(episode):
                if not any(sample.loss_mask):  # nothing was sampled: there is no token to carry the advantage
                    continue
                samples.append(sample)
                advantages.append(np.where(sample.loss_mask, episode.advantage, 0.0))
    if not samples:
        raise RLMeshError(
            f"rollout: none of the step's episodes could be scored, there is nothing to train on; {_first_error(groups)}"
        )
    tokens, masks, logprobs = ([getattr(s, name) for s in samples] for name in ("tokens", "loss_mask", "logprobs"))
    return Batch.from_samples(tokens, masks, logprobs, advantages)


def _first_error(groups: Sequence[Group]) -> str:
    errors = (
        episode.metadata["error"] for group in groups for episode in group.episodes if "error" in episode.metadata
    )
    return next(errors, "nothing was sampled (does a prompt leave room for an answer in model.max_length?)")


def supervised(prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> Batch:
    """Prompts with the answers to be learned; only the answers are in the loss mask."""
    samples = []
    for prompt, answer in zip(prompts, answers, strict=True):
        sample = Sample()
        sample.extend(prompt, None)
        sample.extend(answer, [0.0] * len(answer))
        samples.append(sample)
    return Batch.from_samples([s.tokens for s in samples], [s.loss_mask for s in samples])
