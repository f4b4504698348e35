"""Rows in the making: what the scheduler knows of a step before and after it is sent."""

from typing import NamedTuple

from radixd.cache.messages import RequestId
from radixd.cache.tokens import TOKEN_BYTES
from radixd.scheduling.messages import Row
from radixd.scheduling.requests import Request


class PlannedRow(NamedTuple):
    """Positions *start* to *end* of one request, to be computed in one step."""

    request: Request
    start: int
    end: int

    @property
    def decodes(self) -> bool:
        """Whether it feeds a sampled token back, rather than computing a part of the prompt."""
        return self.start >= self.request.prompt_length

    @property
    def samples(self) -> bool:
        """Whether the token after it is wanted."""
        return self.end >= self.request.prompt_length

    def message(self) -> Row:
        """Return the row as the worker gets it."""
        request = self.request
        if self.decodes:
            return Row(request.id, self.start, b"", sample=True)
        tokens = request.prompt[self.start * TOKEN_BYTES : self.end * TOKEN_BYTES]
        write = request.write or self.start < request.prompt_length - 1
        return Row(request.id, self.start, tokens, sample=self.samples, write=write)


class Plan(NamedTuple):
    """A step whose receipt is awaited."""

    step: int
    rows: list[PlannedRow]
    candidates: tuple[RequestId, ...]


class Sent(NamedTuple):
    """A step at the worker."""

    step: int
    rows: list[PlannedRow]
