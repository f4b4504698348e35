"""Clients that leave before their answer is complete."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from structlog.testing import capture_logs

from harness.http import Server, serving
from harness.scripted import ScriptedEngine
from radixd.api.app import create_app

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "scripted",
        "messages": [{"role": "user", "content": "x"}],
    },
    "/v1/completions": {"model": "scripted", "prompt": "x"},
    "/generate": {"text": "x"},
}

PATIENCE = 10.0
"""Seconds after which a test that waits for an abort fails."""


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Hold a bare connection to the server at *url*; leaving closes it."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


def request(path: str, body: dict[str, Any]) -> bytes:
    """Return the bytes of a POST."""
    content = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Request-Id: r1\r\nContent-Length: {len(content)}"
    return f"{head}\r\n\r\n{content}".encode()


@pytest.mark.parametrize("path", BODIES)
async def test_leaving_while_the_answer_is_computed_aborts_it(
    engine: ScriptedEngine, path: str
) -> None:
    """The engine's stream is closed although nothing was ever sent; the log calls it 499."""
    engine.flowing.clear()
    with capture_logs() as logs:
        async with serving(create_app(engine)) as server:
            async with connected(server.url) as (_, writer):
                writer.write(request(path, BODIES[path]))
                await asyncio.wait_for(engine.submitted.get(), PATIENCE)
            assert await asyncio.wait_for(engine.aborted.get(), PATIENCE) == "r1"
    (line,) = logs
    assert (line["status"], line["error"]) == (499, "client_disconnected")


@pytest.mark.parametrize("path", BODIES)
async def test_leaving_a_stream_aborts_it(engine: ScriptedEngine, path: str) -> None:
    """The engine's stream is closed while its next piece is not there yet."""
    engine.flowing.clear()
    with capture_logs() as logs:
        async with serving(create_app(engine, keep_alive=0.001)) as server:
            async with connected(server.url) as (reader, writer):
                writer.write(request(path, {**BODIES[path], "stream": True}))
                await asyncio.wait_for(reader.readuntil(b": keep-alive"), PATIENCE)
            assert await asyncio.wait_for(engine.aborted.get(), PATIENCE) == "r1"
    (line,) = logs
    assert (line["status"], line["error"]) == (200, "client_disconnected")


async def test_leaving_in_the_middle_of_a_body_ends_the_request(engine: ScriptedEngine) -> None:
    """Nothing is submitted, and the server is free again."""
    with capture_logs() as logs:
        async with serving(create_app(engine)) as server:
            async with connected(server.url) as (_, writer):
                writer.write(request("/generate", BODIES["/generate"])[:-3])
                await writer.drain()
            async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
                assert (await client.get("/v1/models")).status_code == 200
    assert {line["status"] for line in logs} == {200, 499}
    assert engine.submitted.empty()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_complete_answer_is_no_departure(
    client: httpx.AsyncClient, server: Server, engine: ScriptedEngine, stream: bool
) -> None:
    """Servers report a disconnect after the last byte too; that aborts nothing."""
    for path, body in BODIES.items():
        with capture_logs() as logs:
            response = await client.post(path, json={**body, "stream": stream})
            await server.idle()
        assert response.status_code == 200
        assert "error" not in logs[-1]
    assert engine.aborted.empty()


async def test_connections_are_kept_after_answers_of_every_kind(
    engine: ScriptedEngine,
) -> None:
    """One connection serves an answer, a stream, an error and another answer."""
    body = BODIES["/generate"]
    async with (
        serving(create_app(engine)) as server,
        connected(server.url) as (reader, writer),
    ):
        for content in (body, {**body, "stream": True}, {"colour": 1}, body):
            writer.write(request("/generate", content))
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            headers = dict(line.split(b": ", 1) for line in head.lower().splitlines()[1:-1])
            if b"content-length" in headers:
                await reader.readexactly(int(headers[b"content-length"]))
            else:
                await reader.readuntil(b"\r\n0\r\n\r\n")
    assert engine.aborted.empty()
