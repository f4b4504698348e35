"""A cache, and a caller who inserts whole prompts at their end, as the first radix cache had."""

from array import array
from typing import NamedTuple

from radixd.cache.audit import audit
from radixd.cache.messages import RequestId
from radixd.cache.prefix_cache import PrefixCache
from radixd.cache.tokens import TOKEN_BYTES, pack


class Inserted(NamedTuple):
    """What an insertion came to."""

    existing: int
    """Tokens that the tree held already."""
    freed: tuple[int, ...]
    """The caller's own pages that duplicated the tree's and are free again."""


def check(cache: PrefixCache, private: dict[RequestId, "array[int]"] | None = None) -> None:
    """Audit *cache*."""
    cache.tree.check()
    assert audit(cache, private or {}).problems == ()


def insert(cache: PrefixCache, tokens: list[int]) -> Inserted:
    """Compute *tokens* in pages of one's own, enter them, and free what was there already."""
    packed = pack(tokens)
    page_bytes = cache.page_size * TOKEN_BYTES
    own = cache.take(len(packed) // page_bytes)
    lease = cache.acquire(RequestId(0), cache.above(cache.match(packed), 0))
    freed = []
    for index, page in enumerate(own):
        stored = cache.store(lease, packed[index * page_bytes : (index + 1) * page_bytes], page)
        if stored.page != page:
            freed.append(page)
    cache.pool.give(freed)
    cache.give_back(lease)
    check(cache)
    return Inserted(len(freed) * cache.page_size, tuple(freed))


def matched(cache: PrefixCache, tokens: list[int]) -> int:
    """Return how many tokens the tree holds of *tokens*."""
    return cache.match(pack(tokens)).depth * cache.page_size
