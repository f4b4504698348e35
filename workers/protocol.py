"""What the engine needs from whatever computes."""

from collections.abc import Awaitable
from typing import Protocol

import msgspec

from radixd.scheduling.messages import Step, StepDone


class WorkerInfo(msgspec.Struct, frozen=True):
    """What a worker says of itself once it is ready to take steps."""

    model: str
    """Name or path it was asked to load."""
    device: str
    """For people: ``cpu``, ``cuda:0 NVIDIA H200``, ``simulated``."""
    dtype: str
    vocabulary: int
    """Number of token ids; every id below it may be sent."""
    context_length: int
    page_size: int
    kv_pages: int
    """Pages in its pool, page 0 included, which is scratch."""
    bytes_per_token: int
    """KV bytes of one token over all layers."""
    eos_ids: tuple[int, ...]
    tokenizer_file: str | None
    """Path of a ``tokenizer.json``; None: bytes are tokens."""
    chat_template: str | None
    """Jinja source."""
    special_tokens: dict[str, str]
    """Names that the template may use, such as ``bos_token``, with their text."""


class WorkerError(Exception):
    """The worker is gone or broken; its memory is lost."""


class Worker(Protocol):
    """Computes steps, in the order in which `run` was called."""

    async def start(self) -> WorkerInfo:
        """Make ready; after a `WorkerError` this starts afresh with empty memory.

        Raises `WorkerError` with a reason for people if it cannot.
        """

    def run(self, step: Step) -> Awaitable[StepDone]:
        """Queue *step* behind those of earlier calls, at once, and return its result to await.

        Awaiting raises `WorkerError` if the worker was lost; every queued step then fails.
        """

    async def close(self) -> None:
        """Stop and free everything; idempotent."""
