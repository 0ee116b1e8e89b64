"""Environment servers that go wrong, each in its own way; rlmesh starts this module as it would any other."""

import asyncio
import os

from blackjack_env.models import BlackjackAction, BlackjackObservation, BlackjackState
from blackjack_env.server.environment import BlackjackEnvironment
from openenv.core.env_server import create_fastapi_app


class DiesWhenPlayed(BlackjackEnvironment):
    """Begins an episode, and takes its whole server along at the first answer."""

    def step(self, action, **_):
        os._exit(1)


class SlowAtFirst(BlackjackEnvironment):
    """Takes 3 s for each of its first four answers."""

    answered = 0

    async def step_async(self, action, **args):
        SlowAtFirst.answered += 1
        if SlowAtFirst.answered <= 4:
            await asyncio.sleep(3)
        return self.step(action, **args)


slow_at_first = create_fastapi_app(
    SlowAtFirst, BlackjackAction, BlackjackObservation, max_concurrent_envs=64, state_cls=BlackjackState
)
dies_when_played = create_fastapi_app(
    DiesWhenPlayed, BlackjackAction, BlackjackObservation, max_concurrent_envs=64, state_cls=BlackjackState
)
