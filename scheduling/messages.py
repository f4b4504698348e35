"""What the scheduler is told, what it commands, and what a worker is asked to compute."""

from typing import Literal

import msgspec

from radixd.cache.messages import (
    CacheReceipt,
    CacheTransaction,
    NewGeneration,
    Remap,
    RequestId,
    Watch,
    Watched,
)

FinishReason = Literal["stop", "length", "abort", "error"]


class SamplingParams(msgspec.Struct, frozen=True):
    """How a token is drawn.  The draw depends on (seed, position) alone."""

    temperature: float = 1.0
    """0 means greedy: the most probable token, ties to the lowest id."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means all tokens."""
    seed: int = 0
    """Within 0 to 2**63 - 1."""


class Seat(msgspec.Struct, frozen=True):
    """What a worker keeps about a request while it runs."""

    request: RequestId
    table: bytes
    """Page ids, packed little-endian uint32, one for each page the request can ever use."""
    sampling: SamplingParams
    stop_ids: tuple[int, ...]
    """A request that sampled one of these has ended: the worker skips its later rows."""


class Row(msgspec.Struct, frozen=True):
    """A run of one request's tokens in a step."""

    request: RequestId
    start: int
    """Position of the first token in the sequence."""
    tokens: bytes
    """Packed little-endian uint32; empty for one token: the last that was sampled for it."""
    sample: bool
    """Whether the token after the last one is wanted."""
    write: bool = True
    """False for a lone token whose K and V its page already holds, or another row writes."""


class Step(msgspec.Struct, frozen=True, tag=True):
    """One forward pass.  Fields apply in this order: end, begin, remaps, rows.

    In every layer the K and V of all rows are written before any row attends, so a row may read
    pages that another row of the same step writes.
    """

    number: int
    end: tuple[RequestId, ...]
    begin: tuple[Seat, ...]
    remaps: tuple[Remap, ...]
    rows: tuple[Row, ...]


class StepDone(msgspec.Struct, frozen=True, tag=True):
    """What a step sampled; rows that the worker skipped are missing."""

    number: int
    requests: tuple[RequestId, ...]
    tokens: tuple[int, ...]
    seconds: float
    """How long the worker computed."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A request passed the gate and was encoded."""

    request: RequestId
    tokens: bytes
    max_tokens: int
    sampling: SamplingParams
    stop_ids: tuple[int, ...]


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Stop a request, wherever it is; unknown and ended ones are ignored."""

    request: RequestId
    reason: Literal["abort", "stop"]
    """``stop``: a stop string was found in its text."""


class Acknowledge(msgspec.Struct, frozen=True, tag=True):
    """One `TokenBatch` has been delivered."""


class WorkerLost(msgspec.Struct, frozen=True, tag=True):
    """The worker and its memory are gone; steps that were sent will not finish."""


class WorkerReady(msgspec.Struct, frozen=True, tag=True):
    """A fresh worker takes steps."""


class Usage(msgspec.Struct, frozen=True):
    """Where a request's prompt came from; together its prompt tokens, once all are computed."""

    from_tree: int
    in_flight: int
    computed: int


class Delivery(msgspec.Struct, frozen=True):
    """New tokens of one request, and whether it ended with them."""

    request: RequestId
    tokens: tuple[int, ...]
    finish: FinishReason | None
    usage: Usage | None
    """Present with the first tokens and at the end; None if it was never admitted."""


class TokenBatch(msgspec.Struct, frozen=True, tag=True):
    """Everything that one step, or one round of aborts, delivers."""

    deliveries: tuple[Delivery, ...]


class SchedulerStatistics(msgspec.Struct, frozen=True):
    """How many requests are in which state."""

    waiting: int
    held: int
    running: int
    steps_in_flight: int


SchedulerEvent = (
    Submit | Abort | Watched | CacheReceipt | StepDone | Acknowledge | WorkerLost | WorkerReady
)
SchedulerCommand = Watch | CacheTransaction | Step | TokenBatch | NewGeneration
