"""Request ids and log lines."""

import re

import httpx
import pytest
import structlog
from structlog.testing import capture_logs

from harness.http import Server
from harness.scripted import ScriptedEngine

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "a secret question"}]}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/chat/completions", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/health", 200),
        ("GET", "/nowhere", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/completions", 400),
    ],
)
async def test_every_answer_carries_the_clients_id(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    """Errors of the router included."""
    name = "my id, with ~all~ of ASCII!"
    response = await client.request(method, path, json=CHAT, headers={"X-Request-Id": name})
    assert response.status_code == status
    assert response.headers.get_list("x-request-id") == [name]


async def test_a_request_without_an_id_gets_a_new_one(client: httpx.AsyncClient) -> None:
    """Two requests get two."""
    ids = {(await client.get("/health")).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", made) for made in ids)


async def test_the_engine_is_given_the_id(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    """So that whatever is said about the request there has the same name."""
    await client.post("/v1/chat/completions", json=CHAT, headers={"X-Request-Id": "r1"})
    assert engine.submitted.get_nowait().request_id == "r1"


@pytest.mark.parametrize("name", ["", "x" * 129, "é", "tab\there"])
async def test_an_id_that_would_spoil_logs_is_refused(
    client: httpx.AsyncClient, engine: ScriptedEngine, name: str
) -> None:
    """The 400 names the header and comes under an id of the server's."""
    headers = {b"X-Request-Id": name.encode("latin-1")}
    response = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Request-Id"
    assert "128 printable ASCII" in response.json()["error"]["message"]
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])
    assert engine.submitted.empty()


async def test_an_id_may_have_128_characters(client: httpx.AsyncClient) -> None:
    """The limit itself is allowed."""
    response = await client.get("/health", headers={"X-Request-Id": "x" * 128})
    assert response.headers["x-request-id"] == "x" * 128


@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_request_is_one_line_with_its_numbers(
    client: httpx.AsyncClient, server: Server, stream: bool
) -> None:
    """Method, path, status, tokens and times, and neither prompt nor answer."""
    with capture_logs() as logs:
        headers = {"X-Request-Id": "r1"}
        await client.post("/v1/chat/completions", json={**CHAT, "stream": stream}, headers=headers)
        await server.idle()
    (line,) = logs
    assert 0 < line.pop("first_token_seconds") <= line.pop("seconds")
    assert line == {
        "event": "request",
        "log_level": "info",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "request_id": "r1",
        "prompt_tokens": 17,
        "cached_tokens": 5,
        "completion_tokens": 3,
    }


async def test_a_refused_request_is_one_line_with_its_code(
    client: httpx.AsyncClient, server: Server
) -> None:
    """A request that never reached the engine has no tokens."""
    with capture_logs() as logs:
        await client.post("/v1/chat/completions", json={**CHAT, "model": "other"})
        await server.idle()
    (line,) = logs
    assert (line["status"], line["error"]) == (404, "model_not_found")
    assert "prompt_tokens" not in line


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
async def test_polling_is_logged_for_debugging_alone(
    client: httpx.AsyncClient, server: Server, path: str
) -> None:
    """Probes every few seconds do not fill the log."""
    with capture_logs() as logs:
        await client.get(path)
        await server.idle()
    assert [line["log_level"] for line in logs] == ["debug"]


async def test_lines_logged_meanwhile_carry_the_id(
    client: httpx.AsyncClient,
    server: Server,
    engine: ScriptedEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever runs for the request, engine included, finds the id in its context."""
    statistics = engine.statistics

    async def talkative() -> object:
        structlog.get_logger().info("counting")
        return await statistics()

    monkeypatch.setattr(engine, "statistics", talkative)
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        await client.get("/cache/stats", headers={"X-Request-Id": "r1"})
        await server.idle()
        await client.get("/cache/stats", headers={"X-Request-Id": "r2"})
        await server.idle()
    assert [(line["event"], line["request_id"]) for line in logs] == [
        ("counting", "r1"),
        ("request", "r1"),
        ("counting", "r2"),
        ("request", "r2"),
    ]
