"""`radixd.actors.outbox`: nothing is lost on the way to a slow reader."""

import anyio
import pytest

from radixd.actors.generation import InvalidRequestError, TokenUsage
from radixd.actors.outbox import Outbox

USAGE = TokenUsage(3, 1, 0, 0, 3)


async def test_a_slow_reader_gets_one_longer_piece() -> None:
    """What was put meanwhile is merged, with the latest usage and the end."""
    outbox = Outbox()
    outbox.put("a", (1,), USAGE)
    outbox.put("b", (2,), TokenUsage(3, 2, 0, 0, 3))
    outbox.end("length")
    piece = await outbox.take()
    assert piece is not None
    assert (piece.text, piece.token_ids, piece.finish_reason) == ("ab", (1, 2), "length")
    assert piece.usage.completion_tokens == 2
    assert await outbox.take() is None


async def test_a_refusal_reaches_whoever_waits_to_be_accepted() -> None:
    """The error is raised, not returned as an empty answer."""
    outbox = Outbox()

    async def wait() -> None:
        with pytest.raises(InvalidRequestError):
            await outbox.accepted()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        outbox.fail(InvalidRequestError("prompt", "too long"))


async def test_an_end_that_was_told_is_not_taken_back() -> None:
    """A failure after the end changes nothing."""
    outbox = Outbox()
    outbox.put("a", (1,), USAGE)
    outbox.end("stop")
    outbox.fail(InvalidRequestError("prompt", "late"))
    piece = await outbox.take()
    assert piece is not None
    assert piece.finish_reason == "stop"


async def test_a_second_reader_is_refused() -> None:
    """Two would take each other's pieces."""
    outbox = Outbox()
    async with anyio.create_task_group() as group:
        group.start_soon(outbox.take)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="two tasks"):
            await outbox.take()
        outbox.end("stop")
