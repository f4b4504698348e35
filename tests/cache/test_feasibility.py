"""`radixd.cache.feasibility`: the door and admission count alike."""

import pytest

from radixd.cache.feasibility import pages_needed, tokens_feasible


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("capacity", [2, 5, 100])
def test_the_largest_feasible_request_fills_the_pool_and_one_more_token_does_not_fit(
    page_size: int, capacity: int
) -> None:
    """Exactly, and one more."""
    largest = tokens_feasible(capacity, page_size)
    assert pages_needed(largest - 1, 1, page_size) == capacity - 1
    assert pages_needed(1, largest - 1, page_size) == capacity - 1
    assert pages_needed(largest, 1, page_size) == capacity
