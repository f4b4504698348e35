"""A scripted engine behind a real socket, and a client of it."""

from collections.abc import AsyncIterator

import httpx
import pytest

from harness.http import Server, serving
from harness.scripted import ScriptedEngine
from radixd.api.app import create_app


@pytest.fixture
async def engine() -> ScriptedEngine:
    """An engine whose script the test may change."""
    return ScriptedEngine()


@pytest.fixture
async def server(engine: ScriptedEngine) -> AsyncIterator[Server]:
    """The application on a socket; bodies are limited to 64 KiB, silences to 10 ms."""
    app = create_app(engine, keep_alive=0.01, body_bytes_max=64 * 1024)
    async with serving(app) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the server."""
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        yield client
