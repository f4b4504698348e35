"""`radixd.text.decoding`: the parts add up to the whole."""

from collections.abc import Iterator, Sequence

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

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


FIRST_BYTE = 2
FIRST_PIECE = FIRST_BYTE + 256


def byte_fallback() -> FileTokenizer:
    """Build a BPE as Llama 2 has it: characters without a piece of their own become bytes."""
    pieces = ["<unk>", "<end>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abc", "▁a"]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: token for token, piece in enumerate(pieces)},
            merges=[("▁", "a")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.add_special_tokens(["<unk>", "<end>"])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return FileTokenizer(tokenizer)


BYTE_FALLBACK = byte_fallback()
EXACT: dict[str, Tokenizer] = {
    "bytes": ByteTokenizer(),
    "byte-level": byte_level(),
    "metaspace": metaspace(),
}
ALL: dict[str, Tokenizer] = {**EXACT, "byte-fallback": BYTE_FALLBACK}


def cut(data: st.DataObject, ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield *ids* in parts whose lengths are drawn."""
    while ids:
        length = data.draw(st.integers(1, 4))
        yield ids[:length]
        ids = ids[length:]


def decoded(tokenizer: Tokenizer, parts: Iterator[Sequence[int]]) -> str:
    """Return everything that a decoder shows of *parts*."""
    decoder = IncrementalDecoder(tokenizer)
    return "".join([decoder.feed(part) for part in parts]) + decoder.finish()


@pytest.mark.parametrize("name", ALL)
@given(data=st.data(), text=st.text(st.characters(codec="utf-8", exclude_characters="\ufffd")))
def test_the_parts_of_a_text_add_up_to_it(name: str, data: st.DataObject, text: str) -> None:
    """However its tokens arrive, a text comes out as the tokenizer itself decodes it."""
    tokenizer = ALL[name]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert decoded(tokenizer, cut(data, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", EXACT)
@given(data=st.data())
def test_the_parts_of_garbage_add_up_to_it(name: str, data: st.DataObject) -> None:
    """Whatever a model samples, ids that the tokenizer lacks included."""
    tokenizer = EXACT[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary + 1), max_size=80))
    assert decoded(tokenizer, cut(data, ids)) == tokenizer.decode(ids)


@given(
    data=st.data(),
    ids=st.lists(
        st.integers(FIRST_BYTE + 0x80, FIRST_BYTE + 0xFF)
        | st.integers(FIRST_PIECE, BYTE_FALLBACK.vocabulary - 1),
        max_size=80,
    ),
)
def test_fallback_bytes_of_no_character_spoil_nothing_around_them(
    data: st.DataObject, ids: list[int]
) -> None:
    """Text before and after a broken run of bytes comes out whole, and once."""

    def pieces(text: str) -> str:
        return "".join(character for character in text if character.isascii())

    shown = decoded(BYTE_FALLBACK, cut(data, ids))
    assert pieces(shown) == pieces(BYTE_FALLBACK.decode(ids))


@pytest.mark.parametrize("name", ["bytes", "byte-fallback"])
def test_a_character_is_emitted_when_its_last_byte_is_there(name: str) -> None:
    """No U+FFFD is shown for a character that is only incomplete, and none is held longer."""
    first = FIRST_BYTE if name == "byte-fallback" else 0
    decoder = IncrementalDecoder(ALL[name])
    shown = [decoder.feed([first + byte]) for byte in "aé😀b".encode()]
    assert shown == ["a", "", "é", "", "", "", "😀", "b"]


def test_text_before_an_incomplete_character_is_not_held_up() -> None:
    """A part that ends inside a character shows what comes before it."""
    decoder = IncrementalDecoder(ByteTokenizer())
    assert decoder.feed("tea 😀".encode()[:-1]) == "tea "
    assert decoder.finish() == "\ufffd"
    assert decoder.finish() == ""


def test_a_broken_run_of_fallback_bytes_keeps_what_was_shown() -> None:
    """One stray byte costs one U+FFFD where the characters around it end the run."""
    ids = [FIRST_PIECE + 1, *(FIRST_BYTE + byte for byte in b"\xc3\xa9\xe2"), FIRST_PIECE + 2]
    decoder = IncrementalDecoder(BYTE_FALLBACK)
    assert [decoder.feed([token]) for token in ids] == ["a", "", "é", "", "\ufffdb"]


def test_special_tokens_are_no_text() -> None:
    """Markers leave nothing behind, and the space after one is kept."""
    tokenizer = EXACT["metaspace"]
    ids = tokenizer.encode("the cafe", add_special_tokens=False)
    end = next(i for i in range(tokenizer.vocabulary) if tokenizer.is_special(i))
    parts = iter([[token, *[end] * 20] for token in ids])
    assert decoded(tokenizer, parts) == tokenizer.decode(ids)


class LongestDecode(ByteTokenizer):
    """Remembers the most tokens that it was asked to decode at once; its byte 0 has no text."""

    longest = 0

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        self.longest = max(self.longest, len(ids))
        text = super().decode(ids, skip_special_tokens=skip_special_tokens)
        return text.replace("\0", "")


@pytest.mark.parametrize("content", [b"tea ", "😀".encode(), b"\x80", b"\0"])
def test_the_cost_of_a_token_does_not_grow_with_the_answer(content: bytes) -> None:
    """Only a short window is decoded anew, be it text or tokens that never make any."""
    tokenizer = LongestDecode()
    decoder = IncrementalDecoder(tokenizer)
    decoder.feed(content * 500)
    decoder.finish()
    assert tokenizer.longest <= 33
