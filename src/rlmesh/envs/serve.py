"""What runs inside an environment server's process: `python -m rlmesh.envs.serve APP SOCKET_FD PARENT_PID`."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

import uvicorn
from uvicorn.importer import ImportFromStringError, import_from_string

# Observations and actions above this size are refused at both ends of a connection.
MAX_MESSAGE_BYTES = 16 * 2**20
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve `APP` on a socket that the parent has bound, until the parent stops it or dies."""
    app, fd, parent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit("the process that started this server is gone")
    try:
        served = import_from_string(app)
    except ImportFromStringError as error:
        sys.exit(f"env.app: {error}")
    if not callable(served):
        sys.exit(f"env.app: '{app}' is no application, but {type(served).__name__}")
    config = uvicorn.Config(
        served,
        log_level="warning",
        access_log=False,
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=None,  # a client is silent for as long as its model generates
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=fd)])


if __name__ == "__main__":
    main()
