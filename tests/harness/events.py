"""Server-sent events as a client reads them."""

import json
from typing import Any


def data_of(stream: str) -> list[str]:
    """Return the data of each event, without comments; asserts that all is framed well."""
    assert stream.endswith("\n\n")
    blocks = stream[:-2].split("\n\n")
    assert all(block.startswith(("data: ", ": ")) for block in blocks)
    assert all("\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks if block.startswith("data: ")]


def chunks_of(stream: str) -> list[Any]:
    """Return what the events of *stream* hold; asserts that ``[DONE]`` is the last."""
    *chunks, done = data_of(stream)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]
