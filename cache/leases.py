"""Leases: who holds which place in the tree, and since when.

A lease locks every node from the root down to its own.  Giving one back twice, or one that was
never taken, is an error of the caller's and raises; a lease of an older generation, whose pages
went with the worker's memory, is void and giving it back does nothing.
"""

from collections.abc import Iterator

from radixd.cache.messages import RequestId
from radixd.cache.tree import Node


class LeaseError(RuntimeError):
    """A lease is unknown, or was given back before."""


class Lease:
    """A lock on the path that ends at *node*."""

    __slots__ = ("generation", "holder", "node", "since")

    def __init__(self, holder: RequestId, node: Node, since: int, generation: int) -> None:
        self.holder = holder
        self.node = node
        """Moves down as the holder's own pages enter the tree."""
        self.since = since
        """Tick at which it was taken."""
        self.generation = generation


class LeaseBook:
    """Every lease that is out."""

    def __init__(self) -> None:
        self.generation = 0
        self._out: dict[int, Lease] = {}

    def open(self, holder: RequestId, node: Node, since: int) -> Lease:
        """Write a new lease into the book."""
        lease = Lease(holder, node, since, self.generation)
        self._out[id(lease)] = lease
        return lease

    def close(self, lease: Lease) -> bool:
        """Strike *lease* out; False if it is void.  Raises `LeaseError` if it is not out."""
        if lease.generation < self.generation:
            return False
        if self._out.pop(id(lease), None) is not lease:
            raise LeaseError(f"the lease of request {lease.holder} is not out")
        return True

    def void_all(self) -> None:
        """Begin a new generation: no lease is out any more."""
        self.generation += 1
        self._out.clear()

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._out.values())

    def __len__(self) -> int:
        return len(self._out)
