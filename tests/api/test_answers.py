"""Reading streams of pieces."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from radixd.actors.generation import Piece, TokenUsage
from radixd.api.answers import collect, interleave
from radixd.api.errors import ApiError
from radixd.scheduling.messages import FinishReason

USAGE = TokenUsage(5, 1, 0, 0, 5)


def piece(text: str, finish: FinishReason | None = None) -> Piece:
    """Return a piece of one token."""
    return Piece(
        text=text, token_ids=(len(text),), finish_reason=finish, stop_string=None, usage=USAGE
    )


async def pieces(*texts: str) -> AsyncIterator[Piece]:
    """Yield a piece for each text; the last one ends the answer."""
    for text in texts[:-1]:
        yield piece(text)
    yield piece(texts[-1], "stop")


async def test_an_answer_is_all_its_pieces() -> None:
    """Texts and ids in their order, and how the last one ended it."""
    answer = await collect(pieces("a", "bc", ""))
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("abc", (1, 2, 0), "stop")


async def test_pieces_that_stop_coming_are_no_answer() -> None:
    """A stream that ends without a finish reason was cut off."""

    async def cut() -> AsyncIterator[Piece]:
        yield piece("a")

    with pytest.raises(ApiError) as caught:
        await collect(cut())
    assert caught.value.status == 503


async def test_interleaving_waits_for_no_single_stream() -> None:
    """A stream that has nothing yet holds up none of the others."""
    release = asyncio.Event()

    async def slow() -> AsyncIterator[Piece]:
        await release.wait()
        yield piece("late", "stop")

    seen = []
    async for index, one in interleave([slow(), pieces("a", "b", "c")]):
        seen.append((index, one.text))
        if len(seen) == 3:
            release.set()
    assert seen == [(1, "a"), (1, "b"), (1, "c"), (0, "late")]


async def test_an_error_in_one_stream_ends_the_interleaving() -> None:
    """The others are left where they are; nothing keeps waiting for them."""
    cancelled = asyncio.Event()

    async def broken() -> AsyncIterator[Piece]:
        yield piece("a")
        raise ZeroDivisionError

    async def endless() -> AsyncIterator[Piece]:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        yield piece("never")

    with pytest.raises(ZeroDivisionError):
        async for _ in interleave([broken(), endless()]):
            pass
    assert cancelled.is_set()
