"""`radixd.cache.leases`: the book of who holds what."""

from array import array

import pytest

from radixd.cache.leases import Lease, LeaseBook, LeaseError
from radixd.cache.messages import RequestId
from radixd.cache.tree import Node

A, B = RequestId(1), RequestId(2)


def node() -> Node:
    """Return some place in a tree."""
    return Node(None, 0, bytearray(), array("I"), ready=0)


def test_the_book_lists_who_holds_what_since_when() -> None:
    """Two leases on one node are two leases."""
    book, place = LeaseBook(), node()
    book.open(A, place, since=3)
    book.open(B, place, since=5)
    assert [(lease.holder, lease.node, lease.since) for lease in book] == [
        (A, place, 3),
        (B, place, 5),
    ]
    assert len(book) == 2


def test_a_closed_lease_is_out_no_more() -> None:
    """The other one of the same holder still is."""
    book, place = LeaseBook(), node()
    first, second = book.open(A, place, 1), book.open(A, place, 2)
    assert book.close(first)
    assert list(book) == [second]


def test_a_lease_closed_twice_is_an_error_that_names_its_holder() -> None:
    """Somebody else would lose a lock."""
    book = LeaseBook()
    lease = book.open(A, node(), 1)
    book.close(lease)
    with pytest.raises(LeaseError, match="request 1"):
        book.close(lease)


def test_a_lease_that_the_book_never_gave_out_is_an_error() -> None:
    """Even where it looks like one that is out."""
    book, place = LeaseBook(), node()
    book.open(A, place, 1)
    with pytest.raises(LeaseError):
        book.close(Lease(A, place, 1, generation=0))
    assert len(book) == 1


def test_leases_of_an_older_generation_are_void() -> None:
    """Closing one does nothing, as often as is tried, and new ones are out as before."""
    book, place = LeaseBook(), node()
    old = book.open(A, place, 1)
    book.void_all()
    new = book.open(B, place, 2)
    assert not book.close(old)
    assert not book.close(old)
    assert list(book) == [new]
    assert (old.generation, new.generation, book.generation) == (0, 1, 1)
