"""In which order waiting requests are offered to the cache owner: one small class a policy."""

from typing import Protocol

from radixd.scheduling.requests import Request
from radixd.settings import PolicyName


class OrderingPolicy(Protocol):
    """An order over waiting requests."""

    name: PolicyName
    reads_matches: bool
    """Whether the key reads ``matched``, so that receipts must keep it up to date."""

    def key(self, request: Request) -> tuple[int, ...]:
        """Return what orders *request*: the smallest is offered first."""


class FirstComeFirstServed:
    """The order of arrival."""

    name: PolicyName = "fcfs"
    reads_matches = False

    def key(self, request: Request) -> tuple[int, ...]:
        """Ids are given at the gate, in the order of arrival."""
        return (request.id,)


class LongestPrefixMatch:
    """Whoever shares most with the tree, computed or in flight; ties in the order of arrival.

    It has no bound on waiting: a stream of well-matched requests starves a cold one.
    """

    name: PolicyName = "lpm"
    reads_matches = True

    def key(self, request: Request) -> tuple[int, ...]:
        """Order by tokens matched, the most first."""
        return (-request.matched, request.id)


def ordering_policy(name: PolicyName) -> OrderingPolicy:
    """Return the policy called *name*."""
    policies: dict[PolicyName, OrderingPolicy] = {
        "fcfs": FirstComeFirstServed(),
        "lpm": LongestPrefixMatch(),
    }
    return policies[name]
