"""How many pages a request can ever need, and whether a pool can ever hold it.

One rule for the door and for admission: what the door accepts, an empty pool can hold.
"""

from radixd.cache.pool import SCRATCH_PAGES


def pages_needed(prompt_tokens: int, max_tokens: int, page_size: int) -> int:
    """Return the pages for a prompt of *prompt_tokens* and an answer of *max_tokens* tokens.

    The last token of an answer is never fed back, so it has no KV.
    """
    return -(-(prompt_tokens + max_tokens - 1) // page_size)


def tokens_feasible(capacity_pages: int, page_size: int) -> int:
    """Return the largest prompt plus answer, in tokens, that a pool can ever hold."""
    return (capacity_pages - SCRATCH_PAGES) * page_size + 1
