"""`radixd.text.decoding`: the parts add up to the whole."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from radixd.text.decoding import IncrementalDecoder
from radixd.text.tokenizers import ByteTokenizer, FileTokenizer, Tokenizer

CORPUS = ["the café serves naïve jalapeños", "日本語のテキスト 😀😀 and tea", "a b  c\n\nd"] * 20


def byte_level() -> FileTokenizer:
    """Train a byte-level BPE, as GPT-2 and most models since have."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return FileTokenizer(tokenizer)


def metaspace() -> FileTokenizer:
    """Train a BPE that marks spaces, as SentencePiece models do: the first space is stripped."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>", "<end>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return FileTokenizer(tokenizer)


TOKENIZERS = {"bytes": ByteTokenizer(), "byte-level": byte_level(), "metaspace": metaspace()}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_the_parts_add_up_to_the_whole(name: str, data: st.DataObject) -> None:
    """Whatever the ids and the cuts, garbage included: the parts are the text of all ids."""
    tokenizer: Tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary - 1), max_size=60))
    decoder = IncrementalDecoder(tokenizer)
    parts, left = [], ids
    while left:
        cut = data.draw(st.integers(1, 4))
        parts.append(decoder.feed(left[:cut]))
        left = left[cut:]
    assert "".join(parts) + decoder.finish() == tokenizer.decode(ids)


def test_a_character_is_emitted_when_its_last_byte_is_there() -> None:
    """No U+FFFD is shown for a character that is only incomplete."""
    decoder = IncrementalDecoder(ByteTokenizer())
    assert [decoder.feed([byte]) for byte in "a😀b".encode()] == ["a", "", "", "", "😀", "b"]


def test_special_tokens_are_no_text() -> None:
    """Markers leave nothing behind, and the space after one is kept."""
    tokenizer = TOKENIZERS["metaspace"]
    ids = tokenizer.encode("the cafe", add_special_tokens=False)
    end = next(i for i in range(tokenizer.vocabulary) if tokenizer.is_special(i))
    decoder = IncrementalDecoder(tokenizer)
    shown = "".join(decoder.feed([token, *[end] * 20]) for token in ids) + decoder.finish()
    assert shown == tokenizer.decode(ids)
