"""What this room needs of an engine; `radixd.actors.engine.Engine` has it."""

from collections.abc import AsyncIterator
from typing import Protocol

from radixd.actors.engine import EngineStatistics
from radixd.actors.generation import GenerationParams, ModelCard, Piece, Prompt, TokenUsage
from radixd.metrics.registry import Metrics
from radixd.settings import Settings


class PieceStream(Protocol):
    """The pieces of one answer."""

    @property
    def id(self) -> str:
        """The request's id, given or generated."""

    @property
    def usage(self) -> TokenUsage:
        """Tokens so far; the prompt's number is known from the start."""

    def __aiter__(self) -> AsyncIterator[Piece]:
        """Return the stream."""

    async def __anext__(self) -> Piece:
        """Wait for the next piece."""

    async def aclose(self) -> None:
        """Abort what is unfinished."""


class ServingEngine(Protocol):
    """Takes prompts, gives streams, and says how it is."""

    @property
    def model(self) -> ModelCard:
        """What is served."""

    @property
    def metrics(self) -> Metrics:
        """The metrics of this engine."""

    @property
    def settings(self) -> Settings:
        """How this engine runs."""

    @property
    def ready(self) -> bool:
        """Whether requests are taken and computed now."""

    @property
    def alive(self) -> bool:
        """Whether all actors run."""

    async def submit(
        self, prompt: Prompt, params: GenerationParams, *, request_id: str | None = None
    ) -> PieceStream:
        """Validate and queue a request; raises an `EngineError`."""

    async def statistics(self) -> EngineStatistics:
        """Return the books of all actors."""
