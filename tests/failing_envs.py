"""Environment servers that go wrong, each in its own way; rlmesh starts this module as it would any other."""

import os

from blackjack_env.models import BlackjackAction, BlackjackObservation, BlackjackState
from blackjack_env.server.environment import BlackjackEnvironment
from openenv.core.env_server import create_fastapi_app


class DiesWhenPlayed(BlackjackEnvironment):
    """Begins an episode, and takes its whole server along at the first answer."""

    def step(self, action, **_):
        os._exit(1)


dies_when_played = create_fastapi_app(
    DiesWhenPlayed, BlackjackAction, BlackjackObservation, max_concurrent_envs=64, state_cls=BlackjackState
)
