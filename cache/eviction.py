"""Which leaf goes first: an order over nodes, and a queue that never scans.

Only unlocked leaves are candidates.  The queue is a lazy heap: a node is pushed when it becomes a
candidate, and an entry counts only if it is the node's latest.  A node's key cannot change while it
is a candidate, since whatever touches a node locks it first; so no entry is ever out of date.
"""

import heapq
from typing import Protocol

from radixd.cache.tree import Node


class EvictionPolicy(Protocol):
    """An order over candidates."""

    name: str

    def key(self, node: Node) -> tuple[int, ...]:
        """Return what orders *node*: the smallest goes first."""


class LeastRecentlyUsed:
    """The leaf whose last lease was taken or given back longest ago."""

    name = "lru"

    def key(self, node: Node) -> tuple[int, ...]:
        """Order by the tick of the last use."""
        return (node.last_used,)


class EvictionQueue:
    """Candidates in the order of a policy; O(log n) a push and, amortised, a pop."""

    # Below this many entries a rebuild costs more than the stale ones do.
    _REBUILD_MIN = 64

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self._heap: list[tuple[tuple[int, ...], int, Node]] = []
        self._serial = 0
        self._valid = 0

    def push(self, node: Node) -> None:
        """Make *node* a candidate."""
        if node.queued == 0:
            self._valid += 1
        self._serial += 1
        node.queued = self._serial
        heapq.heappush(self._heap, (self.policy.key(node), self._serial, node))
        if len(self._heap) > 2 * self._valid + self._REBUILD_MIN:
            self._heap = [entry for entry in self._heap if entry[2].queued == entry[1]]
            heapq.heapify(self._heap)

    def withdraw(self, node: Node) -> None:
        """Make *node* no candidate; its entry dies in place.  O(1)."""
        if node.queued:
            node.queued = 0
            self._valid -= 1

    def first(self) -> Node | None:
        """Return the candidate that goes first, still queued, or None."""
        while self._heap:
            _, serial, node = self._heap[0]
            if node.queued == serial:
                return node
            heapq.heappop(self._heap)
        return None

    def __contains__(self, node: Node) -> bool:
        return node.queued != 0

    def __len__(self) -> int:
        return self._valid
