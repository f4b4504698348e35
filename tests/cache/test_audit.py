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


def forgotten_lock(cache: PrefixCache) -> None:
    """Unlock a node that is leased."""
    cache.match(pack([1, 2, 3])).node.locks = 0


def free_and_in_use(cache: PrefixCache) -> None:
    """Offer a page of the tree for the taking."""
    cache.pool._free.append(next(cache.tree.walk()).pages[0])


def quarantined_and_in_use(cache: PrefixCache) -> None:
    """Let a page of the tree wait for a step."""
    cache.pool._fenced.append((9, next(cache.tree.walk()).pages[:1]))


def tree_drifts(cache: PrefixCache) -> None:
    """Count a page too few."""
    cache._tree_pages -= 1


def pending_drifts(cache: PrefixCache) -> None:
    """Count a page as pending that is ready."""
    cache._pending += 1


def leased_and_queued(cache: PrefixCache) -> None:
    """Let a leased leaf be a candidate for eviction."""
    cache._queue.push(cache.match(pack([1, 2, 3])).node)


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
        (forgotten_lock, "has 0 locks, not 1"),
        (free_and_in_use, "belongs to free and to node"),
        (quarantined_and_in_use, "belongs to quarantined and to node"),
        (tree_drifts, "are tree, and the books say"),
        (pending_drifts, "0 pages are pending, and the books say 1"),
        (leased_and_queued, "1 leaves can be evicted, and 2 are queued"),
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
