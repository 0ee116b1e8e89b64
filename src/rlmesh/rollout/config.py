"""Options of making episodes. No heavy imports here."""

from __future__ import annotations

from dataclasses import dataclass

from rlmesh.schema import LONGEST_S, option


@dataclass
class RolloutConfig:
    """Episodes: how many, how long, how sampled."""

    groups_per_step: int = option(32, "groups in one training step", ge=1)
    group_size: int = option(8, "episodes that share a task (for BlackJack: the visible deal)", ge=1)
    max_turns: int = option(8, "turns after which an episode is cut", ge=1)
    max_tokens: int = option(4, "tokens that one turn may sample", ge=1)
    temperature: float = option(
        1.0,
        "sampling temperature; training uses the same distribution (vLLM would silently take 0.01 for less)",
        ge=0.01,
    )
    history: str = option(
        "full",
        "what a turn's prompt holds: `full` (all turns before it) or `none` (the latest observation only)",
        choices=("full", "none"),
    )
    timeout_s: float = option(
        1800.0,
        "limit for playing a group, in seconds, with all that it waits for; then it is aborted, and begun again with the weights of that time",
        gt=0,
        le=LONGEST_S,
    )
    retries: int = option(2, "times that a group is begun again", ge=0)
    system_prompt: str = option("", "system message of every prompt; empty: none")
