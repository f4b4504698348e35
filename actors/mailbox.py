"""Mailboxes: bounded queues between actors that never make a sender wait.

Every message belongs to a request that holds a credit of the gate, or is one of a fixed number, so
a mailbox sized from the credits cannot overflow; if it does, that is a bug and raises.  Since
nobody waits to send, no two actors can wait for each other.
"""

from collections import deque
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class MailboxFullError(RuntimeError):
    """More messages are under way than credits allow: a bug in the protocol between actors."""


class Mailbox(Generic[T]):
    """Messages to one actor, which alone takes them."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self._size = size
        self._messages: deque[T] = deque()
        self._arrival = anyio.Event()

    def post(self, message: T) -> None:
        """Add *message*; it is taken after those that are there."""
        if len(self._messages) >= self._size:
            raise MailboxFullError(f"the mailbox of the {self.name} holds {self._size} messages")
        self._messages.append(message)
        self._arrival.set()

    async def take(self) -> list[T]:
        """Wait until there is a message, then take all that are there."""
        while not self._messages:
            self._arrival = anyio.Event()
            await self._arrival.wait()
        return self.drain()

    def drain(self) -> list[T]:
        """Take all messages that are there, if any."""
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def __len__(self) -> int:
        return len(self._messages)
