"""What a handler is given: one decoded request, and the means to compute and to answer."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import msgspec
import structlog
from starlette.types import Send

from radixd.actors.generation import EngineError, GenerationParams, Piece, Prompt, TokenUsage
from radixd.api import sse
from radixd.api.context import Record, seconds_since
from radixd.api.engine import PieceStream, ServingEngine
from radixd.api.errors import ApiError, from_engine, internal_error, shortened

log: structlog.typing.FilteringBoundLogger = structlog.get_logger("radixd.api")

B = TypeVar("B")

JSON: Final = "application/json"

_encode: Final = msgspec.json.Encoder().encode


class RecordedStream:
    """The pieces of one answer; what passes is noted in the request's `Record`."""

    def __init__(self, stream: PieceStream, record: Record) -> None:
        self._stream = stream
        self._record = record
        record.usages[stream.id] = stream.usage

    @property
    def id(self) -> str:
        """The id of the engine's request."""
        return self._stream.id

    @property
    def usage(self) -> TokenUsage:
        """Tokens of the pieces that have passed."""
        return self._record.usages[self._stream.id]

    def __aiter__(self) -> AsyncIterator[Piece]:
        """Return the stream."""
        return self

    async def __anext__(self) -> Piece:
        """Wait for the next piece."""
        piece = await anext(self._stream)
        record = self._record
        if record.first_token_seconds is None:
            record.first_token_seconds = seconds_since(record.started)
        record.usages[self._stream.id] = piece.usage
        return piece

    async def __aenter__(self) -> Self:
        """Return the stream."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Abort what is unfinished."""
        await self._stream.aclose()


@dataclass(frozen=True)
class Call(Generic[B]):
    """One request."""

    engine: ServingEngine
    body: B
    path_params: Mapping[str, str]
    record: Record
    _send: Send
    _keep_alive: float

    def check_model(self, name: str) -> None:
        """Raise `ApiError` 404 unless *name* is the model that is served."""
        served = self.engine.model.name
        if name != served:
            raise ApiError(
                404,
                f"model: {shortened(name)!r} is not served here; {served!r} is",
                param="model",
                code="model_not_found",
            )

    async def submit(
        self,
        prompt: Prompt,
        params: GenerationParams,
        *,
        names: Mapping[str, str],
        request_id: str | None = None,
    ) -> RecordedStream:
        """Queue a prompt, by default under the id of the HTTP request.

        *names* gives the client's names of fields for the engine's, where they differ.  Raises
        `ApiError` if the engine refuses.
        """
        request_id = request_id or self.record.request_id
        try:
            stream = await self.engine.submit(prompt, params, request_id=request_id)
        except EngineError as error:
            raise from_engine(error, names) from error
        return RecordedStream(stream, self.record)

    async def reply(self, answer: Any) -> None:
        """Send *answer* as JSON."""
        await self.reply_bytes(_encode(answer), JSON)

    async def reply_bytes(self, body: bytes, content_type: str) -> None:
        """Send *body* as it is."""
        headers = [
            (b"content-type", content_type.encode("latin-1")),
            (b"content-length", str(len(body)).encode("ascii")),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self, chunks: AsyncGenerator[msgspec.Struct]) -> None:
        """Send each of *chunks* as an event when it is there, then ``[DONE]``."""
        await sse.send_events(self._send, self._events(chunks), self._keep_alive)

    async def _events(self, chunks: AsyncGenerator[msgspec.Struct]) -> AsyncGenerator[bytes]:
        """Yield events; an error becomes the last one, since the status has been sent."""
        try:
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    yield sse.event(_encode(chunk))
        except ApiError as error:
            yield self._last_event(error)
        except EngineError as error:
            yield self._last_event(from_engine(error, {}))
        except Exception:
            log.exception("stream failed")
            yield self._last_event(internal_error())
        yield sse.DONE

    def _last_event(self, error: ApiError) -> bytes:
        self.record.error = error.code
        return sse.event(_encode(error.reply))
