"""An engine that answers from a script: the same face as the real one, and no model behind it.

It lets a test decide what a real engine does only by chance: when the next piece comes, what a
submit is refused with, how an answer breaks off.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from radixd.actors.engine import EngineStatistics, GateStatistics
from radixd.actors.generation import (
    ChatPrompt,
    EngineError,
    GenerationParams,
    ModelCard,
    Piece,
    Prompt,
    TextPrompt,
    TokenUsage,
)
from radixd.cache.messages import CacheStatistics, PageCounts
from radixd.metrics.registry import Metrics
from radixd.scheduling.messages import FinishReason, SchedulerStatistics
from radixd.settings import Settings


@dataclass(frozen=True)
class Submitted:
    """One call of `ScriptedEngine.submit`."""

    prompt: Prompt
    params: GenerationParams
    request_id: str


@dataclass(kw_only=True)
class Script:
    """What every answer is: one piece for each text, one token a piece."""

    texts: Sequence[str] = ("Paris", " is", " it.")
    finish: FinishReason = "stop"
    stop_string: str | None = None
    from_tree: int = 3
    in_flight: int = 2
    submit_error: EngineError | None = None
    """Raised instead of taking a request."""
    break_after: int | None = None
    """Pieces after which *stream_error* is raised."""
    stream_error: Exception | None = None


def prompt_length(prompt: Prompt) -> int:
    """Return the tokens of *prompt*: its ids, or its UTF-8 bytes."""
    if isinstance(prompt, ChatPrompt):
        return sum(len(str(message["content"]).encode()) for message in prompt.messages)
    if isinstance(prompt, TextPrompt):
        return len(prompt.text.encode())
    return len(prompt.ids)


class ScriptedStream:
    """The scripted answer to one request."""

    def __init__(self, engine: "ScriptedEngine", submitted: Submitted) -> None:
        self._engine = engine
        self._id = submitted.request_id
        self._tokens = prompt_length(submitted.prompt)
        self._sent = 0
        self._finished = False

    @property
    def id(self) -> str:
        """The request's id."""
        return self._id

    @property
    def usage(self) -> TokenUsage:
        """Tokens so far; none is cached before the first piece."""
        script = self._engine.script
        if not self._sent:
            return TokenUsage(self._tokens, 0, 0, 0, self._tokens)
        tree = min(script.from_tree, self._tokens - 1)
        in_flight = min(script.in_flight, self._tokens - 1 - tree)
        return TokenUsage(
            self._tokens, self._sent, tree, in_flight, self._tokens - tree - in_flight
        )

    def __aiter__(self) -> AsyncIterator[Piece]:
        """Return the stream."""
        return self

    async def __anext__(self) -> Piece:
        """Return the next piece of the script, when the engine flows."""
        if self._finished:
            raise StopAsyncIteration
        await self._engine.flowing.wait()
        script = self._engine.script
        if script.stream_error is not None and self._sent == script.break_after:
            raise script.stream_error
        text = script.texts[self._sent]
        self._sent += 1
        self._finished = self._sent == len(script.texts)
        return Piece(
            text=text,
            token_ids=(100 + self._sent,),
            finish_reason=script.finish if self._finished else None,
            stop_string=script.stop_string if self._finished else None,
            usage=self.usage,
        )

    async def aclose(self) -> None:
        """Note an abort, unless the answer was read to its end."""
        if not self._finished:
            self._engine.aborted.put_nowait(self._id)


class ScriptedEngine:
    """Takes any request and answers it from its script."""

    def __init__(self) -> None:
        self.script = Script()
        self.submitted: asyncio.Queue[Submitted] = asyncio.Queue()
        self.aborted: asyncio.Queue[str] = asyncio.Queue()
        """Ids of requests whose streams were left before their end."""
        self.flowing = asyncio.Event()
        """No piece comes while this is clear."""
        self.flowing.set()
        self.model = ModelCard(
            name="scripted",
            max_model_len=4096,
            page_size=16,
            capacity_tokens=65536,
            vocabulary=256,
            device="none",
            dtype="none",
            created=1_700_000_000,
        )
        self.metrics = Metrics()
        self.settings = Settings(worker="simulated", max_requests=4)
        self.ready = True
        self.alive = True

    async def submit(
        self, prompt: Prompt, params: GenerationParams, *, request_id: str | None = None
    ) -> ScriptedStream:
        """Take the request, or raise what the script says."""
        if self.script.submit_error is not None:
            raise self.script.submit_error
        submitted = Submitted(prompt, params, request_id or uuid.uuid4().hex)
        self.submitted.put_nowait(submitted)
        return ScriptedStream(self, submitted)

    async def statistics(self) -> EngineStatistics:
        """Return the books of an empty cache, and as many requests as were submitted."""
        pages = PageCounts(
            free=4096, locked=0, evictable=0, pending=0, private=0, quarantined=0, scratch=1
        )
        return EngineStatistics(
            model=self.model,
            cache=CacheStatistics(
                capacity_pages=4097,
                page_size=16,
                pages=pages,
                nodes=0,
                leases=0,
                evicted_pages_total=0,
                generation=0,
            ),
            scheduler=SchedulerStatistics(waiting=0, held=0, running=0, steps_in_flight=0),
            gate=GateStatistics(self.submitted.qsize(), self.settings.max_requests, False),
        )
