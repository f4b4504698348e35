"""The tokenizer's actor: text to tokens on the way in, tokens to text on the way out.

Long prompts are encoded in threads, off the loop.  Requests still enter the scheduler in the order
in which the gate numbered them, so a short prompt does not overtake a long one that came first.
"""

import random
from collections import deque
from typing import assert_never

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from radixd.actors.gate import Gate
from radixd.actors.generation import EngineClosedError, EngineError, FailedRequestError
from radixd.actors.mailbox import Mailbox
from radixd.actors.messages import Cancel, CutOff, Encode, TokenizerEvent
from radixd.actors.prompts import SEED_MAX, characters
from radixd.actors.served import ServedModel
from radixd.actors.sessions import Session
from radixd.cache.messages import RequestId
from radixd.cache.tokens import pack
from radixd.metrics.registry import Metrics
from radixd.scheduling.messages import (
    Abort,
    Acknowledge,
    Delivery,
    SamplingParams,
    SchedulerEvent,
    Submit,
    TokenBatch,
)
from radixd.text.decoding import IncrementalDecoder
from radixd.text.stopping import StopStrings

log = structlog.get_logger("radixd.tokenizer")

INLINE_CHARACTERS_MAX = 2_000
"""A prompt up to this long is encoded at once: a thread's round trip would take longer."""
THREADS = 2


class _Arrival:
    """A prompt on its way in."""

    __slots__ = ("cancelled", "encode", "result")

    def __init__(self, encode: Encode) -> None:
        self.encode = encode
        self.result: list[int] | EngineError | None = None
        self.cancelled = False

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.cancelled or self.result is not None


class TokenizerActor:
    """See the module."""

    def __init__(
        self,
        *,
        served: ServedModel,
        gate: Gate,
        inbox: Mailbox[TokenizerEvent],
        scheduler: Mailbox[SchedulerEvent],
        metrics: Metrics,
        draw: random.Random,
    ) -> None:
        """*draw* makes the seeds of requests that bring none."""
        self._tokenizer = served.tokenizer
        self._encoder = served.encoder
        self._eos_ids = served.eos_ids
        self._gate = gate
        self._inbox = inbox
        self._scheduler = scheduler
        self._metrics = metrics
        self._draw = draw
        self._threads = anyio.CapacityLimiter(THREADS)
        self._arrivals: deque[_Arrival] = deque()
        self._sessions: dict[RequestId, Session] = {}

    async def run(self) -> None:
        """Serve the mailbox until cancelled; then fail whoever still waits."""
        try:
            async with anyio.create_task_group() as encoding:
                while True:
                    for event in await self._inbox.take():
                        match event:
                            case Encode():
                                self._arrive(event, encoding)
                            case Cancel():
                                self._cancel(event.request)
                            case CutOff():
                                self._cut_off()
                            case TokenBatch():
                                self._deliver(event)
                            case _:
                                assert_never(event)
        finally:
            self._fail_all()

    # In.

    def _arrive(self, event: Encode, encoding: TaskGroup) -> None:
        arrival = _Arrival(event)
        self._arrivals.append(arrival)
        if characters(event.prompt) <= INLINE_CHARACTERS_MAX:
            arrival.result = self._encode(event)
            self._admit_in_order()
        else:
            encoding.start_soon(self._encode_in_thread, arrival)

    async def _encode_in_thread(self, arrival: _Arrival) -> None:
        arrival.result = await anyio.to_thread.run_sync(
            self._encode, arrival.encode, limiter=self._threads
        )
        self._admit_in_order()

    def _encode(self, event: Encode) -> list[int] | EngineError:
        try:
            return self._encoder.encode(event.prompt)
        except EngineError as error:
            return error
        except Exception:
            # Tokenizer and template are foreign code: what they break is one request.
            log.exception("a prompt could not be encoded")
            return FailedRequestError("the prompt could not be encoded; the log says why")

    def _admit_in_order(self) -> None:
        while self._arrivals and self._arrivals[0].settled:
            arrival = self._arrivals.popleft()
            request = arrival.encode.request
            result = arrival.result
            if arrival.cancelled:
                self._metrics.request_finished("abort")
                self._gate.leave(request)
                continue
            try:
                if isinstance(result, EngineError):
                    raise result
                assert result is not None
                self._submit(arrival.encode, result)
            except EngineError as error:
                self._metrics.request_finished("rejected")
                arrival.encode.outbox.fail(error)
                self._gate.leave(request)

    def _submit(self, event: Encode, ids: list[int]) -> None:
        params = event.params
        max_tokens = self._encoder.answer_limit(len(ids), params.max_tokens)
        seed = params.seed if params.seed is not None else self._draw.randint(0, SEED_MAX)
        eos_ids = () if params.ignore_eos else self._eos_ids
        stop_ids = tuple(dict.fromkeys((*eos_ids, *params.stop_token_ids)))
        session = Session(
            prompt_tokens=len(ids),
            decoder=IncrementalDecoder(self._tokenizer),
            stops=StopStrings(params.stop),
            stop_ids=frozenset(stop_ids),
            outbox=event.outbox,
            arrived=event.arrived,
        )
        self._sessions[event.request] = session
        event.outbox.accept(session.usage)
        sampling = SamplingParams(params.temperature, params.top_p, params.top_k, seed)
        self._scheduler.post(Submit(event.request, pack(ids), max_tokens, sampling, stop_ids))

    def _cancel(self, request: RequestId) -> None:
        session = self._sessions.get(request)
        if session is not None:
            if not session.closed:
                session.closed = True
                self._metrics.request_finished("abort")
            self._scheduler.post(Abort(request, "abort"))
            return
        for arrival in self._arrivals:
            if arrival.encode.request == request:
                arrival.cancelled = True
        self._admit_in_order()

    def _cut_off(self) -> None:
        for arrival in self._arrivals:
            arrival.encode.outbox.accept(arrival.encode.outbox.usage)
            arrival.encode.outbox.end("abort")
            arrival.cancelled = True
        self._admit_in_order()
        for request, session in self._sessions.items():
            if not session.closed:
                session.outbox.end("abort")
            self._cancel(request)

    # Out.

    def _deliver(self, batch: TokenBatch) -> None:
        for delivery in batch.deliveries:
            self._deliver_one(delivery, self._sessions[delivery.request])
        self._scheduler.post(Acknowledge())

    def _deliver_one(self, delivery: Delivery, session: Session) -> None:
        first = session.usage.completion_tokens == 0 and bool(delivery.tokens)
        if first and not session.closed:
            self._metrics.first_token(anyio.current_time() - session.arrived)
        heard = session.deliver(delivery)
        if delivery.usage is not None and not session.counted:
            session.counted = True
            self._metrics.prompt_admitted(
                from_tree=delivery.usage.from_tree,
                in_flight=delivery.usage.in_flight,
                computed=delivery.usage.computed,
            )
        self._metrics.tokens_generated(heard.tokens)
        if heard.finish is not None:
            self._metrics.request_finished(heard.finish)
        if delivery.finish is not None:
            del self._sessions[delivery.request]
            self._gate.leave(delivery.request)
        elif heard.finish is not None:
            self._scheduler.post(Abort(delivery.request, "stop"))

    def _fail_all(self) -> None:
        error = EngineClosedError("the engine stopped before the answer was complete")
        for session in self._sessions.values():
            session.outbox.fail(error)
        for arrival in self._arrivals:
            arrival.encode.outbox.fail(error)
        for event in self._inbox.drain():
            if isinstance(event, Encode):
                event.outbox.fail(error)
