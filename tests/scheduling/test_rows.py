"""`radixd.scheduling.rows`: a row as it is planned, and as the worker gets it."""

import pytest

from harness.machines import GREEDY
from radixd.cache.messages import RequestId
from radixd.cache.tokens import pack
from radixd.scheduling.messages import Row, Submit
from radixd.scheduling.requests import Request
from radixd.scheduling.rows import PlannedRow

A = RequestId(1)


def request(length: int = 5, *, write: bool = True) -> Request:
    """Return a request whose prompt counts from ten."""
    running = Request(Submit(A, pack(range(10, 10 + length)), 4, GREEDY, ()))
    running.write = write
    return running


@pytest.mark.parametrize(
    ("start", "end", "decodes", "samples"),
    [(0, 3, False, False), (3, 5, False, True), (0, 5, False, True), (5, 6, True, True)],
)
def test_a_row_samples_once_it_reaches_the_end_of_the_prompt(
    start: int, end: int, decodes: bool, samples: bool
) -> None:
    """A chunk before the last one does not, and each decode row does."""
    row = PlannedRow(request(), start, end)
    assert (row.decodes, row.samples) == (decodes, samples)


def test_a_chunk_carries_its_tokens_and_a_decode_row_none() -> None:
    """The worker feeds back its own sample."""
    assert PlannedRow(request(), 1, 3).message() == Row(A, 1, pack([11, 12]), sample=False)
    assert PlannedRow(request(), 3, 5).message() == Row(A, 3, pack([13, 14]), sample=True)
    assert PlannedRow(request(), 6, 7).message() == Row(A, 6, b"", sample=True)


@pytest.mark.parametrize(("start", "end", "written"), [(4, 5, False), (2, 5, True), (5, 6, True)])
def test_only_the_lone_last_token_of_a_prompt_that_is_cached_whole_is_not_written(
    start: int, end: int, written: bool
) -> None:
    """The rest of a row, and every token of the answer, is."""
    assert PlannedRow(request(write=False), start, end).message().write is written
