"""A real HTTP server on a real socket, inside the test's own event loop.

It is uvicorn's protocol without uvicorn's `Server`, whose signal handlers and fixed pauses a test
has no use for.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState


class Server:
    """A running server."""

    def __init__(self, url: str, state: ServerState) -> None:
        self.url = url
        self._state = state

    async def idle(self) -> None:
        """Wait until no request is being served; an answer may be read before that."""
        while self._state.tasks:
            await asyncio.wait(self._state.tasks)


@contextlib.asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[Server]:
    """Serve *app* on a free port of the loopback."""
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    config.load()
    state = ServerState()

    def protocol() -> asyncio.Protocol:
        return H11Protocol(config=config, server_state=state, app_state={})

    listener = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    running = Server(f"http://{host}:{port}", state)
    try:
        yield running
    finally:
        listener.close()
        for connection in list(state.connections):
            connection.shutdown()
        await running.idle()
