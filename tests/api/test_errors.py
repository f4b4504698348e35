"""Every refusal: its status, its body in OpenAI's format, its headers."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from harness.events import data_of
from harness.http import Server
from harness.scripted import ScriptedEngine
from radixd.actors.generation import (
    DrainingError,
    EngineClosedError,
    EngineError,
    FailedRequestError,
    InvalidRequestError,
    OverloadedError,
    WorkerFailedError,
)
from radixd.api.errors import from_engine
from radixd.scheduling.messages import FinishReason

GENERATING = ["/v1/chat/completions", "/v1/completions", "/generate"]
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "secret"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "scripted", "prompt": "secret"},
    "/generate": {"text": "secret"},
}


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "retry_after"),
    [
        (
            InvalidRequestError("seed", "too large"),
            *(400, "invalid_request_error", "invalid_value", None),
        ),
        (
            InvalidRequestError("prompt", "too long", "context_length_exceeded"),
            *(400, "invalid_request_error", "context_length_exceeded", None),
        ),
        (OverloadedError(1.2), 429, "rate_limit_error", "rate_limit_exceeded", "2"),
        (DrainingError(0.0), 503, "service_unavailable_error", "draining", "1"),
        (EngineClosedError("closed"), 503, "service_unavailable_error", "engine_closed", "5"),
        (WorkerFailedError("cuda says no"), 500, "server_error", "worker_failed", None),
        (FailedRequestError("a bug"), 500, "server_error", "internal_error", None),
    ],
    ids=["invalid", "too long", "overloaded", "draining", "closed", "worker", "bug"],
)
async def test_what_the_engine_refuses_has_its_status(
    client: httpx.AsyncClient,
    engine: ScriptedEngine,
    path: str,
    error: EngineError,
    status: int,
    kind: str,
    code: str,
    retry_after: str | None,
) -> None:
    """Each exception of the engine is one status, type and code, and says when to come back."""
    engine.script.submit_error = error
    response = await client.post(path, json=BODIES[path])
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers.get("retry-after") == retry_after
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert (body["error"]["type"], body["error"]["code"]) == (kind, code)


@pytest.mark.parametrize(
    ("error", "names", "message"),
    [
        (InvalidRequestError("top_p", "top_p must be above 0"), {}, "top_p must be above 0"),
        (InvalidRequestError("stop", "at most 16 are taken"), {}, "stop: at most 16 are taken"),
        (
            InvalidRequestError("prompt", "longer than the context"),
            {"prompt": "text"},
            "text: longer than the context",
        ),
    ],
    ids=["named already", "not named", "part of a word"],
)
def test_a_refusal_of_the_engine_names_the_field_once(
    error: InvalidRequestError, names: dict[str, str], message: str
) -> None:
    """The client's name of the field is put in front where the message lacks it."""
    assert from_engine(error, names).reply.error.message == message


def test_an_engine_error_nobody_knows_is_a_bug() -> None:
    """A new exception of the engine must get a status of its own."""
    with pytest.raises(AssertionError, match="unknown engine error"):
        from_engine(EngineError("new"), {})


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_unknown_paths_and_methods_are_answered_in_the_same_format(
    client: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    """404 and 405 look like every other error; 405 says what is allowed."""
    response = await client.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    if status == 405:
        assert response.headers["allow"] in {"POST", "GET, HEAD", "HEAD, GET"}


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"nonsense", b'"text"', b"[]", b"null", b'{"model": NaN}'),
        *(b'{"model": Infinity}', b'{"model": 1e999}', b'{"a": "\xff"}', b'{"a": "\\ud800"}'),
        *(b"[" * 50_000, b'{"a":' * 10_000, b'{"n": 1' + b"0" * 5000 + b"}"),
    ],
    ids=lambda content: content[:16].decode("latin-1"),
)
async def test_a_body_that_is_no_json_object_is_refused(
    client: httpx.AsyncClient, content: bytes
) -> None:
    """Broken, nested beyond reason, out of range, or not an object: always 400."""
    response = await client.post("/v1/chat/completions", content=content)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_json")
    assert "$" not in error["message"]


async def test_a_body_of_the_limit_is_read_and_one_byte_more_is_not(
    client: httpx.AsyncClient,
) -> None:
    """The limit of this application is 64 KiB; the refusal says so."""
    text = "x" * (64 * 1024 - len('{"text":""}'))
    at_limit = f'{{"text":"{text}"}}'.encode()
    assert (await client.post("/generate", content=at_limit)).status_code == 200
    response = await client.post("/generate", content=at_limit + b" ")
    assert response.status_code == 413
    error = response.json()["error"]
    assert error["code"] == "request_too_large"
    assert "65536 bytes" in error["message"]


async def test_a_chunked_body_is_limited_while_it_is_read(client: httpx.AsyncClient) -> None:
    """A body that does not announce its length is cut at the limit."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b" " * 8 * 1024

    response = await client.post("/generate", content=chunks())
    assert response.status_code == 413


@pytest.mark.parametrize("path", GENERATING)
async def test_a_bug_is_a_500_that_tells_nothing(
    client: httpx.AsyncClient, server: Server, engine: ScriptedEngine, path: str
) -> None:
    """The client learns no more than that; the log has the traceback and the request's id."""
    engine.script.stream_error = ZeroDivisionError("secret")
    engine.script.break_after = 1
    with capture_logs() as logs:
        response = await client.post(path, json=BODIES[path], headers={"X-Request-Id": "r9"})
        await server.idle()
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "r9"
    assert response.json()["error"]["code"] == "internal_error"
    assert "ZeroDivision" not in response.text
    assert "Traceback" not in response.text
    assert "secret" not in response.text
    assert [entry["event"] for entry in logs] == ["request failed", "request"]
    assert logs[0]["exc_info"]
    assert logs[1]["error"] == "internal_error"


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    ("error", "code"),
    [(ZeroDivisionError("secret"), "internal_error"), (WorkerFailedError(""), "worker_failed")],
    ids=["bug", "worker"],
)
async def test_a_stream_that_breaks_ends_with_an_error_event(
    client: httpx.AsyncClient,
    server: Server,
    engine: ScriptedEngine,
    path: str,
    error: Exception,
    code: str,
) -> None:
    """The status has gone out, so the error is the last event before [DONE]; the log has it too."""
    engine.script.stream_error = error
    engine.script.break_after = 1
    with capture_logs() as logs:
        response = await client.post(path, json={**BODIES[path], "stream": True})
        await server.idle()
    assert response.status_code == 200
    *_, last, done = data_of(response.text)
    assert done == "[DONE]"
    assert f'"code":"{code}"' in last
    assert last.startswith('{"error":{"message":')
    assert "secret" not in last
    assert (logs[-1]["event"], logs[-1]["error"]) == ("request", code)


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    ("finish", "status", "code"), [("abort", 503, "aborted"), ("error", 500, "worker_failed")]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_the_engine_cuts_off_is_an_error(
    client: httpx.AsyncClient,
    engine: ScriptedEngine,
    path: str,
    finish: FinishReason,
    status: int,
    code: str,
    stream: bool,
) -> None:
    """Half an answer is never passed off as a whole one."""
    engine.script.finish = finish
    response = await client.post(path, json={**BODIES[path], "stream": stream})
    if stream:
        assert f'"code":"{code}"' in data_of(response.text)[-2]
    else:
        assert response.status_code == status
        assert response.json()["error"]["code"] == code


@pytest.mark.parametrize("nested", [b"[", b'[{"a":'], ids=["lists", "objects"])
@pytest.mark.parametrize("field", ["messages", "stream_options", "tools", "colour"])
async def test_a_deep_value_is_refused_by_its_field(
    client: httpx.AsyncClient, field: str, nested: bytes
) -> None:
    """A depth that the parser takes, but a walk over the value might not."""
    closing = nested.replace(b'{"a":', b"}")[::-1].replace(b"[", b"]")
    depth = 900 // len(closing)
    content = {**CHAT, field: None}
    body = json.dumps(content).encode()
    body = body.replace(b"null", nested * depth + b"1" + closing * depth)
    response = await client.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(field)


@pytest.mark.parametrize(
    "text", [rb"\ud800", rb"\uD800", rb"\udc00", rb"\ud800 and more", rb"\ud800\u0041"]
)
async def test_half_of_a_surrogate_pair_is_what_the_refusal_speaks_of(
    client: httpx.AsyncClient, text: bytes
) -> None:
    """It is no character, so no prompt can hold it; the body is not said to be truncated."""
    response = await client.post("/generate", content=b'{"text":"' + text + b'"}')
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "surrogate pair" in message
    assert "truncated" not in message


@pytest.mark.parametrize("path", ["/health/", "/v1/models/scripted/", "/v1/completions/"])
async def test_a_slash_too_many_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    """Nothing is redirected to a host that the request names."""
    response = await client.get(path, headers={"Host": "elsewhere.example"})
    assert response.status_code == 404
    assert "location" not in response.headers
    assert response.json()["error"]["type"] == "invalid_request_error"


LONG = "x" * 50_000


@pytest.mark.parametrize(
    "fields",
    [
        {"model": LONG},
        {LONG: 1},
        {"messages": [{"role": LONG}]},
        {"messages": [{"role": "user", LONG: 1}]},
        {"messages": [{"role": "user", "content": [{"type": LONG}]}]},
    ],
    ids=["model", "field", "role", "nested field", "tag"],
)
async def test_a_refusal_repeats_little_of_what_was_sent(
    client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    """A name of megabytes does not come back; its beginning may."""
    response = await client.post("/v1/chat/completions", json={**CHAT, **fields})
    assert response.status_code in {400, 404}
    assert len(response.content) < 500
