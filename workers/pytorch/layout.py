"""Which token of a step is where: the index tensors of one forward pass, built once for all layers.

The rows of a step are flattened to one sequence of tokens.  For attention they are cut into pieces
of at most `PIECE` queries; pieces of similar size are padded to one another and make a block, so
that a decode batch is one block or a few whatever its size, and a chunk of a long prefill costs
only the part of the square that lies before each piece.

A padded key repeats the last slot of its own sequence and is masked; a padded query repeats the
last query of its own row.  So padding never reads what some other sequence left behind.
"""

from collections.abc import Iterable, Sequence

import msgspec
import torch
from torch import Tensor

PIECE = 256
"""Queries of a piece.  2,000 tokens of prefill then compute 1.15 times the causal triangle."""
ALONE = 64
"""Pieces of more queries fill a matrix unit without company and are not padded to others."""
SHORTEST = 256
"""Key lengths up to this one count as similar."""
BLOCK_SLOTS = 1 << 18
"""Most keys that one block gathers, so that a large batch of long sequences fits in memory."""


class Span(msgspec.Struct, frozen=True):
    """A run of one sequence's tokens in a step."""

    seat: int
    start: int
    """Position of the first token."""
    length: int
    write: bool


class Block:
    """Pieces that attend together: *rows* of them, padded to one width and one key length."""

    def __init__(
        self, *, rows: int, length: int, tokens: Tensor, positions: Tensor, read_slots: Tensor
    ) -> None:
        self.rows = rows
        self.length = length
        self.tokens = tokens
        """Index of each query in the flattened step, [rows * width]."""
        self.read_slots = read_slots
        """Slot of each key, [rows * length]."""
        self.whole = False
        """Whether *tokens* names every token of the step once, in order."""
        self._positions = positions
        self._masks: dict[tuple[int, torch.dtype], Tensor] = {}

    def mask(self, shared: int, dtype: torch.dtype) -> Tensor:
        """Return the causal mask for *shared* query heads side by side, to be added to scores.

        [rows, 1, shared * width, length]; the same tensor for every layer of one shape.
        """
        mask = self._masks.get((shared, dtype))
        if mask is None:
            keys = torch.arange(self.length, device=self._positions.device)
            later = keys > self._positions.view(self.rows, 1, -1, 1)
            mask = torch.zeros(later.shape, dtype=dtype, device=later.device)
            mask = mask.masked_fill_(later, float("-inf")).repeat(1, 1, shared, 1)
            self._masks[shared, dtype] = mask
        return mask


class Layout(msgspec.Struct, frozen=True):
    """The tensors of one forward pass over T tokens."""

    positions: Tensor
    """[T], of each token in its sequence."""
    write_slots: Tensor
    """[T]; tokens that are not written go to the scratch page."""
    blocks: tuple[Block, ...]


class _Piece(msgspec.Struct, frozen=True):
    seat: int
    token: int
    """Index of the first token in the flattened step."""
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


def lay_out(spans: Sequence[Span], tables: Tensor, page_size: int) -> Layout:
    """Return the layout of *spans*, in their order.

    *tables* is [seats, pages]: the page of each page index of each seat.
    """
    device = tables.device
    lengths = torch.tensor([span.length for span in spans], device=device)
    offsets = lengths.cumsum(0) - lengths
    starts = torch.tensor([span.start for span in spans], device=device)
    total = sum(span.length for span in spans)
    positions = torch.arange(total, device=device) + (starts - offsets).repeat_interleave(
        lengths, output_size=total
    )
    seats = torch.tensor([span.seat for span in spans], device=device)
    slots = _slots(
        tables, seats.repeat_interleave(lengths, output_size=total), positions, page_size
    )
    if not all(span.write for span in spans):
        written = torch.tensor([span.write for span in spans], device=device)
        slots = torch.where(
            written.repeat_interleave(lengths, output_size=total), slots, positions % page_size
        )
    blocks = tuple(
        _block(group, tables, positions, page_size) for group in _similar(_pieces(spans))
    )
    if len(blocks) == 1 and len(blocks[0].tokens) == total:
        blocks[0].whole = bool((blocks[0].tokens == torch.arange(total, device=device)).all())
    return Layout(positions, slots, blocks)


def _slots(tables: Tensor, seats: Tensor, positions: Tensor, page_size: int) -> Tensor:
    pages = tables[seats, positions // page_size].long()
    return pages * page_size + positions % page_size


def _pieces(spans: Iterable[Span]) -> list[_Piece]:
    pieces = []
    token = 0
    for span in spans:
        for done in range(0, span.length, PIECE):
            length = min(PIECE, span.length - done)
            pieces.append(_Piece(span.seat, token + done, span.start + done, length))
        token += span.length
    return pieces


def _similar(pieces: Iterable[_Piece]) -> list[list[_Piece]]:
    """Group *pieces* whose padding to one another at most doubles either dimension."""
    groups: dict[tuple[int, int], list[_Piece]] = {}
    alone = []
    for piece in pieces:
        if piece.length > ALONE:
            alone.append([piece])
        else:
            longest = max(SHORTEST, piece.end)
            key = ((piece.length - 1).bit_length(), (longest - 1).bit_length())
            groups.setdefault(key, []).append(piece)
    for (_, bits), group in groups.items():
        most = max(1, BLOCK_SLOTS >> bits)
        alone += [group[first : first + most] for first in range(0, len(group), most)]
    return alone


def _block(pieces: list[_Piece], tables: Tensor, positions: Tensor, page_size: int) -> Block:
    device = tables.device
    width = max(piece.length for piece in pieces)
    length = max(piece.end for piece in pieces)
    first, last, end, seat = torch.tensor(
        [(p.token, p.token + p.length - 1, p.end - 1, p.seat) for p in pieces], device=device
    ).T[:, :, None]
    tokens = (first + torch.arange(width, device=device)).minimum(last).flatten()
    keys = torch.arange(length, device=device).minimum(end)
    return Block(
        rows=len(pieces),
        length=length,
        tokens=tokens,
        positions=positions[tokens],
        read_slots=_slots(tables, seat, keys, page_size).flatten(),
    )
