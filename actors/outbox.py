"""The outbox of one request: what its caller has not read yet, merged into one piece.

The tokenizer writes and never waits; a caller who reads slowly gets longer pieces and loses none.
"""

import anyio

from radixd.actors.generation import EngineError, Piece, TokenUsage
from radixd.scheduling.messages import FinishReason


class Outbox:
    """One writer, one reader."""

    def __init__(self) -> None:
        self.usage = TokenUsage(0, 0, 0, 0, 0)
        self._text: list[str] = []
        self._ids: list[int] = []
        self._finish: FinishReason | None = None
        self._stop_string: str | None = None
        self._error: EngineError | None = None
        self._accepted = False
        self._read_all = False
        self._reading = False
        self._change = anyio.Event()

    # The writer's side.

    def accept(self, usage: TokenUsage) -> None:
        """The request is valid and queued."""
        self._accepted = True
        self.usage = usage
        self._change.set()

    def put(self, text: str, ids: tuple[int, ...], usage: TokenUsage) -> None:
        """Add to what is unread."""
        self._text.append(text)
        self._ids += ids
        self.usage = usage
        self._change.set()

    def end(self, finish: FinishReason, stop_string: str | None = None) -> None:
        """Nothing follows what was put."""
        self._finish = finish
        self._stop_string = stop_string
        self._change.set()

    def fail(self, error: EngineError) -> None:
        """Raise *error* at the reader instead of anything unread."""
        if self._finish is None:
            self._error = error
            self._change.set()

    # The reader's side.

    async def accepted(self) -> None:
        """Wait until the request is queued; raises what it was refused with."""
        while not self._accepted:
            await self._wait()

    async def take(self) -> Piece | None:
        """Wait for something unread and return all of it; None after the last piece."""
        if self._read_all:
            return None
        while not self._ids and self._finish is None:
            await self._wait()
        if self._error is not None:
            raise self._error
        piece = Piece(
            text="".join(self._text),
            token_ids=tuple(self._ids),
            finish_reason=self._finish,
            stop_string=self._stop_string,
            usage=self.usage,
        )
        self._text.clear()
        self._ids.clear()
        self._read_all = self._finish is not None
        return piece

    @property
    def ended(self) -> bool:
        """Whether the writer has nothing more to say."""
        return self._finish is not None or self._error is not None

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        if self._reading:
            raise RuntimeError("two tasks read one stream")
        self._change = anyio.Event()
        self._reading = True
        try:
            await self._change.wait()
        finally:
            self._reading = False
        if self._error is not None:
            raise self._error
