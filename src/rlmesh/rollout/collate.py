"""Groups of episodes to the trainer's batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlmesh.errors import RLMeshError
from rlmesh.losses.advantages import Advantage
from rlmesh.rollout.batch import Batch
from rlmesh.rollout.types import Completion, Episode, Group


@dataclass(slots=True)
class Sample:
    """One sequence to train on; the lists are aligned."""

    tokens: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def given(self, tokens: Sequence[int]) -> None:
        """Go on with tokens that the policy did not sample."""
        self._extend(tokens, False, [0.0] * len(tokens), [-1] * len(tokens))

    def sampled(self, completion: Completion) -> None:
        """Go on with what the policy sampled."""
        self._extend(completion.tokens, True, completion.logprobs, completion.versions)

    def _extend(self, tokens: Sequence[int], mask: bool, logprobs: Sequence[float], versions: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self.loss_mask.extend([mask] * len(tokens))
        self.logprobs.extend(logprobs)
        self.versions.extend(versions)


def episode_samples(episode: Episode) -> Iterator[Sample]:
    """The episode's sequences: a turn whose prompt extends the tokens before it continues the sequence, any other begins one.

    Only what the policy sampled is in the loss mask; observations and template text are not.
    """
    sample = Sample()
    for turn in episode.turns:
        known = len(sample.tokens)
        if known and turn.prompt[:known] == sample.tokens:
            sample.given(turn.prompt[known:])
        else:
            if known:
                yield sample
            sample = Sample()
            sample.given(turn.prompt)
        lengths = {name: len(getattr(turn.completion, name)) for name in ("tokens", "logprobs", "versions")}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"episode {episode.id}: a completion whose lists differ in length: {lengths}")
        sample.sampled(turn.completion)
    if sample.tokens:
        yield sample


def assign_advantages(groups: Iterable[Group], advantage: Advantage) -> None:
    """Set each episode's advantage from the rewards of its group; unscored episodes stay without one.

    Raises: ValueError when the function does not give a finite number for each episode.
    """
    for group in groups:
        advantages = np.asarray(advantage([episode.reward for episode in group.episodes]), dtype=np.float64)
        if advantages.shape != (len(group.episodes),) or not np.isfinite(advantages).all():
            raise ValueError(f"{advantages} for a group of {len(group.episodes)}, which needs a finite number for each")
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
    tokens, masks, logprobs, versions = (
        [getattr(sample, name) for sample in samples] for name in ("tokens", "loss_mask", "logprobs", "versions")
    )
    return Batch.from_samples(tokens, masks, logprobs, advantages, versions)


def _first_error(groups: Sequence[Group]) -> str:
    errors = (
        episode.metadata["error"] for group in groups for episode in group.episodes if "error" in episode.metadata
    )
    return next(errors, "nothing was sampled (does a prompt leave room for an answer in model.max_length?)")


def supervised(prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> Batch:
    """Prompts with the answers to be learned; only the answers are in the loss mask."""
    pairs = list(zip(prompts, answers, strict=True))
    masks = [[False] * len(prompt) + [True] * len(answer) for prompt, answer in pairs]
    return Batch.from_samples([prompt + answer for prompt, answer in pairs], masks)
