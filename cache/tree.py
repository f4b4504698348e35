"""The radix tree over token pages: structure alone, no accounting.

A node is an edge: a run of whole pages, with the page id of each.  Children are found by the bytes
of their first page, so siblings always differ within it.  The tree knows nothing of locks, leases,
free pages or eviction; `radixd.cache.prefix_cache` keeps those books.

Along every path the pages are first ready (their KV can be read), then scheduled (a step that was
sent will write them), then unscheduled.  Each node keeps the two borders as counts of its own
pages, so computing a chunk moves a number and splits nothing.  A node with a page that is not
ready is *pending* and has a leader, the request that computes it.

The walk stops where the query forks inside an edge.  Going on into the children from there is the
bug that SGLang shipped with and fixed eight days later: it returns KV of another context.
"""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from radixd.cache.messages import RequestId
from radixd.cache.tokens import TOKEN_BYTES, common_pages


class Node:
    """A run of pages below *parent*; see the module for what the borders mean."""

    __slots__ = (
        "children",
        "key",
        "last_used",
        "leader",
        "locks",
        "pages",
        "parent",
        "queued",
        "ready",
        "scheduled",
        "start",
    )

    def __init__(
        self,
        parent: "Node | None",
        start: int,
        key: bytearray,
        pages: "array[int]",
        *,
        ready: int,
        leader: RequestId | None = None,
    ) -> None:
        self.parent = parent
        self.start = start
        """Pages on the path before this node."""
        self.key = key
        self.pages = pages
        self.children: dict[bytes, Node] = {}
        self.ready = ready
        self.scheduled = ready
        self.leader = leader
        self.locks = 0
        """Leases on this node or below it; kept by the prefix cache."""
        self.last_used = 0
        """Tick of the last lease taken or given back here; kept by the prefix cache."""
        self.queued = 0
        """Serial of the valid entry in the eviction queue, 0 for none; kept by the queue."""

    @property
    def end(self) -> int:
        """Pages on the path up to the end of this node."""
        return self.start + len(self.pages)

    @property
    def pending(self) -> bool:
        """Whether a page of this node is not ready yet."""
        return self.ready < len(self.pages)


class Position(NamedTuple):
    """A place in the tree: *depth* pages from the root, inside *node* or at its end."""

    node: Node
    depth: int


class RadixTree:
    """Nodes, and the operations that keep their shape.  Complexities: p pages, d nodes on a path.

    The root is an empty node that is never removed.
    """

    def __init__(self, page_size: int) -> None:
        self.page_bytes = page_size * TOKEN_BYTES
        self.root = Node(None, 0, bytearray(), array("I"), ready=0)
        self.nodes = 0
        self.version = 0
        """Grows whenever a match may have changed."""

    def match(self, tokens: bytes, pages_max: int) -> Position:
        """Return the deepest position whose path *tokens* begins with, at most *pages_max* deep.

        A question: splits, locks and touches nothing.  O(d + log p) comparisons.
        """
        page_bytes = self.page_bytes
        node, here, limit = self.root, 0, pages_max * page_bytes
        while here < limit:
            child = node.children.get(tokens[here : here + page_bytes])
            if child is None:
                break
            end = here + len(child.key)
            if end <= limit and tokens.startswith(child.key, here):
                node, here = child, end
                continue
            depth = here // page_bytes + common_pages(tokens, here, child.key, page_bytes)
            return Position(child, min(depth, pages_max))
        return Position(node, here // page_bytes)

    def child(self, node: Node, tokens: bytes | bytearray) -> Node | None:
        """Return the child of *node* that begins with the page *tokens* does at the node's end."""
        here = node.end * self.page_bytes
        return node.children.get(bytes(tokens[here : here + self.page_bytes]))

    def add(
        self,
        parent: Node,
        key: bytes | bytearray,
        pages: "array[int]",
        *,
        ready: int,
        leader: RequestId | None = None,
    ) -> Node:
        """Hang a new node under *parent*, whose children must not begin like *key*.  O(p)."""
        first = bytes(key[: self.page_bytes])
        assert first not in parent.children, "there is never a second node for one page"
        assert len(key) == len(pages) * self.page_bytes
        node = Node(parent, parent.end, bytearray(key), pages, ready=ready, leader=leader)
        parent.children[first] = node
        self.nodes += 1
        self.version += 1
        return node

    def extend(self, node: Node, key: bytes | bytearray, page: int) -> None:
        """Append one ready page to a leaf that is all ready.  O(1)."""
        assert not node.children
        assert not node.pending
        node.key += key
        node.pages.append(page)
        node.ready += 1
        node.scheduled += 1
        self.version += 1

    def split(self, node: Node, depth: int) -> Node:
        """Cut *node* at *depth* and return the new upper part.  O(p).

        The lower part keeps the identity, so whoever stands at the node's end still does.  Both
        keep locks and recency: what passes through one passes through the other.
        """
        at = depth - node.start
        assert 0 < at < len(node.pages)
        assert node.parent is not None
        cut = at * self.page_bytes
        upper = Node(
            node.parent, node.start, node.key[:cut], node.pages[:at], ready=min(at, node.ready)
        )
        upper.scheduled = min(at, node.scheduled)
        upper.leader = node.leader if upper.pending else None
        upper.locks = node.locks
        upper.last_used = node.last_used
        node.parent.children[bytes(node.key[: self.page_bytes])] = upper
        # Slices copy, so the halves do not keep the old arrays alive.
        node.key = node.key[cut:]
        node.pages = node.pages[at:]
        node.start += at
        node.ready -= upper.ready
        node.scheduled -= upper.scheduled
        node.parent = upper
        upper.children[bytes(node.key[: self.page_bytes])] = node
        self.nodes += 1
        return upper

    def join(self, node: Node) -> None:
        """Merge the parent of *node*, of which it is the only child, into it.  O(p)."""
        upper = node.parent
        assert upper is not None
        assert upper.parent is not None
        assert len(upper.children) == 1
        assert not upper.pending
        assert not node.pending
        upper.parent.children[bytes(upper.key[: self.page_bytes])] = node
        node.key = upper.key + node.key
        node.pages = upper.pages + node.pages
        node.ready = node.scheduled = len(node.pages)
        node.start = upper.start
        node.parent = upper.parent
        self.nodes -= 1

    def trim(self, node: Node, keep: int) -> "array[int]":
        """Cut a leaf down to its first *keep* pages and return the ids of the rest.  O(p).

        With *keep* 0 the node leaves the tree.
        """
        assert not node.children
        assert node.parent is not None
        removed = node.pages[keep:]
        if keep == 0:
            del node.parent.children[bytes(node.key[: self.page_bytes])]
            self.nodes -= 1
        else:
            del node.key[keep * self.page_bytes :]
            del node.pages[keep:]
        node.ready = min(node.ready, keep)
        node.scheduled = min(node.scheduled, keep)
        self.version += 1
        return removed

    def borders(self, position: Position) -> tuple[int, int]:
        """Return how many pages of the path to *position* are ready, and scheduled or ready.

        O(nodes that are not ready), since readiness only ends once along a path.
        """
        node, depth = position
        scheduled: int | None = None
        while node.parent is not None and node.ready == 0:
            if scheduled is None and node.scheduled:
                scheduled = node.start + node.scheduled
            node = node.parent
        ready = min(depth, node.start + node.ready)
        if scheduled is None:
            scheduled = node.start + node.scheduled
        return ready, min(depth, scheduled)

    def path(self, node: Node) -> list[Node]:
        """Return the nodes from below the root down to *node*.  O(d)."""
        nodes: list[Node] = []
        walk: Node = node
        while walk.parent is not None:
            nodes.append(walk)
            walk = walk.parent
        nodes.reverse()
        return nodes

    def walk(self) -> Iterator[Node]:
        """Yield every node but the root, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Raise `AssertionError` unless the structure is sound."""
        count = 0
        for node in self.walk():
            count += 1
            parent = node.parent
            assert parent is not None
            assert node.pages, "a node without pages stays in the tree"
            assert len(node.key) == len(node.pages) * self.page_bytes
            assert parent.children[bytes(node.key[: self.page_bytes])] is node
            assert node.start == parent.end
            assert 0 <= node.ready <= node.scheduled <= len(node.pages)
            assert node.pending == (node.leader is not None), "pending without a leader"
            if parent.parent is not None:
                assert node.ready == 0 or not parent.pending, "ready below what is not ready"
                assert node.scheduled == 0 or parent.scheduled == len(parent.pages), (
                    "scheduled below what is not scheduled"
                )
        assert count == self.nodes
