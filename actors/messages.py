"""Who says what to whom.

======================  =============  ============================================================
message                 from           to
======================  =============  ============================================================
`Encode`, `Cancel`      engine         tokenizer: a caller submits, or leaves
`CutOff`                engine         tokenizer: no caller gets more
`Submit`, `Abort`       tokenizer      scheduler: a request is encoded; its caller left, or a stop
                                       string was found
`Watch`                 scheduler      cache owner: remember a prompt
`Watched`               cache owner    scheduler: how much of it is in the tree
`CacheTransaction`      scheduler      cache owner: everything that one plan asks of the cache
`CacheReceipt`          cache owner    scheduler: what came of it
`Step`                  scheduler      worker: compute this
`StepDone`              worker         scheduler: what was sampled
`TokenBatch`            scheduler      tokenizer: new tokens, and who has ended
`Acknowledge`           tokenizer      scheduler: a batch is delivered
`WorkerLost`            worker         scheduler: the worker's memory is gone
`NewGeneration`         scheduler      cache owner: forget every page; worker: no step that was sent
                                       before this is wanted
`WorkerReady`           worker         scheduler: a fresh worker takes steps
======================  =============  ============================================================

Those that cross machines are frozen values and are defined beside the machine that takes or
returns them (`radixd.cache.messages`, `radixd.scheduling.messages`).  The three below never leave
the process: they carry the caller's outbox, or act on it.
"""

from dataclasses import dataclass

from radixd.actors.generation import GenerationParams, Prompt
from radixd.actors.outbox import Outbox
from radixd.cache.messages import CacheEvent, NewGeneration, RequestId
from radixd.scheduling.messages import SchedulerEvent, Step, TokenBatch


@dataclass(frozen=True, slots=True)
class Encode:
    """A caller submits a prompt."""

    request: RequestId
    prompt: Prompt
    params: GenerationParams
    outbox: Outbox
    arrived: float
    """Loop time."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A caller left before the end."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class CutOff:
    """Every answer ends where it is."""


TokenizerEvent = Encode | Cancel | CutOff | TokenBatch
WorkerEvent = Step | NewGeneration

__all__ = [
    "CacheEvent",
    "Cancel",
    "CutOff",
    "Encode",
    "SchedulerEvent",
    "TokenizerEvent",
    "WorkerEvent",
]
