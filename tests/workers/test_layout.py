"""The index tensors of a step, against a plain loop over every token and every key."""

from collections import defaultdict

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixd.workers.pytorch.layout import PIECE, Layout, Span, lay_out

PAGE_SIZE = 4
PAGES = 300
SEATS = 5


def tables() -> torch.Tensor:
    """Page tables in which no page is used twice and none is the scratch page."""
    order = torch.randperm(SEATS * PAGES, generator=torch.Generator().manual_seed(0)) + 1
    return order.view(SEATS, PAGES).int()


spans = st.lists(
    st.builds(
        Span,
        seat=st.integers(0, SEATS - 1),
        start=st.integers(0, 500),
        length=st.one_of(st.just(1), st.integers(1, 30), st.integers(PIECE - 1, PIECE + 5)),
        write=st.just(True),
    ),
    min_size=1,
    max_size=6,
)


def slot(table: torch.Tensor, seat: int, position: int) -> int:
    """Return where a position's K and V are, by the definition of a page table."""
    return int(table[seat, position // PAGE_SIZE]) * PAGE_SIZE + position % PAGE_SIZE


def visible(layout: Layout) -> dict[int, set[frozenset[int]]]:
    """For each token of the step, the sets of slots that it attends to; one set if all is well."""
    seen: dict[int, set[frozenset[int]]] = defaultdict(set)
    for block in layout.blocks:
        reads = block.read_slots.view(block.rows, block.length)
        width = len(block.tokens) // block.rows
        mask = block.mask(1, torch.float32).view(block.rows, width, block.length)
        for index, token in enumerate(block.tokens.tolist()):
            row, query = divmod(index, width)
            slots = reads[row][mask[row, query] == 0]
            assert len(set(slots.tolist())) == len(slots), "a key is counted twice"
            seen[token].add(frozenset(slots.tolist()))
    return seen


@settings(max_examples=25, deadline=None)
@given(spans)
def test_every_token_sees_its_own_past_and_nothing_else(chosen: list[Span]) -> None:
    """A token attends exactly once to each position of its sequence up to its own."""
    table = tables()
    layout = lay_out(chosen, table, PAGE_SIZE)
    expected = [
        (span.seat, span.start + offset) for span in chosen for offset in range(span.length)
    ]

    assert layout.positions.tolist() == [position for _, position in expected]
    assert layout.write_slots.tolist() == [slot(table, *token) for token in expected]
    seen = visible(layout)
    assert sorted(seen) == list(range(len(expected)))
    for token, (seat, position) in enumerate(expected):
        assert seen[token] == {frozenset(slot(table, seat, p) for p in range(position + 1))}


@settings(max_examples=60, deadline=None)
@given(spans)
def test_only_a_block_that_needs_no_gathering_is_whole(chosen: list[Span]) -> None:
    """The shortcut without gather and scatter is taken when queries are in order as they are."""
    layout = lay_out(chosen, tables(), PAGE_SIZE)

    for block in layout.blocks:
        in_order = block.tokens.tolist() == list(range(len(layout.positions)))
        assert block.whole == in_order


def test_a_decode_batch_is_one_block() -> None:
    """Rows of similar lengths attend in one call, however many they are."""
    rows = [Span(seat % SEATS, 300 + seat, 1, True) for seat in range(64)]

    assert len(lay_out(rows, tables(), PAGE_SIZE).blocks) == 1


def test_a_short_row_is_not_padded_to_a_long_one() -> None:
    """Rows of very different lengths attend apart."""
    rows = [Span(0, 5, 1, True), Span(1, 1100, 1, True)]

    assert [block.length for block in lay_out(rows, tables(), PAGE_SIZE).blocks] == [6, 1101]


def test_tokens_that_are_not_written_go_to_the_scratch_page() -> None:
    """Page 0 takes what no page may take."""
    rows = [Span(0, 6, 1, False), Span(1, 6, 2, True)]
    layout = lay_out(rows, tables(), PAGE_SIZE)

    assert layout.write_slots[0] < PAGE_SIZE
    assert (layout.write_slots[1:] >= PAGE_SIZE).all()


def test_masks_are_built_once_for_all_layers() -> None:
    """The second layer of the same shape gets the first one's tensor."""
    (block,) = lay_out([Span(0, 6, 3, True)], tables(), PAGE_SIZE).blocks

    assert block.mask(3, torch.float32) is block.mask(3, torch.float32)
    assert block.mask(3, torch.float32).shape == (1, 1, 9, 9)
