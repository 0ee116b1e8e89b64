"""A step's episodes in numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlmesh.metrics import Metrics
from rlmesh.rollout.types import Group, Outcome


def rollout_metrics(groups: Sequence[Group], version: int) -> Metrics:
    """Rewards, lengths, outcomes and ages of the groups that version `version` trains on."""
    metrics = Metrics()
    for group in groups:
        rewards = np.array([e.reward for e in group.episodes if e.reward is not None])
        if len(rewards):
            metrics.record("reward/std", rewards.std())
            metrics.record("frac_reward_zero_std", float(np.ptp(rewards) == 0))
        for reward in rewards:
            metrics.record("reward/mean", reward)
        metrics.record("groups", 1, "sum")
        tasks = {episode.turns[0].observation for episode in group.episodes if episode.turns}
        metrics.record("groups/mixed", float(len(tasks) > 1))
        for episode in group.episodes:
            metrics.record("episodes/unscored", float(episode.reward is None), "sum")
            if not episode.outcome.scored:
                continue
            metrics.record("episodes/turns", len(episode.turns))
            metrics.record("episodes/truncated", float(episode.truncated))
            metrics.record("episodes/invalid", float(episode.outcome == Outcome.INVALID_ACTION))
            for turn in episode.turns:
                tokens = turn.completion.tokens
                metrics.record("completions/mean_length", len(tokens))
                metrics.record("completions/clipped_ratio", float(turn.completion.finish_reason == "length"))
                metrics.record("tokens/sampled", len(tokens), "sum")
                metrics.record("off_policy/mean", version - turn.completion.min_version)
                metrics.record("off_policy/max", version - turn.completion.min_version, "max")
    return metrics
