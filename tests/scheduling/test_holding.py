"""`radixd.scheduling.holding`: the book of who waits for whom."""

from harness.machines import GREEDY
from radixd.cache.messages import RequestId
from radixd.cache.tokens import pack
from radixd.scheduling.holding import Followers
from radixd.scheduling.messages import Submit
from radixd.scheduling.requests import Request

LEADER, OTHER = RequestId(1), RequestId(2)


def request(number: int) -> Request:
    """Return a request that somebody may hold."""
    return Request(Submit(RequestId(number), pack([1]), 1, GREEDY, ()))


def test_followers_are_listed_by_leader_in_the_order_of_holding() -> None:
    """Each knows for whom it waits, and how far that one must get."""
    book = Followers()
    third, fourth, fifth = request(3), request(4), request(5)
    book.hold(fourth, LEADER, 16)
    book.hold(third, LEADER, 32)
    book.hold(fifth, OTHER, 16)
    assert book.of(LEADER) == [fourth, third]
    assert book.leaders() == [LEADER, OTHER]
    assert (third.leader, third.until) == (LEADER, 32)
    assert len(book) == 3


def test_a_leader_whose_last_follower_is_forgotten_leads_nobody() -> None:
    """The follower may be held again, by another one."""
    book = Followers()
    follower = request(3)
    book.hold(follower, LEADER, 16)
    book.forget(follower)
    assert follower.leader is None
    assert book.leaders() == []
    assert book.of(LEADER) == []
    book.hold(follower, OTHER, 8)
    assert book.of(OTHER) == [follower]


def test_a_list_of_followers_may_be_forgotten_while_it_is_read() -> None:
    """That is how a leader's end is told to all of them."""
    book = Followers()
    for number in (3, 4, 5):
        book.hold(request(number), LEADER, 16)
    for follower in book.of(LEADER):
        book.forget(follower)
    assert len(book) == 0


def test_a_cleared_book_holds_nobody() -> None:
    """The worker is gone, and with it what they waited for."""
    book = Followers()
    book.hold(request(3), LEADER, 16)
    book.clear()
    assert len(book) == 0
    assert book.leaders() == []
