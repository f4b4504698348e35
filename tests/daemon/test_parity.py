"""The cache never changes an answer: the embedded model in float32, on real conversations."""

import os
from pathlib import Path

import pytest

from bench.parity import compare

PROMPTS = 8


@pytest.mark.timeout(600)
async def test_greedy_answers_are_the_same_with_and_without_the_cache() -> None:
    """Turn by turn, with followers that join their leader's step, and in chunks."""
    data = os.environ.get("RADIXD_DATA")
    if data is None:
        pytest.skip("needs data: RADIXD_DATA names no folder with tau_bench and mt_bench")
    comparisons, undecided = await compare(Path(data), PROMPTS)
    assert undecided == []
    for comparison in comparisons:
        assert comparison.equal >= PROMPTS - 1
        assert comparison.cached_tokens > 0
    assert comparisons[1].in_flight_tokens > 0
    assert comparisons[2].in_flight_tokens > 0
