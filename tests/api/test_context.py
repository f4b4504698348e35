"""Request ids and log lines."""

import asyncio
import re

import httpx
import pytest
import structlog
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from harness.http import Server
from harness.scripted import ScriptedEngine
from radixd.api.context import RequestContext

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


class Cut:
    """A request to `RequestContext`, as a server that can cut it off runs it."""

    def __init__(self, *, started: bool) -> None:
        self.sent: list[Message] = []
        self.waits = asyncio.Event()
        self._started = started

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Be the application: never end."""
        if self._started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        self.waits.set()
        await asyncio.Event().wait()

    async def send(self, message: Message) -> None:
        """Take what the client would get."""
        self.sent.append(message)


SCOPE: Scope = {"type": "http", "method": "POST", "path": "/generate", "headers": []}


async def nothing() -> Message:
    """Receive what never comes."""
    never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await never


@pytest.mark.parametrize(("started", "status"), [(False, 503), (True, 200)])
async def test_a_request_that_the_server_cuts_off_ends_without_an_exception(
    started: bool, status: int
) -> None:
    """The log line says so; a client without a status yet is told to come back."""
    cut = Cut(started=started)
    with capture_logs() as logs:
        task = asyncio.create_task(RequestContext(cut)(SCOPE, nothing, cut.send))
        await cut.waits.wait()
        task.cancel()
        await task
    assert task.cancelling() == 1
    (line,) = logs
    assert (line["event"], line["status"], line["error"]) == ("request", status, "aborted")
    assert cut.sent[0]["status"] == status
    assert (len(cut.sent) > 1) == (not started)


async def test_a_cancellation_of_something_within_is_not_taken_for_the_servers() -> None:
    """Nobody asked the request to end, so that it did is a failure for all to see."""

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    cut = Cut(started=False)
    with pytest.raises(asyncio.CancelledError):
        await RequestContext(app)(SCOPE, nothing, cut.send)
    assert cut.sent == []
