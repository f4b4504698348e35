"""What a caller of the `Engine` gives and gets: prompts, parameters, pieces and errors.

Knows nothing of HTTP; `radixd.api` translates.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from radixd.scheduling.messages import FinishReason


class TextPrompt(msgspec.Struct, frozen=True):
    """Text as it stands; the tokenizer adds what it adds to any text (a BOS token, say)."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True):
    """Token ids as they stand."""

    ids: tuple[int, ...]


class ChatPrompt(msgspec.Struct, frozen=True):
    """Messages for the model's chat template; each has ``role`` and ``content`` at least."""

    messages: tuple[Mapping[str, Any], ...]


Prompt = TextPrompt | TokenPrompt | ChatPrompt


class GenerationParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to continue a prompt.  `Engine.submit` checks every limit and names the field."""

    max_tokens: int | None = None
    """At least 1; None means as many as the context still holds."""
    temperature: float = 1.0
    """0 to 2; 0 is greedy."""
    top_p: float = 1.0
    """Above 0, at most 1."""
    top_k: int = 0
    """0 means all tokens."""
    seed: int | None = None
    """None draws one at random."""
    stop: tuple[str, ...] = ()
    """At most 16 strings, none empty; the answer ends before the first that it contains."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class TokenUsage(msgspec.Struct, frozen=True):
    """Tokens of one request so far.  ``from_tree + in_flight + computed == prompt_tokens``."""

    prompt_tokens: int
    completion_tokens: int
    from_tree: int
    """Prompt tokens whose KV was in the radix tree, ready."""
    in_flight: int
    """Prompt tokens whose KV another request was computing."""
    computed: int

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed for this request."""
        return self.from_tree + self.in_flight


class Piece(msgspec.Struct, frozen=True):
    """The next part of an answer: one token's text or, for a slow reader, more."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    """Set on the last piece."""
    stop_string: str | None
    """The stop string that ended the answer, on the last piece."""
    usage: TokenUsage


class ModelCard(msgspec.Struct, frozen=True):
    """What the engine serves."""

    name: str
    """The served name: what clients send as ``model``."""
    max_model_len: int
    """Longest prompt plus answer, in tokens."""
    page_size: int
    capacity_tokens: int
    vocabulary: int
    device: str
    dtype: str
    created: int
    """Unix time at which the engine became ready."""


class EngineError(Exception):
    """Base of what `Engine.submit` and a stream raise."""


class InvalidRequestError(EngineError):
    """The caller's fault; names the field and the limit."""

    def __init__(self, field: str, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.message = message
        self.code = code
        """OpenAI's error code where there is one, such as ``context_length_exceeded``."""


class OverloadedError(EngineError):
    """The gate is full; nothing was queued."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("the server holds as many requests as it may; try again later")
        self.retry_after = retry_after
        """Seconds after which room is likely."""


class DrainingError(EngineError):
    """The engine is shutting down and takes no new requests."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("the server is shutting down; try another one")
        self.retry_after = retry_after


class EngineClosedError(EngineError):
    """The engine is not running: not started, already closed, or an actor died."""


class FailedRequestError(EngineError):
    """The engine's fault: this request is lost, and no other."""


class WorkerFailedError(FailedRequestError):
    """The worker failed twice with this request."""
