"""EnvHost: keeps one environment server running on the host it is placed on."""

from __future__ import annotations

import os
from pathlib import Path

from monarch.actor import Actor, endpoint

from rlmesh.envs.config import EnvConfig
from rlmesh.envs.server import EnvServer


class EnvHost(Actor):
    """Starts the recipe's environment server as a subprocess of its proc and gives its address.

    >>> host = proc_mesh.spawn("env", EnvHost, EnvConfig(), "logs")   # doctest: +SKIP
    >>> url = await host.start.call_one()
    """

    def __init__(self, config: EnvConfig, log_dir: str):
        name = f"env_server_{os.getpid()}.log"  # a host may keep several
        self._server = EnvServer(config, Path(log_dir) / name)

    @endpoint
    async def start(self) -> str:
        """Start the server and wait for its health; returns its address."""
        await self._server.start()
        return self._server.url

    @endpoint
    async def close(self) -> None:
        """Stop the server."""
        await self._server.stop()
