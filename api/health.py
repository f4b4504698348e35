"""What machines ask about the daemon: whether it lives, whether to send requests, its numbers."""

from typing import Literal

import msgspec

from radixd.api.call import Call
from radixd.api.errors import ApiError, not_running
from radixd.metrics.registry import CONTENT_TYPE

READY_RETRY_SECONDS = 1.0


class Health(msgspec.Struct, frozen=True):
    """The daemon runs."""

    status: Literal["ok"]


class Ready(msgspec.Struct, frozen=True):
    """The daemon takes requests."""

    status: Literal["ready"]


async def health(call: Call[None]) -> None:
    """Answer 200 while all actors run; raises `ApiError` 503 otherwise."""
    if not call.engine.alive:
        raise not_running()
    await call.reply(Health("ok"))


async def ready(call: Call[None]) -> None:
    """Answer 200 while requests are taken and computed; raises `ApiError` 503 otherwise."""
    if not call.engine.ready:
        message = "the server is starting, shutting down, or waits for its worker"
        raise ApiError(503, message, code="not_ready", retry_after=READY_RETRY_SECONDS)
    await call.reply(Ready("ready"))


async def metrics(call: Call[None]) -> None:
    """Answer with all metrics."""
    await call.reply_bytes(call.engine.metrics.render(), CONTENT_TYPE)


async def cache_statistics(call: Call[None]) -> None:
    """Answer with the numbers of cache, scheduler and gate."""
    await call.reply(await call.engine.statistics())
