"""The admission gate: so many requests at a time, numbered in the order of arrival.

A request's credit covers all messages about it.  It is given back when the last of them has been
delivered, which is what bounds every mailbox.
"""

import anyio

from radixd.actors.generation import DrainingError, OverloadedError
from radixd.cache.messages import RequestId

RETRY_AFTER = 1.0
"""Seconds that a client is told to wait; a request at the front takes about as long."""


class Gate:
    """Credits for requests."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._next = 1
        self._inside: set[RequestId] = set()
        self._closed = False
        self._empty = anyio.Event()

    @property
    def inside(self) -> int:
        """Requests that hold a credit."""
        return len(self._inside)

    @property
    def closed(self) -> bool:
        """Whether new requests are refused for good."""
        return self._closed

    def enter(self) -> RequestId:
        """Take a credit.

        Raises `DrainingError` after `close`, `OverloadedError` when no credit is left.
        """
        if self._closed:
            raise DrainingError(RETRY_AFTER)
        if len(self._inside) >= self.limit:
            raise OverloadedError(RETRY_AFTER)
        request = RequestId(self._next)
        self._next += 1
        self._inside.add(request)
        return request

    def leave(self, request: RequestId) -> None:
        """Give the credit of *request* back."""
        self._inside.remove(request)
        if self._closed and not self._inside:
            self._empty.set()

    def close(self) -> None:
        """Refuse new requests from now on."""
        self._closed = True
        if not self._inside:
            self._empty.set()

    def abandon(self) -> None:
        """Close, and forget who is inside: the engine has stopped, and nobody will leave."""
        self._closed = True
        self._inside.clear()
        self._empty.set()

    async def empty(self) -> None:
        """Wait until the gate is closed and the last request has left."""
        await self._empty.wait()
