"""One answer on its way from tokens to text.  No queue, no loop: tokens in, a piece of text out."""

from typing import NamedTuple

from radixd.actors.generation import TokenUsage
from radixd.actors.outbox import Outbox
from radixd.scheduling.messages import Delivery, FinishReason, Usage
from radixd.text.decoding import IncrementalDecoder
from radixd.text.stopping import StopStrings


class Heard(NamedTuple):
    """What a delivery meant for the caller."""

    tokens: int
    """Tokens that count as generated."""
    finish: FinishReason | None
    """Set when the answer ended with this delivery, by a stop string or as the scheduler says."""


class Session:
    """Decodes, looks for stop strings, and writes to the caller's outbox."""

    def __init__(
        self,
        *,
        prompt_tokens: int,
        decoder: IncrementalDecoder,
        stops: StopStrings,
        stop_ids: frozenset[int],
        outbox: Outbox,
        arrived: float,
    ) -> None:
        self.arrived = arrived
        self.closed = False
        """Whether the caller gets nothing more: a stop string was found, or it left."""
        self.counted = False
        """Whether the prompt's tokens are in the metrics."""
        self.usage = TokenUsage(prompt_tokens, 0, 0, 0, 0)
        self.outbox = outbox
        self._decoder = decoder
        self._stops = stops
        self._stop_ids = stop_ids

    def deliver(self, delivery: Delivery) -> Heard:
        """Pass *delivery* on to the caller."""
        if delivery.usage is not None:
            self.usage = _combined(self.usage, delivery.usage)
        if self.closed:
            return Heard(0, None)
        tokens = delivery.tokens
        self.usage = _counted(self.usage, len(tokens))
        text = self._stops.feed(self._decoder.feed(self._visible(tokens, delivery.finish)))
        if delivery.finish is not None and self._stops.found is None:
            text += self._stops.feed(self._decoder.finish())
            if self._stops.found is None:
                text += self._stops.finish()
        self.outbox.put(text, tokens, self.usage)
        finish = "stop" if self._stops.found is not None else delivery.finish
        if finish is not None:
            self.closed = True
            self.outbox.end(finish, self._stops.found)
        return Heard(len(tokens), finish)

    def _visible(self, tokens: tuple[int, ...], finish: FinishReason | None) -> tuple[int, ...]:
        """Leave out the stop token that ended the answer: it is not text."""
        if finish == "stop" and tokens and tokens[-1] in self._stop_ids:
            return tokens[:-1]
        return tokens


def _combined(usage: TokenUsage, prompt: Usage) -> TokenUsage:
    return TokenUsage(
        usage.prompt_tokens,
        usage.completion_tokens,
        prompt.from_tree,
        prompt.in_flight,
        prompt.computed,
    )


def _counted(usage: TokenUsage, tokens: int) -> TokenUsage:
    return TokenUsage(
        usage.prompt_tokens,
        usage.completion_tokens + tokens,
        usage.from_tree,
        usage.in_flight,
        usage.computed,
    )
