"""`radixd.actors.sessions`: tokens in, text out, and what is billed."""

from radixd.actors.generation import Piece
from radixd.actors.outbox import Outbox
from radixd.actors.sessions import Session
from radixd.cache.messages import RequestId
from radixd.scheduling.messages import Delivery, FinishReason, Usage
from radixd.text.decoding import IncrementalDecoder
from radixd.text.stopping import StopStrings
from radixd.text.tokenizers import ByteTokenizer

END = 257


def session(*stops: str) -> Session:
    """Return a session over bytes that stops at the end marker."""
    return Session(
        prompt_tokens=5,
        decoder=IncrementalDecoder(ByteTokenizer()),
        stops=StopStrings(stops),
        stop_ids=frozenset({END}),
        outbox=Outbox(),
        arrived=0.0,
    )


def delivery(
    text: bytes, finish: FinishReason | None = None, usage: Usage | None = None
) -> Delivery:
    """Return a delivery of *text*, a token a byte."""
    return Delivery(RequestId(1), tuple(text), finish, usage)


async def read(answer: Session) -> Piece:
    """Return all that is unread."""
    piece = await answer.outbox.take()
    assert piece is not None
    return piece


async def test_tokens_become_text_and_usage() -> None:
    """The first delivery tells where the prompt came from."""
    answer = session()
    answer.deliver(delivery(b"h", usage=Usage(2, 1, 2)))
    answer.deliver(delivery(b"i", "length", Usage(2, 1, 2)))
    piece = await read(answer)
    assert (piece.text, piece.finish_reason) == ("hi", "length")
    assert piece.usage.cached_tokens == 3
    assert piece.usage.completion_tokens == 2


async def test_the_stop_token_counts_but_is_no_text() -> None:
    """An end marker was generated, and is not shown."""
    answer = session()
    heard = answer.deliver(Delivery(RequestId(1), (104, END), "stop", None))
    assert heard == (2, "stop")
    assert (await read(answer)).text == "h"


async def test_nothing_from_a_stop_string_on_is_shown_or_billed() -> None:
    """The token that completes it is the last that counts."""
    answer = session("ND")
    assert answer.deliver(delivery(b"E")) == (1, None)
    assert answer.deliver(delivery(b"N")) == (1, None)
    assert answer.deliver(delivery(b"D")) == (1, "stop")
    assert answer.deliver(delivery(b"x")) == (0, None)
    assert answer.deliver(delivery(b"", "stop")) == (0, None)
    piece = await read(answer)
    assert (piece.text, piece.stop_string) == ("E", "ND")
    assert piece.usage.completion_tokens == 3


async def test_what_might_have_become_a_stop_string_is_shown_at_the_end() -> None:
    """Held-back text and an incomplete character are flushed."""
    answer = session("END")
    answer.deliver(delivery(b"aE" + "é".encode()[:1], "length"))
    assert (await read(answer)).text == "aE\ufffd"
