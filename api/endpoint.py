"""One row of the route table, and how a request to it is served.

`Route` says what a request and an answer look like; the OpenAPI document is made of the same rows.
`Endpoint` is the ASGI application of one row: it reads and decodes the body, then runs the row's
handler for as long as the client stays.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from radixd.api.body import NO_TOLERANCE, Tolerance, decode_body, read_body
from radixd.api.call import JSON, Call
from radixd.api.disconnect import until_disconnect
from radixd.api.engine import ServingEngine


@dataclass(frozen=True, kw_only=True)
class Route:
    """What one method of one path takes, gives and is for."""

    method: Literal["GET", "POST"]
    path: str
    """As Starlette writes it; parameters in braces."""
    summary: str
    handler: Callable[[Call[Any]], Awaitable[None]]
    request: type[msgspec.Struct] | None = None
    tolerance: Tolerance = NO_TOLERANCE
    """Fields besides those of *request* that are accepted."""
    response: Any
    """Type of the body of a 200."""
    media_type: str = JSON
    event: Any = None
    """Type of one server-sent event, where the answer can be a stream of them."""
    errors: tuple[int, ...] = ()
    """Statuses besides 200, and besides 400 and 500, which every route has."""


@dataclass(frozen=True)
class Limits:
    """How long a silence and how large a body may be."""

    keep_alive: float
    """Seconds without an event after which a stream gets a comment."""
    body_bytes: int


class Endpoint:
    """The ASGI application of one `Route`; errors leave it as exceptions."""

    def __init__(self, route: Route, engine: ServingEngine, limits: Limits) -> None:
        self._route = route
        self._engine = engine
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        content = await read_body(receive, Headers(scope=scope), self._limits.body_bytes)
        body = None
        if self._route.request is not None:
            body = decode_body(content, self._route.request, self._route.tolerance)

        async def answer(send: Send) -> None:
            path_params, record = scope["path_params"], scope["radixd.record"]
            keep_alive = self._limits.keep_alive
            await self._route.handler(
                Call(self._engine, body, path_params, record, send, keep_alive)
            )

        await until_disconnect(receive, send, answer)
