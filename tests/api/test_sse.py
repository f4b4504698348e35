"""Server-sent events: framing, silence, and who closes what."""

import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest
from starlette.types import Message

from harness.scripted import ScriptedEngine
from radixd.api.sse import DONE, KEEP_ALIVE, event, send_events


class Wire:
    """What was sent, and a way to wait for it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.sent = asyncio.Event()

    async def send(self, message: Message) -> None:
        """Take a message."""
        self.messages.append(message)
        self.sent.set()

    def bodies(self) -> list[bytes]:
        """All bodies so far."""
        return [message["body"] for message in self.messages if "body" in message]

    async def comments(self, count: int) -> None:
        """Wait until *count* comments have been sent."""
        while self.bodies().count(KEEP_ALIVE) < count:
            self.sent.clear()
            await self.sent.wait()


async def test_events_go_out_one_by_one_and_the_response_ends() -> None:
    """Each event is a body of its own; the last message says that nothing follows."""
    wire = Wire()

    async def events() -> AsyncGenerator[bytes]:
        for data in (b"1", b"2"):
            yield event(data)
        yield DONE

    await send_events(wire.send, events(), keep_alive=60)
    assert wire.messages[0]["status"] == 200
    assert wire.bodies() == [b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n", b""]
    assert [m["more_body"] for m in wire.messages[1:]] == [True, True, True, False]


async def test_a_silence_is_filled_with_comments_until_the_event_comes() -> None:
    """Comments come at intervals while there is nothing to send, and stop with the end."""
    wire = Wire()

    async def events() -> AsyncGenerator[bytes]:
        await wire.comments(3)
        yield event(b"late")

    await send_events(wire.send, events(), keep_alive=0.001)
    assert wire.bodies()[:3] == [KEEP_ALIVE] * 3
    assert wire.bodies()[-2:] == [b"data: late\n\n", b""]


async def test_a_stream_that_is_never_silent_has_no_comments() -> None:
    """The interval is counted from the last event."""
    wire = Wire()

    async def events() -> AsyncGenerator[bytes]:
        for _ in range(1000):
            await asyncio.sleep(0)
            yield event(b"x")

    await send_events(wire.send, events(), keep_alive=60)
    assert KEEP_ALIVE not in wire.bodies()


async def test_a_failed_send_closes_the_events() -> None:
    """The source is not left open when the connection breaks."""
    closed = asyncio.Event()

    async def send(message: Message) -> None:
        if message.get("body"):
            raise ConnectionResetError

    async def events() -> AsyncGenerator[bytes]:
        try:
            yield event(b"x")
        finally:
            closed.set()

    with pytest.raises(ConnectionResetError):
        await send_events(send, events(), keep_alive=60)
    assert closed.is_set()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {"model": "scripted", "messages": [{"role": "user", "content": "x"}]},
        ),
        ("/v1/completions", {"model": "scripted", "prompt": "x"}),
        ("/generate", {"text": "x"}),
    ],
)
async def test_a_waiting_request_is_kept_alive(
    client: httpx.AsyncClient, engine: ScriptedEngine, path: str, body: dict[str, object]
) -> None:
    """The client sees comments before the first token, then the answer as if there were none."""
    engine.flowing.clear()
    seen = ""
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        async for text in response.aiter_text():
            seen += text
            if seen.count(": keep-alive\n\n") >= 2:
                engine.flowing.set()
    assert seen.startswith(": keep-alive\n\n: keep-alive\n\n")
    assert "Paris" in seen
    assert seen.endswith("data: [DONE]\n\n")
