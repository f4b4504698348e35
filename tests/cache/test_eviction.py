"""`radixd.cache.eviction`: the queue of candidates, apart from the cache that feeds it."""

import random
from array import array

from radixd.cache.eviction import EvictionQueue, LeastRecentlyUsed
from radixd.cache.tree import Node


def leaf(last_used: int) -> Node:
    """Return a node of one page that was last used at a tick."""
    node = Node(None, 0, bytearray(4), array("I", (1,)), ready=1)
    node.last_used = last_used
    return node


def queue(*nodes: Node) -> EvictionQueue:
    """Return a queue of *nodes*, pushed in their order."""
    candidates = EvictionQueue(LeastRecentlyUsed())
    for node in nodes:
        candidates.push(node)
    return candidates


def drain(candidates: EvictionQueue) -> list[Node]:
    """Take every candidate out, the first to go first."""
    order = []
    while (node := candidates.first()) is not None:
        order.append(node)
        candidates.withdraw(node)
    return order


def test_candidates_go_in_the_order_of_their_last_use() -> None:
    """Whatever the order in which they came."""
    nodes = [leaf(tick) for tick in (5, 1, 4, 2, 3)]
    assert [node.last_used for node in drain(queue(*nodes))] == [1, 2, 3, 4, 5]


def test_of_two_equally_old_ones_the_first_to_become_a_candidate_goes() -> None:
    """Nodes are never compared with each other."""
    first, second = leaf(7), leaf(7)
    assert drain(queue(first, second)) == [first, second]


def test_looking_at_the_first_leaves_it_queued() -> None:
    """A leaf that is trimmed and not used up stays a candidate."""
    node = leaf(1)
    candidates = queue(node)
    assert candidates.first() is node
    assert candidates.first() is node
    assert node in candidates


def test_a_withdrawn_node_is_passed_over() -> None:
    """It was leased; withdrawing it again changes nothing."""
    oldest, other = leaf(1), leaf(2)
    candidates = queue(oldest, other)
    candidates.withdraw(oldest)
    candidates.withdraw(oldest)
    assert oldest not in candidates
    assert len(candidates) == 1
    assert drain(candidates) == [other]


def test_a_node_that_comes_back_counts_by_its_latest_use() -> None:
    """Its older entry is dead, even where that one is on top of the heap."""
    node, other = leaf(1), leaf(2)
    candidates = queue(node, other)
    candidates.withdraw(node)
    node.last_used = 3
    candidates.push(node)
    assert len(candidates) == 2
    assert drain(candidates) == [other, node]


def test_an_empty_queue_has_no_first() -> None:
    """And neither has one whose every candidate was withdrawn."""
    node = leaf(1)
    candidates = queue(node)
    candidates.withdraw(node)
    assert candidates.first() is None
    assert len(candidates) == 0


def test_dead_entries_never_outgrow_the_living() -> None:
    """Ten candidates that come and go a hundred times each: the heap is rebuilt on the way."""
    draw = random.Random(0)
    nodes = [leaf(tick) for tick in range(10)]
    candidates = queue(*nodes)
    for tick in range(10, 1010):
        node = draw.choice(nodes)
        candidates.withdraw(node)
        node.last_used = tick
        candidates.push(node)
        assert len(candidates._heap) <= 2 * len(candidates) + candidates._REBUILD_MIN
    assert drain(candidates) == sorted(nodes, key=lambda node: node.last_used)
