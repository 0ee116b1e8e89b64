"""The server: `python -m blackjack_env.server.app`, or any ASGI server on `blackjack_env.server.app:app`."""

from __future__ import annotations

import argparse
import os

from blackjack_env.models import BlackjackAction, BlackjackObservation, BlackjackState
from blackjack_env.server.environment import BlackjackEnvironment
from openenv.core.env_server import create_fastapi_app

app = create_fastapi_app(
    BlackjackEnvironment,
    BlackjackAction,
    BlackjackObservation,
    max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "1024")),
    env_name="blackjack",
    state_cls=BlackjackState,
)


def main() -> None:
    """Serve on the loopback interface unless told otherwise."""
    import uvicorn

    parser = argparse.ArgumentParser(description="BlackJack as an OpenEnv environment")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    # A client may be silent for as long as its model generates, so the server must not ping it out.
    uvicorn.run(app, host=args.host, port=args.port, ws_ping_interval=None, ws_per_message_deflate=False)


if __name__ == "__main__":
    main()
