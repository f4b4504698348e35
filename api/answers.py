"""Pieces of an answer on their way to the client, in any dialect."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Literal

import msgspec

from radixd.actors.generation import Piece, TokenUsage
from radixd.api.errors import aborted, worker_failed

FinishReason = Literal["stop", "length"]
"""How an answer that is complete has ended."""


class Answer(msgspec.Struct, frozen=True):
    """A complete answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_string: str | None
    usage: TokenUsage


def finish_reason(piece: Piece) -> FinishReason | None:
    """Return how *piece* ends the answer, if it does; raises `ApiError` if that was cut off."""
    reason = piece.finish_reason
    if reason == "error":
        raise worker_failed()
    if reason == "abort":
        raise aborted()
    return reason


async def collect(pieces: AsyncIterator[Piece]) -> Answer:
    """Read an answer to its end; raises `ApiError` if it was cut off."""
    texts: list[str] = []
    token_ids: list[int] = []
    async for piece in pieces:
        texts.append(piece.text)
        token_ids.extend(piece.token_ids)
        if (reason := finish_reason(piece)) is not None:
            return Answer("".join(texts), tuple(token_ids), reason, piece.stop_string, piece.usage)
    raise aborted()


async def interleave(
    streams: Sequence[AsyncIterator[Piece]],
) -> AsyncGenerator[tuple[int, Piece]]:
    """Yield the pieces of all *streams* as they come, each with the index of its stream."""
    if len(streams) == 1:  # the usual case, without the cost of a task for each piece
        async for piece in streams[0]:
            yield 0, piece
        return
    pending = {asyncio.ensure_future(anext(stream)): i for i, stream in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=pending.__getitem__):
                index = pending.pop(task)
                piece = task.result()
                if piece.finish_reason is None:
                    pending[asyncio.ensure_future(anext(streams[index]))] = index
                yield index, piece
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
