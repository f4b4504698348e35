"""Runs steps: one forward pass over all rows, then one draw for each row that samples.

Keeps what a `Seat` is made of while its request runs: the page table, the last sampled token, the
sampling parameters, whether it has ended.  Knows the model as a function from tokens to logits,
and nothing of processes.
"""

import time

import torch
from torch import Tensor
from transformers import PreTrainedModel

from radixd.cache.messages import Remap, RequestId
from radixd.scheduling.messages import Row, Seat, Step, StepDone
from radixd.workers.pytorch.attention import KvMemory, PagedPass
from radixd.workers.pytorch.layout import Span, lay_out
from radixd.workers.pytorch.sampling import sample


class _Seated:
    __slots__ = ("ended", "last", "place", "sampling", "stop_ids")

    def __init__(self, seat: Seat, place: int) -> None:
        self.place = place
        self.sampling = seat.sampling
        self.stop_ids = frozenset(seat.stop_ids)
        self.last: int | None = None
        self.ended = False


class Seats:
    """The requests that run, each with a row of one tensor of page tables."""

    def __init__(self, seats: int, device: torch.device) -> None:
        self.tables = torch.zeros(seats, 1, dtype=torch.int32, device=device)
        """[seats, pages]; both dimensions grow on demand."""
        self._free = list(reversed(range(seats)))
        self._seated: dict[RequestId, _Seated] = {}

    def __getitem__(self, request: RequestId) -> _Seated:
        return self._seated[request]

    def begin(self, seat: Seat) -> None:
        """Seat a request; raises `ValueError` if it is seated."""
        if seat.request in self._seated:
            raise ValueError(f"request {seat.request} is seated already")
        table = _uint32(seat.table).to(self.tables.device)
        self._make_room(pages=len(table))
        place = self._free.pop()
        self.tables[place, : len(table)] = table
        self._seated[seat.request] = _Seated(seat, place)

    def end(self, request: RequestId) -> None:
        """Free a request's seat; raises `KeyError` if it has none."""
        self._free.append(self._seated.pop(request).place)

    def remap(self, remap: Remap) -> None:
        """Change one page of a request's table."""
        self.tables[self._seated[remap.request].place, remap.index] = remap.page

    def _make_room(self, *, pages: int) -> None:
        rows, width = self.tables.shape
        more_rows = 0 if self._free else rows
        more_width = max(0, 1 << (pages - 1).bit_length()) - width if pages > width else 0
        if more_rows or more_width:
            self.tables = torch.nn.functional.pad(self.tables, (0, more_width, 0, more_rows))
            self._free = [*reversed(range(rows, rows + more_rows)), *self._free]


class StepRunner:
    """Computes steps in the order in which they are given."""

    def __init__(
        self, model: PreTrainedModel, memory: KvMemory, *, page_size: int, seats: int
    ) -> None:
        self._model = model
        self._memory = memory
        self._page_size = page_size
        self._device = model.device
        self._seats = Seats(seats, model.device)

    @torch.inference_mode()
    def run(self, step: Step) -> StepDone:
        """Apply *step* and return what it sampled.

        Raises `NonFiniteLogitsError`; after any exception the memory is not to be trusted.
        """
        began = time.perf_counter()
        for request in step.end:
            self._seats.end(request)
        for seat in step.begin:
            self._seats.begin(seat)
        for remap in step.remaps:
            self._seats.remap(remap)
        rows = [row for row in step.rows if not self._seats[row.request].ended]
        sampled = [row for row in rows if row.sample]
        tokens = self._compute(rows) if rows else []
        for row, token in zip(sampled, tokens, strict=True):
            seated = self._seats[row.request]
            seated.last = token
            seated.ended = token in seated.stop_ids
        return StepDone(
            number=step.number,
            requests=tuple(row.request for row in sampled),
            tokens=tuple(tokens),
            seconds=time.perf_counter() - began,
        )

    def _compute(self, rows: list[Row]) -> list[int]:
        inputs = [self._input(row) for row in rows]
        ids = torch.cat(inputs).to(self._device, torch.int64)
        spans = [
            Span(self._seats[row.request].place, row.start, len(tokens), row.write)
            for row, tokens in zip(rows, inputs, strict=True)
        ]
        layout = lay_out(spans, self._seats.tables, self._page_size)
        ends = []
        wanted = []
        position = []
        total = 0
        for row, span in zip(rows, spans, strict=True):
            total += span.length
            if row.sample:
                ends.append(total - 1)
                position.append(span.start + span.length)
                wanted.append(self._seats[row.request].sampling)
        logits = self._model(
            input_ids=ids[None],
            position_ids=layout.positions[None],
            use_cache=False,
            logits_to_keep=torch.tensor(ends, dtype=torch.int64, device=self._device),
            paged=PagedPass(self._memory, layout),
        ).logits[0]
        return sample(logits.float(), wanted, position) if ends else []

    def _input(self, row: Row) -> Tensor:
        if row.tokens:
            return _uint32(row.tokens)
        last = self._seats[row.request].last
        if last is None:
            raise ValueError(f"request {row.request} has no sampled token to go on from")
        return torch.tensor([last], dtype=torch.int32)


def _uint32(packed: bytes) -> Tensor:
    """Return little-endian uint32 below 2**31 as an int32 tensor."""
    # A copy, since a tensor must not share memory that Python holds to be constant.
    return torch.frombuffer(bytearray(packed), dtype=torch.int32)
