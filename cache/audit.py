"""The ownership audit: who has each page, and whether the books agree.

It reports and never raises: what to do about a problem is for people to decide.
"""

from array import array
from collections.abc import Iterable, Mapping

import msgspec

from radixd.cache.messages import RequestId
from radixd.cache.prefix_cache import PrefixCache
from radixd.cache.tree import Node


class AuditReport(msgspec.Struct, frozen=True):
    """The owner of each page, by page id, and every disagreement in words."""

    owners: tuple[str, ...]
    problems: tuple[str, ...]


def audit(cache: PrefixCache, private: Mapping[RequestId, Iterable[int]]) -> AuditReport:
    """Check *cache* and the pages that requests hold outside the tree.  O(pages + nodes)."""
    problems: list[str] = []
    owners = [""] * cache.pool.capacity

    def claim(pages: Iterable[int], owner: str) -> None:
        for page in pages:
            if owners[page]:
                problems.append(f"page {page} belongs to {owners[page]} and to {owner}")
            owners[page] = owner

    claim((0,), "scratch")
    claim(cache.pool.free_pages(), "free")
    claim(cache.pool.quarantined_pages(), "quarantined")
    for request, pages in private.items():
        claim(pages, f"request {request}")
    nodes = list(cache.tree.walk())
    for node in nodes:
        claim(node.pages, f"node at page {node.start}")
    problems += [f"page {page} is lost" for page, owner in enumerate(owners) if not owner]
    problems += _wrong_locks(cache, nodes)
    problems += _wrong_sums(cache, nodes)
    return AuditReport(tuple(owners), tuple(problems))


def _wrong_locks(cache: PrefixCache, nodes: list[Node]) -> list[str]:
    expected: dict[Node, int] = dict.fromkeys(nodes, 0)
    problems = []
    for lease in cache.leases:
        for node in cache.tree.path(lease.node):
            if node not in expected:
                problems.append(f"request {lease.holder} leases a node that is not in the tree")
            else:
                expected[node] += 1
    for node, locks in expected.items():
        if node.locks != locks:
            problems.append(
                f"a node of {len(node.pages)} pages has {node.locks} locks, not {locks}"
            )
        if node.pending and locks == 0:
            problems.append(f"a pending node of {len(node.pages)} pages is under no lease")
    return problems


def _wrong_sums(cache: PrefixCache, nodes: list[Node]) -> list[str]:
    sums = array("q", (0, 0, 0))
    for node in nodes:
        sums[0] += len(node.pages)
        sums[1] += len(node.pages) if node.locks == 0 else 0
        sums[2] += len(node.pages) - node.ready
    books = (cache.tree_pages, cache.evictable_pages, cache.pending_pages)
    names = ("tree", "evictable", "pending")
    problems = [
        f"{counted} pages are {name}, and the books say {book}"
        for name, counted, book in zip(names, sums, books, strict=True)
        if counted != book
    ]
    waiting_to_go = {node for node in nodes if node.locks == 0 and not node.children}
    queued = {node for node in nodes if node.queued}
    if waiting_to_go != queued:
        problems.append(f"{len(waiting_to_go)} leaves can be evicted, and {len(queued)} are queued")
    return problems
