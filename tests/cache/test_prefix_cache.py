"""`radixd.cache.prefix_cache`: insertion, leases, eviction and the sizes that follow from them."""

import random
from array import array

import pytest

from harness.cache import check, insert, matched
from radixd.cache.leases import Lease, LeaseError
from radixd.cache.messages import RequestId
from radixd.cache.pool import PageError
from radixd.cache.prefix_cache import PrefixCache
from radixd.cache.tokens import pack

A, B = RequestId(1), RequestId(2)


def cache(page_size: int = 1, capacity: int = 4096) -> PrefixCache:
    """Return an empty cache."""
    return PrefixCache(capacity_pages=capacity, page_size=page_size)


def pages_of(tree: PrefixCache, tokens: list[int]) -> "array[int]":
    """Return the tree's pages for *tokens*, which it must hold."""
    position = tree.match(pack(tokens))
    return tree.page_table(position.node)[: position.depth]


# What an insertion returns: how much was there, and which of the caller's pages it frees.


def test_inserting_a_whole_key_again_frees_all_of_the_callers_pages() -> None:
    """The whole key is present."""
    tree = cache()
    insert(tree, [1, 2, 3, 4])
    before = pages_of(tree, [1, 2, 3, 4])
    inserted = insert(tree, [1, 2, 3, 4])
    assert inserted.existing == 4
    assert len(inserted.freed) == 4
    assert pages_of(tree, [1, 2, 3, 4]) == before
    assert tree.tree_pages == 4


def test_inserting_a_longer_key_frees_the_pages_of_the_edge() -> None:
    """The edge is present and the key goes on."""
    tree = cache()
    insert(tree, [1, 2, 3])
    inserted = insert(tree, [1, 2, 3, 4, 5])
    assert (inserted.existing, len(inserted.freed)) == (3, 3)
    assert tree.tree_pages == 5


def test_inserting_a_key_that_forks_inside_an_edge_frees_the_pages_before_the_fork() -> None:
    """The edge is split, and only what came before the fork existed."""
    tree = cache()
    insert(tree, [1, 2, 3, 4])
    inserted = insert(tree, [1, 2, 9, 9])
    assert (inserted.existing, len(inserted.freed)) == (2, 2)
    assert (tree.tree_pages, tree.tree.nodes) == (6, 3)
    assert matched(tree, [1, 2, 3, 4]) == matched(tree, [1, 2, 9, 9]) == 4


def test_a_disabled_cache_matches_nothing() -> None:
    """What was computed is never found."""
    tree = PrefixCache(capacity_pages=64, page_size=1, enabled=False)
    assert matched(tree, [1, 2, 3]) == 0


@pytest.mark.parametrize("page_size", [4, 16])
def test_an_insertion_counts_whole_pages_alone(page_size: int) -> None:
    """A fork inside a page shares nothing of that page, and the rest of a page enters nothing."""
    tree = cache(page_size)
    key = list(range(3 * page_size))
    insert(tree, [*key, 7])
    assert tree.tree_pages == 3
    fork = key[: 2 * page_size - 1]
    assert insert(tree, [*fork, *range(500, 500 + page_size)]).existing == page_size
    assert tree.tree_pages == 4
    assert insert(tree, key[: page_size - 1]) == (0, ())


# Sizes.


def test_the_evictable_size_follows_the_leases() -> None:
    """Created, 0 to 1, a second lease, 1 to 0, deleted."""
    tree = cache()
    insert(tree, [1, 2, 3, 4])
    assert tree.evictable_pages == 4
    first = tree.acquire(A, tree.match(pack([1, 2, 3, 4])))
    assert tree.evictable_pages == 0
    second = tree.acquire(B, tree.match(pack([1, 2, 3, 4])))
    tree.give_back(first)
    assert tree.evictable_pages == 0
    tree.give_back(second)
    assert tree.evictable_pages == 4
    tree.evict(4)
    assert tree.evictable_pages == tree.tree_pages == 0
    check(tree)


def test_a_page_that_grows_under_a_lease_becomes_evictable_with_it() -> None:
    """In place at the end of a leaf, or as a node of its own."""
    tree = cache()
    insert(tree, [1, 2])
    lease = tree.acquire(A, tree.match(pack([1, 2])))
    for page in tree.take(2):
        tree.store(lease, pack([page]), page)
    assert (tree.tree_pages, tree.evictable_pages) == (4, 0)
    check(tree)
    tree.give_back(lease)
    assert tree.evictable_pages == 4


def test_what_could_be_taken_beside_a_lease_leaves_out_its_own_path() -> None:
    """Free and evictable pages, but for those that the lease is about to lock."""
    tree = cache(capacity=11)
    insert(tree, [1, 2, 3, 4])
    insert(tree, [1, 2, 5])
    assert tree.available_beside(tree.match(b"")) == 10
    assert tree.available_beside(tree.match(pack([1, 2, 3]))) == 7
    lease = tree.acquire(A, tree.match(pack([1, 2, 5])))
    assert tree.available_beside(tree.match(pack([1, 2, 5]))) == 7
    assert tree.available_beside(tree.match(pack([1, 2, 3]))) == 6
    tree.give_back(lease)


def test_a_split_leaves_the_evictable_size_as_it_is() -> None:
    """And a lease on the upper half takes just that half away."""
    tree = cache()
    insert(tree, [1, 2, 3, 4])
    lease = tree.acquire(A, tree.match(pack([1, 2])))
    assert (tree.tree.nodes, tree.evictable_pages) == (2, 2)
    check(tree)
    tree.give_back(lease)
    assert tree.evictable_pages == 4


def test_a_split_under_a_lease_passes_the_lock_on() -> None:
    """A node that is split while it is leased keeps both halves locked."""
    tree = cache()
    insert(tree, [1, 2, 3, 4])
    whole = tree.acquire(A, tree.match(pack([1, 2, 3, 4])))
    half = tree.acquire(B, tree.match(pack([1, 2])))
    assert tree.evictable_pages == 0
    tree.give_back(whole)
    assert tree.evictable_pages == 2
    tree.give_back(half)
    check(tree)


# Leases.


def test_a_lease_given_back_twice_is_an_error() -> None:
    """And so is one of nobody's; the locks stay right."""
    tree = cache()
    insert(tree, [1, 2])
    lease = tree.acquire(A, tree.match(pack([1, 2])))
    tree.give_back(lease)
    with pytest.raises(LeaseError, match="request 1"):
        tree.give_back(lease)
    check(tree)


def test_a_lease_of_lost_memory_is_void() -> None:
    """Giving it back does nothing, and certainly not to the new tree."""
    tree = cache()
    insert(tree, [1, 2])
    lease = tree.acquire(A, tree.match(pack([1, 2])))
    tree.void_all()
    insert(tree, [1, 2])
    tree.give_back(lease)
    check(tree)
    assert tree.evictable_pages == 2


def test_a_lease_at_the_root_locks_nothing() -> None:
    """It is a place to enter pages below."""
    tree = cache()
    insert(tree, [1, 2])
    lease = tree.acquire(A, tree.match(pack([9])))
    assert tree.evictable_pages == 2
    check(tree)
    tree.give_back(lease)


def test_every_place_on_a_path_can_be_leased() -> None:
    """From the root to the end, across nodes; the page table is that of the path."""
    tree = cache()
    insert(tree, [1, 2, 3, 4])
    insert(tree, [1, 2, 5])
    insert(tree, [1, 2, 3, 4, 6, 7])
    key = pack([1, 2, 3, 4, 6, 7])
    whole = list(tree.page_table(tree.match(key).node))
    for depth in range(7):
        lease = tree.acquire(A, tree.above(tree.match(key), depth))
        assert list(tree.page_table(lease.node)) == whole[:depth]
        check(tree)
        tree.give_back(lease)


def test_a_chain_is_joined_when_its_last_lease_leaves() -> None:
    """Each lease split the edge; a lease on all of it, given back, makes it one again."""
    tree = cache()
    key = list(range(20))
    insert(tree, key)
    for depth in range(1, 20):
        tree.give_back(tree.acquire(A, tree.match(pack(key[:depth]))))
        check(tree)
    assert tree.tree.nodes > 1
    other = tree.acquire(B, tree.match(pack(key[:5])))
    tree.give_back(tree.acquire(A, tree.match(pack(key))))
    assert tree.tree.nodes == 2, "what another one leases is not joined"
    tree.give_back(other)
    tree.give_back(tree.acquire(A, tree.match(pack(key))))
    assert tree.tree.nodes == 1
    check(tree)


def test_a_node_with_two_children_is_joined_with_neither() -> None:
    """A fork is a border for good."""
    tree = cache()
    insert(tree, [1, 2, 3])
    insert(tree, [1, 2, 4])
    tree.give_back(tree.acquire(A, tree.match(pack([1, 2, 3]))))
    assert tree.tree.nodes == 3
    check(tree)


# Eviction.


def test_evict_frees_less_than_asked_when_the_rest_is_leased() -> None:
    """It says how much, and what is leased stays."""
    tree = cache()
    insert(tree, [1, 2, 3])
    insert(tree, [1, 2, 9, 9])
    lease = tree.acquire(A, tree.match(pack([1, 2, 3])))
    assert tree.evict(100) == 2
    assert matched(tree, [1, 2, 3]) == 3
    assert matched(tree, [1, 2, 9, 9]) == 2
    tree.give_back(lease)
    assert tree.evict(100) == 3
    assert tree.evict(1) == 0
    check(tree)


def test_nothing_goes_when_everything_is_leased() -> None:
    """And what does not fit then raises instead of overwriting."""
    tree = cache(capacity=4)
    insert(tree, [1, 2, 3])
    lease = tree.acquire(A, tree.match(pack([1, 2, 3])))
    assert tree.evict(1) == 0
    with pytest.raises(PageError, match="1 pages are wanted and 0 are free"):
        tree.take(1)
    tree.give_back(lease)
    assert len(tree.take(1)) == 1


def test_the_least_recently_used_leaf_goes_first_from_its_tail() -> None:
    """A lease is a use; pages go one by one; a parent follows its last child."""
    tree = cache()
    insert(tree, [1, 2, 3])
    insert(tree, [1, 2, 4, 5])
    tree.give_back(tree.acquire(A, tree.match(pack([1, 2, 3]))))
    assert tree.evict(1) == 1
    assert (matched(tree, [1, 2, 4, 5]), matched(tree, [1, 2, 3])) == (3, 3)
    assert tree.evict(1) == 1
    assert (matched(tree, [1, 2, 4, 5]), matched(tree, [1, 2, 3])) == (2, 3)
    assert tree.evict(2) == 2
    assert matched(tree, [1, 2, 3]) == 1
    check(tree)


@pytest.mark.parametrize("leased_last", [[1, 2, 3], [1, 2, 4]])
def test_both_the_taking_and_the_returning_of_a_lease_are_uses(leased_last: list[int]) -> None:
    """Whoever held its lease until later stays longer, though it was taken first."""
    tree = cache()
    insert(tree, [1, 2, 3])
    insert(tree, [1, 2, 4])
    other = [1, 2, 4] if leased_last == [1, 2, 3] else [1, 2, 3]
    long = tree.acquire(A, tree.match(pack(leased_last)))
    tree.give_back(tree.acquire(B, tree.match(pack(other))))
    tree.give_back(long)
    tree.evict(1)
    assert (matched(tree, leased_last), matched(tree, other)) == (3, 2)


def test_a_parent_goes_by_its_own_use_once_its_children_are_gone() -> None:
    """It was used later than another leaf, so that one goes before it."""
    tree = cache()
    insert(tree, [1, 2, 3])
    insert(tree, [1, 2, 4])
    insert(tree, [9, 9])
    tree.give_back(tree.acquire(A, tree.match(pack([1, 2]))))
    assert tree.evict(2) == 2
    assert (matched(tree, [1, 2, 3]), matched(tree, [1, 2, 4]), matched(tree, [9, 9])) == (2, 2, 2)
    assert tree.evict(2) == 2
    assert (matched(tree, [1, 2]), matched(tree, [9, 9])) == (2, 0)
    check(tree)


def test_a_leased_child_keeps_its_parents() -> None:
    """A leaf beside it goes, and the way to it stays."""
    tree = cache()
    insert(tree, [1, 2, 3])
    insert(tree, [1, 2, 4])
    lease = tree.acquire(A, tree.match(pack([1, 2, 4])))
    assert tree.evict(10) == 1
    assert matched(tree, [1, 2, 4]) == 3
    tree.give_back(lease)
    check(tree)


def test_pages_are_taken_without_eviction_while_any_are_free() -> None:
    """And then no more are evicted than it takes."""
    tree = cache(capacity=11)
    insert(tree, [1, 2, 3, 4])
    tree.take(6)
    assert tree.evicted_total == 0
    tree.take(3)
    assert tree.evicted_total == 3
    assert matched(tree, [1, 2, 3, 4]) == 1


def test_eviction_keeps_to_the_budget() -> None:
    """After evicting down to 500 tokens, 500 are left."""
    tree = cache(capacity=10_000)
    draw = random.Random(0)
    for _ in range(50):
        insert(tree, [*range(128), *(draw.randrange(1000, 10_000) for _ in range(120))])
    tree.evict(tree.tree_pages - 500)
    assert tree.tree_pages == 500
    check(tree)


def test_the_queue_of_candidates_does_not_grow_with_use() -> None:
    """A leaf that is leased and given back a thousand times is one candidate."""
    tree = cache()
    insert(tree, [1, 2, 3])
    for _ in range(1000):
        tree.give_back(tree.acquire(A, tree.match(pack([1, 2, 3]))))
    assert len(tree._queue) == 1
    assert len(tree._queue._heap) < 100


# Pending pages.


def pending(tree: PrefixCache, holder: RequestId, tokens: list[int]) -> Lease:
    """Enter *tokens* as pages that *holder* is about to compute; return its lease."""
    lease = tree.acquire(holder, tree.match(pack(tokens)))
    own = tree.take(len(tokens) - lease.node.end)
    tree.enter(lease, pack(tokens[lease.node.end :]), own)
    check(tree)
    return lease


def test_what_was_never_computed_goes_with_its_leader() -> None:
    """What was computed stays."""
    tree = cache()
    lease = pending(tree, A, [1, 2, 3, 4])
    tree.schedule(lease, 3)
    tree.commit(lease, 2)
    assert tree.tree.borders(tree.match(pack([1, 2, 3, 4]))) == (2, 3)
    tree.give_back(lease)
    assert matched(tree, [1, 2, 3, 4]) == 2
    check(tree)


def test_chunks_move_a_border_and_split_nothing() -> None:
    """64 chunks and 4,000 decoded tokens are at most three nodes, one once the lease is gone."""
    tree = cache(page_size=16, capacity=1000)
    tokens = [1000 + i for i in range(64 * 16 * 4)]
    packed = pack(tokens)
    lease = tree.acquire(A, tree.match(packed))
    tree.enter(lease, packed, tree.take(256))
    for chunk in range(1, 65):
        tree.schedule(lease, chunk * 4)
        tree.commit(lease, chunk * 4)
    for _ in range(250):
        (page,) = tree.take(1)
        tree.store(lease, pack([page] * 16), page)
    assert tree.tree.nodes <= 3
    tree.give_back(lease)
    assert tree.tree.nodes == 1
    check(tree)


def test_a_page_computed_twice_ends_as_one() -> None:
    """Whoever comes second gets the first one's page and frees its own."""
    tree = cache()
    first = tree.acquire(A, tree.match(b""))
    second = tree.acquire(B, tree.match(b""))
    one, other = tree.take(2)
    assert tree.store(first, pack([5]), one).page == one
    stored = tree.store(second, pack([5]), other)
    assert (stored.page, stored.displaced) == (one, None)
    tree.pool.give((other,))
    check(tree)
    tree.give_back(first)
    tree.give_back(second)
    assert tree.tree_pages == 1


def test_a_pending_page_that_another_one_computes_turns_ready_as_theirs() -> None:
    """Its leader is told, and its own page is no longer in the tree."""
    tree = cache()
    lease = pending(tree, A, [1, 2, 3])
    led = pages_of(tree, [1, 2, 3])
    other = tree.acquire(B, tree.above(tree.match(pack([1, 2, 3])), 0))
    (page,) = tree.take(1)
    stored = tree.store(other, pack([1]), page)
    assert stored.page == page
    assert stored.displaced == (A, led[0])
    assert tree.tree.borders(tree.match(pack([1, 2, 3])))[0] == 1
    tree.pool.give((led[0],))
    check(tree)
    tree.give_back(lease)
    tree.give_back(other)
    assert matched(tree, [1, 2, 3]) == 1


def test_a_step_may_schedule_more_than_it_has_computed_and_neither_border_moves_back() -> None:
    """An older message changes nothing."""
    tree = cache()
    lease = pending(tree, A, [1, 2, 3, 4])
    tree.schedule(lease, 3)
    tree.schedule(lease, 1)
    tree.commit(lease, 2)
    tree.commit(lease, 1)
    assert tree.tree.borders(tree.match(pack([1, 2, 3, 4]))) == (2, 3)
    tree.commit(lease, 4)
    assert tree.tree.borders(tree.match(pack([1, 2, 3, 4]))) == (4, 4)
    assert lease.node.leader is None
    check(tree)


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("computed", range(5))
@pytest.mark.parametrize("scheduled", range(5))
def test_a_pending_node_that_is_split_keeps_its_borders(
    at: int, computed: int, scheduled: int
) -> None:
    """Above and below the cut; both parts that are pending keep their leader."""
    tree = cache()
    lease = pending(tree, A, [1, 2, 3, 4])
    tree.schedule(lease, scheduled)
    tree.commit(lease, computed)
    other = tree.acquire(B, tree.match(pack([1, 2, 3, 4][:at])))
    scheduled = max(scheduled, computed)
    assert tree.tree.borders(tree.match(pack([1, 2, 3, 4]))) == (computed, scheduled)
    assert tree.tree.borders(tree.match(pack([1, 2, 3, 4][:at]))) == (
        min(at, computed),
        min(at, scheduled),
    )
    check(tree)
    for depth in range(computed, 4):
        leader, end = tree.leader_at(tree.match(pack([1, 2, 3, 4])), depth)
        assert (leader, end) == (A, at if depth < at else 4)
    tree.commit(lease, 4)
    check(tree)
    tree.give_back(lease)
    tree.give_back(other)


def test_a_leader_that_leaves_drops_every_part_that_it_did_not_compute() -> None:
    """Its node was split by a follower, who keeps what is ready; the rest waits for its step."""
    tree = cache(capacity=8)
    lease = pending(tree, A, [1, 2, 3, 4, 5])
    tree.commit(lease, 1)
    follower = tree.acquire(B, tree.above(tree.match(pack([1, 2, 3, 4, 5])), 1))
    check(tree)
    tree.give_back(lease, fence=3)
    assert matched(tree, [1, 2, 3, 4, 5]) == 1
    assert (tree.pool.quarantined, tree.pool.free) == (4, 2)
    check(tree)
    tree.give_back(follower)
    tree.pool.open_fences(3)
    assert tree.evict(10) == 1
    assert tree.pool.free == 7


def test_pages_of_a_pending_node_go_one_by_one_to_whoever_computes_them_first() -> None:
    """The second one's lease moves down with them; the leader goes on behind."""
    tree = cache()
    lease = pending(tree, A, [1, 2, 3])
    led = pages_of(tree, [1, 2, 3])
    other = tree.acquire(B, tree.above(tree.match(pack([1, 2, 3])), 0))
    own = tree.take(3)
    for index, page in enumerate(own[:2]):
        assert tree.store(other, pack([index + 1]), page).displaced == (A, led[index])
        tree.pool.give((led[index],))
        check(tree, {B: own[index + 1 :]})
    tree.commit(lease, 3)
    stored = tree.store(other, pack([3]), own[2])
    assert (stored.page, stored.displaced) == (led[2], None)
    tree.pool.give((own[2],))
    check(tree)
    tree.give_back(lease)
    tree.give_back(other)
    assert list(pages_of(tree, [1, 2, 3])) == [own[0], own[1], led[2]]
    check(tree)


def test_lost_memory_leaves_an_empty_tree_and_a_full_pool() -> None:
    """Locked, pending, private and quarantined pages included; matches have changed."""
    tree = cache(capacity=16)
    insert(tree, [1, 2, 3])
    pending(tree, A, [1, 2, 3, 4, 5])
    tree.pool.give(tree.take(2), fence=9)
    tree.take(1)
    version = tree.tree.version
    tree.void_all()
    assert (tree.tree_pages, tree.pending_pages, tree.evictable_pages) == (0, 0, 0)
    assert (tree.pool.free, tree.pool.quarantined, len(tree.leases)) == (15, 0, 0)
    assert tree.tree.version > version
    assert tree.evict(1) == 0
    check(tree)
