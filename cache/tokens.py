"""Token sequences as bytes: packed once, compared with memcmp ever after.

A token is a little-endian uint32, a page is ``page_size`` of them.  Packed sequences make a tree
walk a handful of ``startswith`` calls, and a page's bytes a dictionary key.
"""

import sys
from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4
TOKEN_MAX = 2**32 - 1

_BIG_ENDIAN = sys.byteorder == "big"
assert array("I").itemsize == TOKEN_BYTES, "this platform's unsigned int is not 32 bits wide"


class TokenError(ValueError):
    """The caller gave something that is no token."""


def pack(tokens: Iterable[int]) -> bytes:
    """Return *tokens* as packed little-endian uint32.

    Raises `TokenError` for anything that is not an integer within 0 to 2**32 - 1.
    """
    try:
        packed = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise TokenError(f"a token must be an integer within 0 to {TOKEN_MAX}: {error}") from None
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


def unpack(packed: bytes | bytearray | memoryview) -> "array[int]":
    """Return the unsigned integers in *packed*; the inverse of `pack`."""
    if len(packed) % TOKEN_BYTES:
        raise TokenError(f"{len(packed)} bytes are no whole number of {TOKEN_BYTES}-byte tokens")
    tokens = array("I")
    tokens.frombytes(packed)
    if _BIG_ENDIAN:
        tokens.byteswap()
    return tokens


def common_pages(query: bytes, position: int, edge: bytearray, page_bytes: int) -> int:
    """Count the leading pages of *edge* that *query* repeats from byte *position* on.

    Doubles the compared window until it differs, then bisects within it: O(log n) comparisons,
    each a memcmp, and at most twice the common bytes are read.
    """
    pages = min(len(edge), len(query) - position) // page_bytes
    same, window = 0, 1
    while same < pages:
        window = min(window, pages - same)
        low, high = same * page_bytes, (same + window) * page_bytes
        if query[position + low : position + high] != edge[low:high]:
            break
        same += window
        window *= 2
    else:
        return pages
    # The first difference lies within the window [same, same + window).
    while window > 1:
        half = window // 2
        low, high = same * page_bytes, (same + half) * page_bytes
        if query[position + low : position + high] == edge[low:high]:
            same += half
            window -= half
        else:
            window = half
    return same
