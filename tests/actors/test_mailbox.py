"""`radixd.actors.mailbox`: order, batches, and overflow as a bug."""

import anyio
import pytest

from radixd.actors.mailbox import Mailbox, MailboxFullError


async def test_take_returns_all_that_is_there_in_order() -> None:
    """One wake-up serves a whole batch."""
    mailbox: Mailbox[int] = Mailbox("test", 8)
    for message in (1, 2, 3):
        mailbox.post(message)
    assert len(mailbox) == 3
    assert await mailbox.take() == [1, 2, 3]
    assert len(mailbox) == 0


async def test_take_waits_for_the_first_message() -> None:
    """A reader that came first is woken."""
    mailbox: Mailbox[int] = Mailbox("test", 8)
    taken: list[int] = []

    async def read() -> None:
        taken.extend(await mailbox.take())

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        mailbox.post(7)
    assert taken == [7]


def test_overflow_is_an_error_that_names_the_mailbox() -> None:
    """Credits bound every mailbox, so a full one is a bug."""
    mailbox: Mailbox[int] = Mailbox("tokenizer", 1)
    mailbox.post(1)
    with pytest.raises(MailboxFullError, match="tokenizer"):
        mailbox.post(2)
