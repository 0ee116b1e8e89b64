"""EnvServer: an OpenEnv environment server as a subprocess that is kept alive."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path

from rlmesh.envs.config import EnvConfig
from rlmesh.errors import ActorFailure

logger = logging.getLogger(__name__)

_WATCH_INTERVAL_S = 0.5
_STOP_TIMEOUT_S = 3.0
_LOG_TAIL_LINES = 15


class EnvServer:
    """Serves `config.app` on a loopback port of its own, and starts it again when it dies or hangs.

    Invariants: the port is this object's from its making to `stop`, so that the address never changes and nobody else can
    take it, yet connections are refused at once while the server is down. The server dies with the thread that started it:
    call `start` from a loop that lives as long as the server is needed.

    >>> server = EnvServer(EnvConfig(), Path("logs/env.log"))     # doctest: +SKIP
    >>> await server.start()
    >>> async with EnvPool(server.url, config) as pool: ...
    >>> await server.stop()
    """

    def __init__(self, config: EnvConfig, log_path: Path):
        self._config, self._log_path = config, Path(log_path)
        self._process: subprocess.Popen | None = None
        self._watcher: asyncio.Task | None = None
        self.restarts = 0
        # Bound and never listening: it holds the port while servers come and go on sockets of their own.
        self._reservation = self._bind(0)
        self._port = self._reservation.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self._port}"

    @staticmethod
    def _bind(port: int) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", port))
        return bound

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        return self._process.pid

    async def start(self) -> None:
        """Start the server, wait until it is healthy, and keep it so.

        Raises: ActorFailure with the last lines of the log when it dies at start or is not healthy in time.
        """
        await self._launch()
        self._watcher = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop the server and give up its port."""
        if self._watcher:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self._process:
            self._process.terminate()
            await asyncio.to_thread(self._reap, _STOP_TIMEOUT_S)
        self._reservation.close()

    def _reap(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def _launch(self) -> None:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._bind(self._port) as bound, open(self._log_path, "ab") as log:
            command = [
                sys.executable,
                "-m",
                "rlmesh.envs.serve",
                self._config.app,
                str(bound.fileno()),
                str(os.getpid()),
            ]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[bound.fileno()]
            )
        deadline = time.monotonic() + self._config.start_timeout_s
        while not await self._healthy(timeout_s=1.0):
            if self._process.poll() is not None:
                raise self._failure(f"ended with code {self._process.returncode} at start")
            if time.monotonic() > deadline:
                await asyncio.to_thread(self._reap, 0)
                raise self._failure(f"was not healthy after {self._config.start_timeout_s:g} s")
            await asyncio.sleep(0.02)

    def _failure(self, what: str) -> ActorFailure:
        tail = "\n".join(self._log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
        return ActorFailure(
            f"env.app: environment server {self._config.app} {what}; {self._log_path} ends with:\n{tail}"
        )

    async def _healthy(self, timeout_s: float) -> bool:
        def ask() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=timeout_s) as answer:
                    return answer.status == 200
            except (OSError, HTTPException):
                return False

        return await asyncio.to_thread(ask)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            alive = self._process.poll() is None
            if alive and await self._healthy(self._config.step_timeout_s):
                continue
            logger.warning("environment server %s %s; starting it again", self.url, "hangs" if alive else "died")
            await asyncio.to_thread(self._reap, 0)
            try:
                await self._launch()
            except (ActorFailure, OSError) as failure:  # episodes fail meanwhile, and are counted by who plays them
                logger.error("%s", failure)
            else:
                self.restarts += 1
