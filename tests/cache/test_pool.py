"""`radixd.cache.pool`: pages go out once, come back once, and wait for the steps that use them."""

import pytest

from radixd.cache.pool import PageError, PagePool


def test_page_zero_is_scratch_and_every_other_page_goes_out_once() -> None:
    """A pool of five hands out four."""
    pool = PagePool(5)
    assert sorted(pool.take(4)) == [1, 2, 3, 4]
    with pytest.raises(PageError):
        pool.take(1)


def test_a_page_behind_a_fence_is_free_when_its_step_is_done() -> None:
    """Not a step earlier, however often is asked."""
    pool = PagePool(3)
    pages = pool.take(2)
    pool.give(pages, fence=7)
    assert (pool.free, pool.quarantined) == (0, 2)
    pool.open_fences(6)
    with pytest.raises(PageError):
        pool.take(1)
    pool.open_fences(7)
    assert (pool.free, pool.quarantined) == (2, 0)
    assert sorted(pool.take(2)) == [1, 2]


def test_a_fence_that_is_open_already_holds_nothing_back() -> None:
    """The step was done before the page came back."""
    pool = PagePool(3)
    pool.open_fences(7)
    pool.give(pool.take(1), fence=7)
    assert pool.quarantined == 0


@pytest.mark.parametrize("fence", [0, 9])
def test_a_page_given_back_twice_is_an_error(fence: int) -> None:
    """Free or quarantined."""
    pool = PagePool(3)
    pages = pool.take(1)
    pool.give(pages, fence)
    with pytest.raises(PageError, match="twice"):
        pool.give(pages, fence)


def test_a_pool_needs_a_page_beside_scratch() -> None:
    """One page holds nothing."""
    with pytest.raises(ValueError, match="1 pages"):
        PagePool(1)


def test_a_reset_pool_is_new() -> None:
    """Whoever had a page has none."""
    pool = PagePool(4)
    pool.give(pool.take(2), fence=3)
    pool.take(1)
    pool.reset()
    assert (pool.free, pool.quarantined) == (3, 0)
    assert sorted(pool.take(3)) == [1, 2, 3]
