"""What surrounds every request: its id, its log line, and its answer where an error ends it.

A client may name its request in ``X-Request-Id``; the answer carries that name, or a new one, and
so does each line that is logged meanwhile.  Prompts and answers are never logged.
"""

import asyncio
import re
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixd.actors.generation import EngineError, TokenUsage
from radixd.api.disconnect import ClientDisconnectedError
from radixd.api.errors import ApiError, aborted, from_engine, internal_error, invalid

log: structlog.typing.FilteringBoundLogger = structlog.get_logger("radixd.api")

REQUEST_ID_LENGTH: Final = 128

CLIENT_CLOSED: Final = 499
"""Status, in the log alone, of a request whose client left before there was one; as in nginx."""

_REQUEST_ID: Final = re.compile(rf"[\x20-\x7e]{{1,{REQUEST_ID_LENGTH}}}")

_POLLED: Final = frozenset({"/health", "/ready", "/metrics"})
"""Paths that machines ask every few seconds: their log lines are for debugging."""


@dataclass(slots=True)
class Record:
    """What is known of one request; it ends as a log line."""

    request_id: str
    named: bool
    """Whether the client gave the id."""
    started: float
    """Loop time, in seconds."""
    status: int | None = None
    usages: dict[str, TokenUsage] = field(default_factory=dict)
    """Tokens so far of each of its prompts, by the id of the prompt's stream."""
    first_token_seconds: float | None = None
    error: str | None = None
    """Code of the error, also of one that came after the status was sent."""

    def rename(self, request_id: str) -> None:
        """Use *request_id*, which the client gave, from here on."""
        self.request_id = request_id
        self.named = True
        structlog.contextvars.bind_contextvars(request_id=request_id)


def check_request_id(request_id: str, param: str) -> str:
    """Return *request_id*; raises `ApiError` 400 unless it is short printable ASCII."""
    if _REQUEST_ID.fullmatch(request_id) is None:
        raise invalid(param, f"must be 1 to {REQUEST_ID_LENGTH} printable ASCII characters")
    return request_id


class RequestContext:
    """ASGI middleware.  The application finds the `Record` in ``scope["radixd.record"]``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = asyncio.get_running_loop().time()
        record = Record(request_id=uuid.uuid4().hex, named=False, started=started)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                id_header = (b"x-request-id", record.request_id.encode("ascii"))
                message = {**message, "headers": [*message.get("headers", ()), id_header]}
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=record.request_id):
            try:
                await self._serve({**scope, "radixd.record": record}, receive, send_with_id)
            finally:
                _log_end(scope, record)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: Record = scope["radixd.record"]
        try:
            if (name := Headers(scope=scope).get("x-request-id")) is not None:
                record.rename(check_request_id(name, "X-Request-Id"))
            await self._app(scope, receive, send)
            return
        except ClientDisconnectedError:
            record.error = "client_disconnected"
            record.status = record.status or CLIENT_CLOSED
            return
        except ApiError as error:
            answer = error
        except EngineError as error:
            answer = from_engine(error, {})
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                raise  # something within was cancelled, not this request
            # A server cancels the request's task to cut it off, and logs all that leaves the
            # application as its failure.  Nothing of the task is left to run but this.
            answer = aborted()
            if record.status is not None:
                record.error = answer.code
                return
        except Exception:
            log.exception("request failed")
            if record.status is not None:
                raise  # too late to answer: the server cuts the connection
            answer = internal_error()
        record.error = answer.code
        await answer.response()(scope, receive, send)


def _log_end(scope: Scope, record: Record) -> None:
    fields: dict[str, Any] = {
        "method": scope["method"],
        "path": scope["path"],
        "status": record.status,
        "seconds": seconds_since(record.started),
        "request_id": record.request_id,
    }
    if record.first_token_seconds is not None:
        fields["first_token_seconds"] = record.first_token_seconds
    if usages := record.usages.values():
        fields["prompt_tokens"] = sum(usage.prompt_tokens for usage in usages)
        fields["cached_tokens"] = sum(usage.cached_tokens for usage in usages)
        fields["completion_tokens"] = sum(usage.completion_tokens for usage in usages)
    if record.error is not None:
        fields["error"] = record.error
    if scope["path"] in _POLLED:
        log.debug("request", **fields)
    else:
        log.info("request", **fields)


def seconds_since(started: float) -> float:
    """Return how long ago the loop time *started* was, in seconds to the microsecond."""
    return round(asyncio.get_running_loop().time() - started, 6)
