"""The HTTP application of one engine."""

from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route as StarletteRoute

from radixd.api.context import RequestContext
from radixd.api.endpoint import Endpoint, Limits
from radixd.api.engine import ServingEngine
from radixd.api.errors import refuse_route
from radixd.api.routes import ROUTES

KEEP_ALIVE_SECONDS: Final = 10.0
"""Below the idle timeouts of proxies, which start at 30 s."""

BODY_BYTES_MAX: Final = 16 * 1024 * 1024


def create_app(
    engine: ServingEngine,
    *,
    keep_alive: float = KEEP_ALIVE_SECONDS,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> Starlette:
    """Return the ASGI application that serves *engine*, which the caller starts and closes.

    A stream that has sent nothing for *keep_alive* seconds gets a comment.
    """
    limits = Limits(keep_alive, body_bytes_max)
    app = Starlette(
        routes=[
            StarletteRoute(route.path, Endpoint(route, engine, limits), methods=[route.method])
            for route in ROUTES
        ],
        middleware=[Middleware(RequestContext)],
        exception_handlers={HTTPException: refuse_route},
    )
    # A redirect would send the client to whatever host its own headers name.
    app.router.redirect_slashes = False
    return app
