"""The reward of the throughput benchmark."""

from __future__ import annotations

from rlmesh.rollout.types import Episode


def share_of_digits(episode: Episode) -> float:
    """Share of digits in the answer."""
    text = episode.turns[-1].action
    return sum(character.isdigit() for character in text) / max(1, len(text))
