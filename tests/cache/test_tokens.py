"""`radixd.cache.tokens`: packing, and how far two sequences agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixd.cache.tokens import TOKEN_BYTES, TokenError, common_pages, pack, unpack

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=50)


@given(IDS)
def test_packing_round_trips(ids: list[int]) -> None:
    """Little-endian, four bytes a token."""
    packed = pack(ids)
    assert packed == b"".join(token.to_bytes(4, "little") for token in ids)
    assert list(unpack(packed)) == ids


@pytest.mark.parametrize("ids", [[-1], [2**32], [1.5], ["a"], [None]])
def test_what_is_no_token_is_refused(ids: list[object]) -> None:
    """With the limit."""
    with pytest.raises(TokenError, match="4294967295"):
        pack(ids)  # type: ignore[arg-type]


def test_a_part_of_a_token_is_refused() -> None:
    """Bytes must come in fours."""
    with pytest.raises(TokenError, match="5 bytes"):
        unpack(b"12345")


@given(
    st.lists(st.integers(0, 1), max_size=80),
    st.lists(st.integers(0, 1), max_size=80),
    st.integers(0, 60),
    st.integers(0, 10),
    st.sampled_from([1, 2, 4]),
)
def test_common_pages_are_counted_as_one_by_one(
    query: list[int], edge: list[int], same: int, before: int, page_size: int
) -> None:
    """Galloping and bisection find what a loop over pages finds."""
    query = query[:before] + edge[:same] + query[before:]
    page_bytes = page_size * TOKEN_BYTES
    packed_edge = bytearray(pack(edge))
    del packed_edge[len(packed_edge) // page_bytes * page_bytes :]
    packed, position = pack(query), min(before, len(query)) * TOKEN_BYTES
    expected = 0
    while (expected + 1) * page_bytes <= len(packed_edge) and packed[position:][
        expected * page_bytes : (expected + 1) * page_bytes
    ] == packed_edge[expected * page_bytes : (expected + 1) * page_bytes]:
        expected += 1
    assert common_pages(packed, position, packed_edge, page_bytes) == expected
