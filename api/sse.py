"""Server-sent events: an answer that goes out as it is made.

Each event is one line ``data: ...`` and an empty line.  While the next one is not there, a comment
is sent at intervals, so that no proxy takes a queued request for a dead one; clients skip comments.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from starlette.types import Send

MEDIA_TYPE: Final = "text/event-stream"

DONE: Final = b"data: [DONE]\n\n"
"""Ends every stream, as OpenAI's do."""

KEEP_ALIVE: Final = b": keep-alive\n\n"

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the events back otherwise
]


def event(data: bytes) -> bytes:
    """Return the event that carries *data*, which has no line break."""
    return b"data: " + data + b"\n\n"


async def send_events(send: Send, events: AsyncGenerator[bytes], keep_alive: float) -> None:
    """Send *events* as one response; a comment after each *keep_alive* seconds without any."""
    loop = asyncio.get_running_loop()
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    last = loop.time()

    async def fill_silence() -> None:
        nonlocal last
        while True:
            silence = loop.time() - last
            if silence < keep_alive:
                await asyncio.sleep(keep_alive - silence)
                continue
            last = loop.time()
            await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})

    filler = asyncio.create_task(fill_silence())
    try:
        async with contextlib.aclosing(events):
            async for data in events:
                last = loop.time()
                await send({"type": "http.response.body", "body": data, "more_body": True})
    finally:
        filler.cancel()
        # A send that failed in the filler fails for the next event as well.
        await asyncio.gather(filler, return_exceptions=True)
    await send({"type": "http.response.body", "body": b"", "more_body": False})
