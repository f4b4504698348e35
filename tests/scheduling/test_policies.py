"""`radixd.scheduling.policies`: who is offered first."""

import pytest

from harness.machines import GREEDY
from radixd.cache.messages import RequestId
from radixd.cache.tokens import pack
from radixd.scheduling.messages import Submit
from radixd.scheduling.policies import ordering_policy
from radixd.scheduling.requests import Request
from radixd.settings import PolicyName


def waiting(number: int, matched: int) -> Request:
    """Return a request that came as the *number*-th and shares *matched* tokens."""
    request = Request(Submit(RequestId(number), pack([1, 2, 3]), 1, GREEDY, ()))
    request.matched = matched
    return request


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fcfs", [1, 2, 3, 4]), ("lpm", [3, 2, 4, 1])],
)
def test_a_policy_orders_by_arrival_or_by_match(policy: PolicyName, order: list[int]) -> None:
    """Equal matches keep the order of arrival."""
    requests = [waiting(4, 16), waiting(1, 0), waiting(3, 32), waiting(2, 16)]
    requests.sort(key=ordering_policy(policy).key)
    assert [request.id for request in requests] == order


@pytest.mark.parametrize(("policy", "reads"), [("fcfs", False), ("lpm", True)])
def test_a_policy_says_whether_it_reads_matches(policy: PolicyName, reads: bool) -> None:
    """Receipts pay for them only where somebody looks."""
    chosen = ordering_policy(policy)
    assert chosen.name == policy
    assert chosen.reads_matches is reads
