"""`radixd.text.tokenizers`: text to ids and back."""

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from radixd.text.errors import TextError, TokenizerError
from radixd.text.templates import CHATML, ChatTemplate
from radixd.text.tokenizers import ByteTokenizer, FileTokenizer, Tokenizer, load_tokenizer


def words() -> tokenizers.Tokenizer:
    """Build a tokenizer that knows three words and one marker."""
    tokenizer = tokenizers.Tokenizer(
        models.WordLevel({"<unk>": 0, "one": 1, "two": 2, "six": 3}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


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


def test_a_chatml_prompt_round_trips_through_bytes() -> None:
    """Each turn costs two markers, and the prompt comes back."""
    prompt = ChatTemplate(CHATML, {}).render([{"role": "user", "content": "Où ?"}])
    ids = ByteTokenizer().encode(prompt, add_special_tokens=False)
    assert [token for token in ids if token >= 256] == [256, 257, 256]
    assert ByteTokenizer().decode(ids, skip_special_tokens=False) == prompt


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), FileTokenizer(words())])
def test_a_lone_surrogate_is_the_callers_fault(tokenizer: Tokenizer) -> None:
    """It has no UTF-8, so it is refused with its place."""
    with pytest.raises(TextError, match="character 1"):
        tokenizer.encode("a\ud800", add_special_tokens=False)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), FileTokenizer(words())])
def test_ids_beyond_the_vocabulary_are_no_text(tokenizer: Tokenizer) -> None:
    """Models have more rows than tokens, and may sample one."""
    beyond = tokenizer.vocabulary
    assert tokenizer.is_special(beyond)
    assert tokenizer.decode([beyond, beyond + 1000]) == ""
    assert tokenizer.decode([beyond, beyond + 1000], skip_special_tokens=False) == ""


def test_a_file_is_read_with_its_special_tokens(tmp_path: Path) -> None:
    """Text that holds a marker encodes to the marker's id; decoding leaves it out or shows it."""
    path = tmp_path / "tokenizer.json"
    words().save(str(path))
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode("one six<end>", add_special_tokens=True)
    assert ids == [1, 3, 4]
    assert [tokenizer.is_special(token) for token in ids] == [False, False, True]
    assert tokenizer.decode(ids) == "one six"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "one six <end>"
    assert tokenizer.vocabulary == 5


def test_a_file_can_neither_truncate_nor_pad(tmp_path: Path) -> None:
    """Files ask for it that were saved after training; a prompt is encoded whole."""
    saved = words()
    saved.enable_truncation(2)
    saved.enable_padding(length=4)
    path = tmp_path / "tokenizer.json"
    saved.save(str(path))
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("one two six", add_special_tokens=True) == [1, 2, 3]
    assert tokenizer.encode("one", add_special_tokens=True) == [1]


def test_every_id_is_below_the_vocabulary() -> None:
    """Also where the ids of a vocabulary have gaps."""
    tokenizer = FileTokenizer(tokenizers.Tokenizer(models.WordLevel({"one": 0, "two": 7})))
    assert tokenizer.encode("two", add_special_tokens=False) == [7]
    assert tokenizer.vocabulary == 8
    assert tokenizer.is_special(3)


@pytest.mark.parametrize("content", [None, "{}", "no json"])
def test_an_unreadable_file_is_named(tmp_path: Path, content: str | None) -> None:
    """Missing, incomplete and broken files raise the same error."""
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer(path)
