"""The engine: the four actors, their mailboxes and the front door, as one async context manager.

::

    async with Engine(settings) as engine:
        async for piece in engine.generate(TextPrompt("Once"), GenerationParams(max_tokens=8)):
            print(piece.text, end="")

The task group inside is the failure domain: only the worker is restarted; if another actor dies,
all end, callers get `EngineClosedError`, and the error surfaces where the engine was entered.
"""

import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import msgspec

from radixd.actors.cache import run_cache
from radixd.actors.gate import Gate
from radixd.actors.generation import (
    EngineClosedError,
    EngineError,
    GenerationParams,
    ModelCard,
    Piece,
    Prompt,
    TokenUsage,
)
from radixd.actors.mailbox import Mailbox
from radixd.actors.messages import Cancel, CutOff, Encode, TokenizerEvent, WorkerEvent
from radixd.actors.outbox import Outbox
from radixd.actors.scheduler import run_scheduler
from radixd.actors.served import ServedModel, make_worker
from radixd.actors.tokenizer import TokenizerActor
from radixd.actors.worker import WorkerActor
from radixd.cache.messages import CacheEvent, CacheStatistics, RequestId
from radixd.cache.owner import CacheOwner
from radixd.cache.prefix_cache import PrefixCache
from radixd.metrics.registry import Metrics
from radixd.scheduling.messages import SchedulerEvent, SchedulerStatistics
from radixd.scheduling.policies import ordering_policy
from radixd.scheduling.scheduler import Scheduler
from radixd.settings import Settings
from radixd.text.tokenizers import Tokenizer
from radixd.workers.protocol import Worker, WorkerInfo

MESSAGES_PER_REQUEST = 4
"""At most so many messages about one request lie in one mailbox: submit, abort, watched, last
delivery (a batch holds at least one)."""
MESSAGES_BESIDE = 16
"""Messages about no request: receipts, steps, results, acknowledgements, a lost worker's."""


class GateStatistics(msgspec.Struct, frozen=True):
    """Requests in the engine."""

    requests: int
    limit: int
    closed: bool


class EngineStatistics(msgspec.Struct, frozen=True):
    """The books of all actors at one moment."""

    model: ModelCard
    cache: CacheStatistics
    scheduler: SchedulerStatistics
    gate: GateStatistics


class Stream:
    """The pieces of one answer, for one reader.

    Leaving it early aborts the request; one that is dropped without `aclose` computes to its end.
    """

    def __init__(
        self, request_id: str, request: RequestId, outbox: Outbox, cancel: Callable[[Cancel], None]
    ) -> None:
        self.id = request_id
        self._request = request
        self._outbox = outbox
        self._cancel = cancel

    @property
    def usage(self) -> TokenUsage:
        """Tokens so far."""
        return self._outbox.usage

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        piece = await self._outbox.take()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Abort what is unfinished; does not wait.  Idempotent."""
        if not self._outbox.ended:
            self._outbox.end("abort")
            self._cancel(Cancel(self._request))


class Engine:
    """See the module.  Use it in the task and event loop that entered it."""

    def __init__(
        self,
        settings: Settings,
        *,
        worker: Worker | None = None,
        metrics: Metrics | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        settings.check()
        self.settings = settings
        self.metrics = metrics or Metrics()
        self._worker = worker or make_worker(settings, say)
        self._gate = Gate(settings.max_requests)
        self._served: ServedModel | None = None
        self._stack: AsyncExitStack | None = None
        self._worker_ready = False
        size = MESSAGES_PER_REQUEST * settings.max_requests + MESSAGES_BESIDE
        self._to_tokenizer: Mailbox[TokenizerEvent] = Mailbox("tokenizer", size)
        self._to_scheduler: Mailbox[SchedulerEvent] = Mailbox("scheduler", size)
        self._to_cache: Mailbox[CacheEvent] = Mailbox("cache owner", size)
        self._to_worker: Mailbox[WorkerEvent] = Mailbox("worker", MESSAGES_BESIDE)
        self._owner: CacheOwner | None = None
        self._scheduler: Scheduler | None = None

    # Life.

    async def __aenter__(self) -> Self:
        """Start worker and actors.

        Raises `WorkerError` or `SettingsError` if the model cannot be served so.
        """
        if self._stack is not None:
            raise RuntimeError("an engine is entered once")
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._worker.close)
            info = await self._worker.start()
            actors = self._build(info)
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            for actor in actors:
                group.start_soon(self._live, actor)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Stop at once: unfinished requests fail.  See `drain` to let them finish."""
        assert self._stack is not None
        if isinstance(error, anyio.get_cancelled_exc_class()):
            # Perhaps it is the task group that cancels, since an actor died: it must see it.
            return await self._stack.__aexit__(kind, error, traceback)
        # The caller's own error goes on as it is, and not inside the group's.
        await self._stack.aclose()
        return None

    @property
    def alive(self) -> bool:
        """Whether all actors run."""
        return self._served is not None

    @property
    def ready(self) -> bool:
        """Whether requests are taken and computed now."""
        return self.alive and self._worker_ready and not self._gate.closed

    @property
    def model(self) -> ModelCard:
        """What is served.  Raises `EngineClosedError` while the engine does not run."""
        return self._running().card

    @property
    def tokenizer(self) -> Tokenizer:
        """The served model's tokenizer; raises as `model` does."""
        return self._running().tokenizer

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._gate.close()

    async def drained(self) -> None:
        """Wait until `drain` was called and no request is left."""
        await self._gate.empty()

    def cut_off(self) -> None:
        """End every request where it is, with the finish reason ``abort``."""
        self._to_tokenizer.post(CutOff())

    # Requests.

    async def submit(
        self, prompt: Prompt, params: GenerationParams, *, request_id: str | None = None
    ) -> Stream:
        """Queue a request and return once it is known to be valid.

        Raises `InvalidRequestError` for what the caller got wrong, `OverloadedError` at the limit
        of requests, `DrainingError` after `drain`, `EngineClosedError` while the engine does not
        run.
        """
        served = self._running()
        try:
            served.encoder.check(prompt, params)
            request = self._gate.enter()
        except EngineError:
            self.metrics.request_finished("rejected")
            raise
        outbox = Outbox()
        stream = Stream(request_id or uuid.uuid4().hex, request, outbox, self._to_tokenizer.post)
        self._to_tokenizer.post(
            Encode(request, prompt, params, outbox, arrived=anyio.current_time())
        )
        try:
            await outbox.accepted()
        except BaseException:
            await stream.aclose()
            raise
        return stream

    async def generate(
        self, prompt: Prompt, params: GenerationParams, *, request_id: str | None = None
    ) -> AsyncIterator[Piece]:
        """Yield the pieces of the answer; closing the iterator aborts it.  Raises as `submit`."""
        async with await self.submit(prompt, params, request_id=request_id) as stream:
            async for piece in stream:
                yield piece

    async def statistics(self) -> EngineStatistics:
        """Return the books of all actors."""
        if self._owner is None or self._scheduler is None:
            raise EngineClosedError("the engine is not running")
        return EngineStatistics(
            model=self.model,
            cache=self._owner.statistics(),
            scheduler=self._scheduler.statistics(),
            gate=GateStatistics(self._gate.inside, self._gate.limit, self._gate.closed),
        )

    # Inside.

    def _running(self) -> ServedModel:
        if self._served is None:
            raise EngineClosedError("the engine is not running")
        return self._served

    def _build(self, info: WorkerInfo) -> list[Callable[[], Awaitable[None]]]:
        """Make the machines for the worker that *info* describes, and the actors around them."""
        settings = self.settings
        served = ServedModel(settings, info)
        policy = ordering_policy(settings.policy)
        cache = PrefixCache(
            capacity_pages=info.kv_pages,
            page_size=info.page_size,
            enabled=not settings.disable_cache,
        )
        self._owner = CacheOwner(
            cache, sharing=settings.share_in_flight, report_matches=policy.reads_matches
        )
        self._scheduler = Scheduler(
            policy=policy,
            sharing=settings.share_in_flight,
            page_size=info.page_size,
            max_running=settings.max_running,
            max_step_tokens=settings.max_step_tokens,
        )
        tokenizer = TokenizerActor(
            served=served,
            gate=self._gate,
            inbox=self._to_tokenizer,
            scheduler=self._to_scheduler,
            metrics=self.metrics,
            draw=random.Random(),
        )
        worker = WorkerActor(
            self._worker, self._to_worker, self._to_scheduler, self.metrics, self._worker_changed
        )
        self._served = served
        self._worker_ready = True
        return [
            tokenizer.run,
            worker.run,
            partial(run_cache, self._owner, self._to_cache, self._to_scheduler, self.metrics),
            partial(
                run_scheduler,
                self._scheduler,
                self._to_scheduler,
                self._to_cache,
                self._to_worker,
                self._to_tokenizer,
                self.metrics,
            ),
        ]

    async def _live(self, actor: Callable[[], Awaitable[None]]) -> None:
        """Run *actor*; the engine is alive while all of them are."""
        try:
            await actor()
        finally:
            self._served = None
            self._gate.abandon()

    def _worker_changed(self, ready: bool) -> None:
        self._worker_ready = ready
