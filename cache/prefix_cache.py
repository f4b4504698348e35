"""The prefix cache: tree, pool, leases and eviction queue under one set of books.

Every operation leaves the books balanced: free, quarantined, scratch and tree pages, and those that
callers hold privately, are the whole pool.  The cache knows of requests only as the holders of
leases; what a request is, and when it may run, is `radixd.cache.owner`'s business.

Order needs no clock: a tick counts the leases taken and given back.

With ``enabled=False`` nothing is ever matched or kept, so every request computes its own prompt.
"""

from array import array
from typing import NamedTuple

from radixd.cache.eviction import EvictionPolicy, EvictionQueue, LeastRecentlyUsed
from radixd.cache.leases import Lease, LeaseBook
from radixd.cache.messages import RequestId
from radixd.cache.pool import PagePool
from radixd.cache.tree import Node, Position, RadixTree


class Displaced(NamedTuple):
    """A pending page turned ready with another request's page: *leader* need not compute it."""

    leader: RequestId
    page: int
    """The leader's own page, which no longer is in the tree."""


class Stored(NamedTuple):
    """What became of a computed page that was entered."""

    page: int
    """The page that the tree holds: the one given, or the equal one it had already."""
    displaced: Displaced | None


class PrefixCache:
    """See the module.  Pages and depths are counted in pages, tokens are packed."""

    def __init__(
        self,
        *,
        capacity_pages: int,
        page_size: int,
        policy: EvictionPolicy | None = None,
        enabled: bool = True,
    ) -> None:
        self.page_size = page_size
        self.enabled = enabled
        self.tree = RadixTree(page_size)
        self.pool = PagePool(capacity_pages)
        self.leases = LeaseBook()
        self.evicted_total = 0
        """Pages evicted so far."""
        self._queue = EvictionQueue(policy or LeastRecentlyUsed())
        self._tick = 0
        self._tree_pages = 0
        self._evictable = 0
        self._pending = 0

    # Questions.

    def match(self, tokens: bytes, pages_max: int | None = None) -> Position:
        """Return how far the tree holds *tokens*, ready or not.  Changes nothing."""
        if not self.enabled:
            return Position(self.tree.root, 0)
        whole = len(tokens) // self.tree.page_bytes
        return self.tree.match(tokens, whole if pages_max is None else min(whole, pages_max))

    def above(self, position: Position, depth: int) -> Position:
        """Return the place *depth* pages deep on the path to *position*."""
        node = position.node
        while node.parent is not None and node.start >= depth:
            node = node.parent
        return Position(node, depth)

    def leader_at(self, position: Position, depth: int) -> tuple[RequestId, int]:
        """Return who leads the page at *depth* of a path, and where its part of the path ends.

        The page must not be ready.
        """
        node, end = position.node, position.depth
        while node.start > depth:
            assert node.parent is not None
            node, end = node.parent, node.start
        assert node.leader is not None, "the page is ready"
        return node.leader, min(end, node.end)

    @property
    def tree_pages(self) -> int:
        """Pages in the tree."""
        return self._tree_pages

    @property
    def evictable_pages(self) -> int:
        """Tree pages under no lease."""
        return self._evictable

    @property
    def pending_pages(self) -> int:
        """Tree pages that are not ready; all of them are under a lease."""
        return self._pending

    def available_beside(self, position: Position) -> int:
        """Return how many pages could be taken while a lease at *position* is out."""
        spared = 0
        node = position.node
        while node.parent is not None and node.locks == 0:
            # A lease splits the last node; what lies below the cut stays evictable.
            spared += min(node.end, position.depth) - node.start
            node = node.parent
        return self.pool.free + self._evictable - spared

    def page_table(self, node: Node) -> "array[int]":
        """Return the page ids from the root to the end of *node*."""
        table = array("I")
        for step in self.tree.path(node):
            table.extend(step.pages)
        return table

    # Leases.

    def acquire(self, holder: RequestId, position: Position) -> Lease:
        """Lock the path to *position*, splitting the node that it lies inside, and touch it."""
        node, depth = position
        if depth < node.end:
            node = self.tree.split(node, depth)
        self._tick += 1
        self._lock(node)
        return self.leases.open(holder, node, self._tick)

    def give_back(self, lease: Lease, fence: int = 0) -> None:
        """Unlock and touch a lease's path; what its holder led and never computed goes.

        *fence* is the last step that may touch the pages that become free.
        """
        if not self.leases.close(lease):
            return
        node = self._drop_uncomputed(lease, fence)
        self._tick += 1
        self._unlock(node)
        self._join_upwards(node)

    def void_all(self) -> None:
        """The memory is gone: empty the tree, free every page, begin a new generation."""
        self.leases.void_all()
        self.pool.reset()
        version = self.tree.version
        self.tree = RadixTree(self.page_size)
        self.tree.version = version + 1
        self._queue = EvictionQueue(self._queue.policy)
        self._tree_pages = self._evictable = self._pending = 0

    # Pages.

    def take(self, count: int) -> "array[int]":
        """Hand out *count* pages, evicting what must go; they must be available."""
        if self.pool.free < count:
            self.evict(count - self.pool.free)
        return self.pool.take(count)

    def evict(self, count: int) -> int:
        """Free up to *count* unlocked pages, leaf by leaf from the tail; return how many.

        Returns less than *count* if the rest is under leases.  O(log n) a leaf.
        """
        freed = 0
        while freed < count:
            leaf = self._queue.first()
            if leaf is None:
                break
            keep = max(0, len(leaf.pages) - (count - freed))
            pages = self.tree.trim(leaf, keep)
            # No fence: nobody holds these pages, and whoever did has no step left.
            self.pool.give(pages)
            freed += len(pages)
            if keep == 0:
                self._queue.withdraw(leaf)
                self._enqueue_if_candidate(leaf.parent)
        self._tree_pages -= freed
        self._evictable -= freed
        self.evicted_total += freed
        return freed

    # Content.

    def enter(self, lease: Lease, key: bytes, pages: "array[int]") -> None:
        """Put the pages that the holder is about to compute below its lease, as its leader."""
        node = self.tree.add(lease.node, key, pages, ready=0, leader=lease.holder)
        node.locks = 1
        node.last_used = self._tick
        self._tree_pages += len(pages)
        self._pending += len(pages)
        lease.node = node

    def schedule(self, lease: Lease, depth: int) -> None:
        """Note that a step writes the holder's path up to *depth* pages."""
        node = lease.node
        while node.leader == lease.holder:
            node.scheduled = max(node.scheduled, min(len(node.pages), depth - node.start))
            assert node.parent is not None
            node = node.parent

    def commit(self, lease: Lease, depth: int) -> None:
        """Make the holder's path ready up to *depth* pages: their KV has been written."""
        node = lease.node
        while node.leader == lease.holder:
            self._set_ready(node, max(node.ready, min(len(node.pages), depth - node.start)))
            assert node.parent is not None
            node = node.parent

    def store(self, lease: Lease, key: bytes, page: int) -> Stored:
        """Enter one computed page below *lease*, which then covers it.

        If the tree has an equal page already, that one stays and the caller frees its own (see
        `Stored.page`).  If the equal page is pending, it turns ready as *page* and its leader is
        displaced.
        """
        node = lease.node
        child = node.children.get(key)
        if child is None:
            self._append(lease, node, key, page)
            return Stored(page, None)
        if len(child.pages) > 1:
            child = self.tree.split(child, child.start + 1)
        displaced = None
        if child.pending:
            assert child.leader is not None
            displaced = Displaced(child.leader, child.pages[0])
            child.pages[0] = page
            self._set_ready(child, 1)
        self._lock_one(child)
        lease.node = child
        return Stored(child.pages[0], displaced)

    # Inside.

    def _append(self, lease: Lease, node: Node, key: bytes, page: int) -> None:
        # The only holder's own leaf grows in place, or every page would be a node.
        if node.parent is not None and not node.children and not node.pending and node.locks == 1:
            self.tree.extend(node, key, page)
        else:
            lease.node = self.tree.add(node, key, array("I", (page,)), ready=1)
            lease.node.locks = 1
            lease.node.last_used = self._tick
        self._tree_pages += 1

    def _set_ready(self, node: Node, ready: int) -> None:
        self._pending -= ready - node.ready
        node.ready = ready
        node.scheduled = max(node.scheduled, ready)
        if not node.pending:
            node.leader = None

    def _lock(self, node: Node) -> None:
        while node.parent is not None:
            self._lock_one(node)
            node = node.parent

    def _lock_one(self, node: Node) -> None:
        if node.locks == 0:
            self._evictable -= len(node.pages)
            self._queue.withdraw(node)
        node.locks += 1
        node.last_used = self._tick

    def _unlock(self, node: Node) -> None:
        while node.parent is not None:
            assert node.locks > 0
            node.locks -= 1
            node.last_used = self._tick
            if node.locks == 0:
                self._evictable += len(node.pages)
                self._enqueue_if_candidate(node)
            node = node.parent

    def _enqueue_if_candidate(self, node: Node | None) -> None:
        if node is not None and node.parent is not None and not node.children and node.locks == 0:
            self._queue.push(node)

    def _drop_uncomputed(self, lease: Lease, fence: int) -> Node:
        node = lease.node
        while node.leader == lease.holder:
            assert node.parent is not None
            pages = self.tree.trim(node, node.ready)
            self._tree_pages -= len(pages)
            self._pending -= len(pages)
            self.pool.give(pages, fence)
            node.leader = None
            if node.ready:
                break
            node = node.parent
        return node

    def _join_upwards(self, node: Node) -> None:
        while node.parent is not None and node.parent.parent is not None:
            upper = node.parent
            # Both were on the path that was just touched, so they are equally recent.
            if upper.locks == 0 and len(upper.children) == 1:
                self.tree.join(node)
            else:
                node = upper
