"""A memory that knows whose KV is in each slot, and reads all of it, as attention does.

The simulated model takes its next token from the slot before a row alone, so a wrong page further
up would go unseen.
"""

from array import array
from collections.abc import Collection, Mapping, Sequence

from radixd.cache.messages import RequestId
from radixd.cache.tokens import TOKEN_BYTES, unpack
from radixd.scheduling.messages import Row, Step


class WatchedMemory:
    """Slots of KV, each with a digest of the tokens that it was computed from."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._slots: dict[tuple[int, int], int] = {}
        self._tables: dict[RequestId, array[int]] = {}

    def apply(
        self,
        step: Step,
        sampled: Collection[RequestId],
        sequences: Mapping[RequestId, Sequence[int]],
    ) -> None:
        """Write all rows of *step*, then read what each attends to.

        *sampled* are the requests that got a token: a row that wants one and is not among them was
        skipped.  *sequences* holds the tokens of each request before the step.  Raises
        `AssertionError` where a slot holds anything but the KV of the request's own tokens.
        """
        for request in step.end:
            del self._tables[request]
        for seat in step.begin:
            self._tables[seat.request] = unpack(seat.table)
        for remap in step.remaps:
            self._tables[remap.request][remap.index] = remap.page
        rows = [row for row in step.rows if not row.sample or row.request in sampled]
        spans = [(row, _digests(sequences[row.request][: _end(row)])) for row in rows]
        for row, digests in spans:
            if row.write:
                for position in range(row.start, _end(row)):
                    self._slots[self._slot(row.request, position)] = digests[position]
        for row, digests in spans:
            for position, digest in enumerate(digests):
                assert self._slots.get(self._slot(row.request, position)) == digest, (
                    f"step {step.number}: request {row.request} reads foreign KV at {position}"
                )

    def _slot(self, request: RequestId, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self._page_size)
        return self._tables[request][index], offset


def _end(row: Row) -> int:
    return row.start + max(1, len(row.tokens) // TOKEN_BYTES)


def _digests(tokens: Sequence[int]) -> list[int]:
    """Return, for each token, a digest of it and of all before it."""
    digests, digest = [], 0
    for token in tokens:
        digest = hash((digest, token))
        digests.append(digest)
    return digests
