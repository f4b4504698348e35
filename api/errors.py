"""Errors as OpenAI's clients expect them: status, JSON body and headers.

Everything that goes wrong ends as an `ApiError`: bad requests are raised as one; the engine's and
Starlette's exceptions are translated here.  Statuses under 500 are the client's fault.
"""

import math
import re
from collections.abc import Mapping
from typing import Final, NoReturn

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from radixd.actors.generation import (
    DrainingError,
    EngineClosedError,
    EngineError,
    FailedRequestError,
    InvalidRequestError,
    OverloadedError,
    WorkerFailedError,
)

TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
"""OpenAI's ``type`` by status; every other status is an ``invalid_request_error``."""

ECHO_LENGTH: Final = 100
"""Characters of a client's own string that an error repeats."""

RESTART_SECONDS: Final = 5.0
"""``Retry-After`` of an engine that is not running: a supervisor may have it back by then."""


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    """Path of the field at fault, such as ``messages[0].role``."""
    code: str | None


class ErrorReply(msgspec.Struct, frozen=True):
    """Body of every answer whose status is not 200."""

    error: ErrorDetail


class ApiError(Exception):
    """A request that ends with *status* instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        kind = TYPES.get(status, "invalid_request_error")
        self.reply = ErrorReply(ErrorDetail(message, kind, param, code))
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))

    def response(self) -> Response:
        """Return the whole answer."""
        return Response(
            msgspec.json.encode(self.reply),
            self.status,
            headers=self.headers,
            media_type="application/json",
        )


def shortened(text: str) -> str:
    """Return *text*, which a client chose, as far as an error repeats it."""
    return text if len(text) <= ECHO_LENGTH else text[:ECHO_LENGTH] + "…"


def invalid(param: str, reason: str, code: str = "invalid_value") -> ApiError:
    """Return the 400 that blames the field at *param*."""
    return ApiError(400, f"{param}: {reason}", param=param, code=code)


def internal_error() -> ApiError:
    """Return the 500 of a bug; what happened is in the log, not in the answer."""
    return ApiError(500, "the server failed to answer; its log says more", code="internal_error")


def from_engine(error: EngineError, names: Mapping[str, str]) -> ApiError:
    """Translate *error*; *names* gives the request's names of fields for the engine's."""
    match error:
        case InvalidRequestError():
            param = names.get(error.field, error.field)
            message = error.message
            if re.search(rf"\b{re.escape(param)}\b", message) is None:
                message = f"{param}: {message}"
            return ApiError(400, message, param=param, code=error.code or "invalid_value")
        case OverloadedError():
            wait = error.retry_after
            return ApiError(429, str(error), code="rate_limit_exceeded", retry_after=wait)
        case DrainingError():
            return ApiError(503, str(error), code="draining", retry_after=error.retry_after)
        case EngineClosedError():
            return not_running()
        case WorkerFailedError():
            return worker_failed()
        case FailedRequestError():
            return internal_error()
        case _:
            raise AssertionError(f"unknown engine error {error!r}") from error


def not_running() -> ApiError:
    """Return the 503 of an engine that has stopped."""
    message = "the engine is not running"
    return ApiError(503, message, code="engine_closed", retry_after=RESTART_SECONDS)


def worker_failed() -> ApiError:
    """Return the 500 of a request that was lost with the worker."""
    return ApiError(500, "the worker failed and the request is lost", code="worker_failed")


def aborted() -> ApiError:
    """Return the 503 of a request that the server gave up, as it does when it shuts down."""
    message = "the server aborted the request before its answer was complete"
    return ApiError(503, message, code="aborted", retry_after=RESTART_SECONDS)


async def refuse_route(_request: Request, error: Exception) -> NoReturn:
    """Turn what Starlette's router raises, for unknown paths and methods, into an `ApiError`."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    raise ApiError(error.status_code, error.detail, code=code, headers=error.headers) from error
