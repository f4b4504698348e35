"""The workload of the notebook that specified the cache: 200 chats over one system prompt."""

import pytest

from harness.cache import insert, matched
from radixd.cache.prefix_cache import PrefixCache

SYSTEM_PROMPT = list(range(128))
BUDGETS = (256, 512, 1024, 2048, 4096, 8192)


def chats() -> list[list[int]]:
    """Return 200 chats of three turns with 40 tokens each, below the same 128 tokens."""
    numpy = pytest.importorskip("numpy", reason="optional peer: numpy")
    draw = numpy.random.default_rng(0)
    return [
        SYSTEM_PROMPT
        + [int(token) for _ in range(3) for token in draw.integers(1000, 10000, size=40)]
        for _ in range(200)
    ]


def serve(prompts: list[list[int]], budget: int) -> list[int]:
    """Match and insert each of *prompts*, keep to *budget* tokens, and return what each matched."""
    cache = PrefixCache(capacity_pages=60_000, page_size=1)
    hits = []
    for prompt in prompts:
        hits.append(matched(cache, prompt))
        insert(cache, prompt)
        cache.evict(cache.tree_pages - budget)
        assert cache.tree_pages <= budget
    return hits


def test_all_chats_but_the_first_hit_the_whole_system_prompt() -> None:
    """199 of 200, and 51.4 % of all tokens."""
    prompts = chats()
    hits = serve(prompts, budget=50_000)
    assert sum(hit >= len(SYSTEM_PROMPT) for hit in hits) == 199
    assert round(sum(hits) / sum(map(len, prompts)), 3) == 0.514


@pytest.mark.parametrize("budget", BUDGETS)
def test_in_the_order_of_arrival_24128_tokens_are_missed_whatever_the_budget(budget: int) -> None:
    """The system prompt is in constant use and stays, and nothing else comes back in time."""
    prompts = chats()
    assert sum(map(len, prompts)) - sum(serve(prompts, budget)) == 24_128


def test_in_the_order_of_the_longest_match_no_more_is_missed() -> None:
    """Whoever shares most with what is cached goes next."""
    prompts, ordered = chats(), []
    cache = PrefixCache(capacity_pages=60_000, page_size=1)
    waiting = dict(enumerate(prompts))
    while waiting:
        first = max(waiting, key=lambda number: (matched(cache, waiting[number]), -number))
        ordered.append(waiting.pop(first))
        insert(cache, ordered[-1])
    assert sum(serve(ordered, 1024)) >= sum(serve(prompts, 1024))
