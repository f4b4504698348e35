"""`radixd.cache.audit`: each kind of damage is seen and named."""

from collections.abc import Callable

import pytest

from harness.cache import insert
from radixd.cache.audit import audit
from radixd.cache.messages import RequestId
from radixd.cache.prefix_cache import PrefixCache
from radixd.cache.tokens import pack


def healthy() -> PrefixCache:
    """Return a cache with two branches, one of them leased."""
    cache = PrefixCache(capacity_pages=16, page_size=1)
    insert(cache, [1, 2, 3])
    insert(cache, [1, 2, 4, 5])
    cache.acquire(RequestId(9), cache.match(pack([1, 2, 3])))
    return cache


def double_owner(cache: PrefixCache) -> None:
    """Put one page under two nodes."""
    nodes = list(cache.tree.walk())
    nodes[0].pages[0] = nodes[1].pages[0]


def lost_page(cache: PrefixCache) -> None:
    """Take a page and forget it."""
    cache.pool.take(1)


def wrong_lock(cache: PrefixCache) -> None:
    """Lock a node under no lease."""
    cache.match(pack([1, 2, 4, 5])).node.locks = 1


def lease_outside(cache: PrefixCache) -> None:
    """Remove a node that is leased."""
    cache.tree.trim(cache.match(pack([1, 2, 3])).node, 0)


def uncounted(cache: PrefixCache) -> None:
    """Let the sums drift."""
    cache._evictable += 1


def unqueued(cache: PrefixCache) -> None:
    """Let a leaf be forgotten by eviction."""
    cache._queue.withdraw(cache.match(pack([1, 2, 4, 5])).node)


def test_a_healthy_cache_has_an_owner_for_every_page() -> None:
    """And no problem."""
    report = audit(healthy(), {})
    assert report.problems == ()
    assert report.owners[0] == "scratch"
    assert all(report.owners)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (double_owner, "belongs to"),
        (lost_page, "is lost"),
        (wrong_lock, "has 1 locks, not 0"),
        (lease_outside, "leases a node that is not in the tree"),
        (uncounted, "are evictable, and the books say"),
        (unqueued, "leaves can be evicted"),
    ],
)
def test_damage_is_named(damage: Callable[[PrefixCache], None], words: str) -> None:
    """Each kind, in words."""
    cache = healthy()
    damage(cache)
    assert any(words in problem for problem in audit(cache, {}).problems)


def test_a_pending_page_under_no_lease_is_a_problem() -> None:
    """Nobody would ever compute it."""
    cache = PrefixCache(capacity_pages=16, page_size=1)
    lease = cache.acquire(RequestId(1), cache.match(b""))
    cache.enter(lease, pack([1, 2]), cache.take(2))
    cache.leases.close(lease)
    lease.node.locks = 0
    assert any("under no lease" in problem for problem in audit(cache, {}).problems)


def test_private_pages_have_their_request_as_owner() -> None:
    """An operator can ask who has a page."""
    cache = PrefixCache(capacity_pages=16, page_size=1)
    (page,) = cache.take(1)
    report = audit(cache, {RequestId(7): [page]})
    assert report.problems == ()
    assert report.owners[page] == "request 7"
