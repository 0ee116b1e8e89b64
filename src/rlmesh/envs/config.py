"""Options of the environment. No heavy imports here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlmesh.schema import LONGEST_S, option


@dataclass
class EnvConfig:
    """The OpenEnv environment that episodes are played in."""

    app: str = option("blackjack_env.server.app:app", "ASGI application of the server, started as a subprocess")
    url: str = option("", "address of a server that already runs (`ws://host:port`); then nothing is started")
    args: dict[str, Any] = option(
        factory=dict, doc="what the environment gets at each reset beside its seeds (for BlackJack: `rules`)"
    )
    group_seed: str = option(
        "",
        "reset argument for the seed that a group shares, beside each episode's own `seed`; empty: the group shares `seed`",
    )
    sessions: int = option(64, "episodes that each rollout worker plays on one server at the same time", ge=1)
    start_timeout_s: float = option(
        60.0, "limit for a server to answer its health check, in seconds", gt=0, le=LONGEST_S
    )
    step_timeout_s: float = option(10.0, "limit for one reset or step, in seconds", gt=0, le=LONGEST_S)
    retries: int = option(
        5, "times that an episode lost with its server is played again, after 1, 2, 4, ... seconds", ge=0
    )
