"""`radixd.cache.tree`: matching and shape."""

from array import array

import pytest

from harness.cache import insert, matched
from radixd.cache.messages import RequestId
from radixd.cache.prefix_cache import PrefixCache
from radixd.cache.tokens import pack
from radixd.cache.tree import RadixTree


def cache(page_size: int = 1, capacity: int = 4096) -> PrefixCache:
    """Return an empty cache."""
    return PrefixCache(capacity_pages=capacity, page_size=page_size)


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
def test_a_fork_inside_an_edge_ends_the_match(page_size: int) -> None:
    """The bug that was fixed eight days after the first radix cache was published.

    The tree holds "Hello_L.A.!" and below it "world" and "there".  "Hello_world" forks inside the
    first edge; going on into the child would return the KV of "world" after "Hello_L.A.!".
    """
    tree = cache(page_size)

    def spread(text: str) -> list[int]:
        return [ord(letter) for letter in text for _ in range(page_size)]

    insert(tree, spread("Hello_L.A.!"))
    insert(tree, spread("Hello_L.A.!world"))
    insert(tree, spread("Hello_L.A.!there"))
    (edge,) = tree.tree.root.children.values()
    assert bytes(edge.key) == pack(spread("Hello_L.A.!"))
    assert len(edge.children) == 2
    query = spread("Hello_world")
    assert matched(tree, query) == len("Hello_") * page_size
    position = tree.match(pack(query))
    lease = tree.acquire(RequestId(1), position)
    held = tree.page_table(lease.node)
    whole = tree.page_table(tree.match(pack(spread("Hello_L.A.!world"))).node)
    assert held == whole[: len(held)]
    tree.give_back(lease)


def test_the_smoke_cases_of_the_notebook() -> None:
    """Insert abc, abcd and abef; abce matches abc, abefg matches abef."""
    tree = cache()
    for key in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 5, 6]):
        insert(tree, key)
    assert matched(tree, [1, 2, 3, 9]) == 3
    assert matched(tree, [1, 2, 5, 6, 7]) == 4
    assert matched(tree, [1, 2]) == 2
    assert matched(tree, [2]) == 0
    assert matched(tree, []) == 0


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_query_ends_where_its_whole_pages_end(page_size: int) -> None:
    """What is left of a page is never matched."""
    tree = cache(page_size)
    key = list(range(5 * page_size))
    insert(tree, key)
    for length in range(len(key) + 1):
        assert matched(tree, key[:length]) == length // page_size * page_size


def test_matching_changes_nothing() -> None:
    """Not the shape, not the recency, not the locks."""
    tree = cache()
    insert(tree, [1, 2, 3, 4])
    (node,) = tree.tree.walk()
    before = (tree.tree.nodes, tree.tree.version, node.last_used, node.locks, bytes(node.key))
    matched(tree, [1, 2, 9])
    matched(tree, [1, 2, 3, 4, 5])
    (node,) = tree.tree.walk()
    assert before == (
        tree.tree.nodes,
        tree.tree.version,
        node.last_used,
        node.locks,
        bytes(node.key),
    )


def test_a_split_keeps_both_halves_whole() -> None:
    """Tokens and pages of the halves are those of the edge, and share no memory with it."""
    tree = cache()
    key = list(range(100))
    insert(tree, key)
    (edge,) = tree.tree.walk()
    pages = list(edge.pages)
    upper = tree.tree.split(edge, 40)
    assert (list(upper.pages), list(edge.pages)) == (pages[:40], pages[40:])
    assert bytes(upper.key + edge.key) == pack(key)
    assert (upper.start, upper.end, edge.start, edge.end) == (0, 40, 40, 100)
    tree.tree.check()


def test_both_halves_of_a_split_are_locked_and_used_as_the_whole_was() -> None:
    """What passes through one passes through the other."""
    tree = RadixTree(page_size=1)
    node = tree.add(tree.root, pack([1, 2, 3]), array("I", (4, 5, 6)), ready=3)
    node.locks, node.last_used = 2, 7
    upper = tree.split(node, 1)
    assert (upper.locks, upper.last_used) == (node.locks, node.last_used) == (2, 7)


def test_a_node_is_trimmed_from_its_tail() -> None:
    """With nothing left it is gone, and its place may be taken again."""
    tree = RadixTree(page_size=1)
    node = tree.add(tree.root, pack([1, 2, 3]), array("I", (4, 5, 6)), ready=2, leader=RequestId(1))
    node.scheduled = 3
    assert list(tree.trim(node, 1)) == [5, 6]
    node.leader = None
    assert (bytes(node.key), list(node.pages)) == (pack([1]), [4])
    assert (node.ready, node.scheduled) == (1, 1)
    tree.check()
    assert list(tree.trim(node, 0)) == [4]
    assert tree.nodes == 0
    tree.add(tree.root, pack([1]), array("I", (7,)), ready=1)
    tree.check()


def test_a_match_may_change_only_when_the_version_does() -> None:
    """Adding, extending and trimming count; splitting and joining change no match."""
    tree = RadixTree(page_size=1)
    node = tree.add(tree.root, pack([1, 2]), array("I", (4, 5)), ready=2)
    versions = [tree.version]
    tree.extend(node, pack([3]), 6)
    versions.append(tree.version)
    tree.trim(node, 2)
    versions.append(tree.version)
    assert versions == sorted(set(versions))
    tree.split(node, 1)
    tree.join(node)
    assert tree.version == versions[-1]
    assert tree.match(pack([1, 2, 3]), 3) == (node, 2)
    tree.check()


def test_a_match_goes_no_deeper_than_asked() -> None:
    """At a border between nodes, and inside an edge."""
    tree = cache()
    insert(tree, [1, 2, 3, 4])
    insert(tree, [1, 2, 3, 4, 5, 6])
    insert(tree, [1, 2, 3, 4, 7])
    for depth in range(7):
        assert tree.match(pack([1, 2, 3, 4, 5, 6]), depth).depth == depth


def test_many_children_and_a_chain_of_splits_stay_sound() -> None:
    """128 siblings under one node, and a border at each of 100 pages."""
    tree = cache()
    for number in range(128):
        insert(tree, [7, 7, 1000 + number])
    assert tree.tree.nodes == 129
    for length in range(1, 101):
        insert(tree, [*range(length), 5000 + length])
    assert all(matched(tree, [*range(n), 5000 + n]) == n + 1 for n in range(1, 101))
