"""`radixd.text.tokenizers`: text to ids and back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixd.text.errors import TextError, TokenizerError
from radixd.text.tokenizers import ByteTokenizer, load_tokenizer


@given(st.text())
def test_bytes_round_trip_any_text(text: str) -> None:
    """Every text comes back, markers included."""
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token < tokenizer.vocabulary for token in ids)


def test_markers_are_single_tokens() -> None:
    """ChatML costs one token a marker."""
    ids = ByteTokenizer().encode("<|im_start|>a<|im_end|>", add_special_tokens=False)
    assert ids == [256, ord("a"), 257]
    assert ByteTokenizer().decode(ids) == "a"


def test_a_lone_surrogate_is_the_callers_fault() -> None:
    """It has no UTF-8, so it is refused with its place."""
    with pytest.raises(TextError, match="character 1"):
        ByteTokenizer().encode("a\ud800", add_special_tokens=False)


@pytest.mark.parametrize("content", [None, "{}", "no json"])
def test_an_unreadable_file_is_named(tmp_path: Path, content: str | None) -> None:
    """Missing, incomplete and broken files raise the same error."""
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer(path)
