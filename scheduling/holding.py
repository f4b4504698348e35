"""Delay scheduling: who waits for whom to compute a prefix.

A follower is held until its leader has reached a position of its own prompt, or is gone.  The cache
owner says whom a request must wait for; this book only remembers it.
"""

from radixd.cache.messages import RequestId
from radixd.scheduling.requests import Request


class Followers:
    """Held requests, by the leader that each waits for."""

    def __init__(self) -> None:
        self._by_leader: dict[RequestId, dict[RequestId, Request]] = {}

    def hold(self, follower: Request, leader: RequestId, until: int) -> None:
        """Let *follower* wait until *leader* has reached *until*, in tokens."""
        follower.leader, follower.until = leader, until
        self._by_leader.setdefault(leader, {})[follower.id] = follower

    def forget(self, follower: Request) -> None:
        """Hold *follower* no longer."""
        assert follower.leader is not None
        held = self._by_leader[follower.leader]
        del held[follower.id]
        if not held:
            del self._by_leader[follower.leader]
        follower.leader = None

    def of(self, leader: RequestId) -> list[Request]:
        """Return who waits for *leader*, in the order in which they were held."""
        return list(self._by_leader.get(leader, {}).values())

    def leaders(self) -> list[RequestId]:
        """Return everyone who is waited for."""
        return list(self._by_leader)

    def clear(self) -> None:
        """Forget all."""
        self._by_leader.clear()

    def __len__(self) -> int:
        return sum(map(len, self._by_leader.values()))
