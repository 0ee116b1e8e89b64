"""An actor that knows where it runs."""

import os

from monarch.actor import Actor, concurrent_endpoint

from rlmesh.actors.service import Service


class Place(Actor):
    """Tells its process."""

    @concurrent_endpoint
    async def pid(self) -> int:
        return os.getpid()

    @concurrent_endpoint
    async def pid_of(self, other: Service) -> int:
        return await other.pid()
