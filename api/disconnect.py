"""Clients that leave: what is being computed for them stops."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive, Send


class ClientDisconnectedError(Exception):
    """The client left before its answer was complete."""


async def until_disconnect(
    receive: Receive, send: Send, answer: Callable[[Send], Awaitable[None]]
) -> None:
    """Run *answer*, which sends through what it is given; cancel it if the client leaves.

    The request's body has been received.  Raises `ClientDisconnectedError`.
    """
    complete = False

    async def watched_send(message: Message) -> None:
        nonlocal complete
        complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await send(message)

    async def answering() -> None:
        await answer(watched_send)

    async def leaving() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    work, departure = asyncio.create_task(answering()), asyncio.create_task(leaving())
    try:
        await asyncio.wait((work, departure), return_when=asyncio.FIRST_COMPLETED)
        # Servers report a disconnect after a complete answer too.
        if not work.done() and not complete:
            raise ClientDisconnectedError
        await work
    finally:
        work.cancel()
        departure.cancel()
        await asyncio.wait((work, departure))
