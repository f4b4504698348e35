"""Tokenizers: one that is read from a ``tokenizer.json``, and one for which bytes are tokens."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import tokenizers

from radixd.text.errors import TextError, TokenizerError


class Tokenizer(Protocol):
    """Text to ids and back.  Methods may be called from any thread."""

    @property
    def vocabulary(self) -> int:
        """Number of ids: every id is below it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of *text*; raises `TextError` if it is no valid Unicode.

        *add_special_tokens* adds what the model wants around any text, such as a BOS token.
        """

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of *ids*, U+FFFD in place of bytes that are no UTF-8.

        Ids that the vocabulary lacks are no text: a model may have more rows than its tokenizer.
        """

    def is_special(self, token: int) -> bool:
        """Whether *token* is never text: a control token, or an id that the vocabulary lacks."""


class FileTokenizer:
    """A Hugging Face fast tokenizer, which it changes: nothing is ever truncated or padded."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        # Files of some models ask for both, as they were set when the model was trained.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, entry in added.items() if entry.special)
        # Ids may have gaps, so counting them does not find the last one.
        self.vocabulary: int = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of *text*."""
        _check_unicode(text)
        # A batch of one, since only batches are encoded without holding the interpreter's lock.
        (encoding,) = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of *ids*."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def is_special(self, token: int) -> bool:
        """Whether *token* is a control token or unknown."""
        return token in self._special or self._tokenizer.id_to_token(token) is None


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8; 256 and 257 are ChatML's markers, start and end."""

    MARKERS = ("<|im_start|>", "<|im_end|>")
    _SPLIT = re.compile("(" + "|".join(re.escape(marker) for marker in MARKERS) + ")")

    vocabulary = 256 + len(MARKERS)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return one id for each byte or marker of *text*; nothing is added to any text."""
        _check_unicode(text)
        ids: list[int] = []
        for part in self._SPLIT.split(text):
            if part in self.MARKERS:
                ids.append(256 + self.MARKERS.index(part))
            else:
                ids += part.encode()
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of *ids*."""
        decoded = bytearray()
        for token in ids:
            if token < 256:
                decoded.append(token)
            elif not skip_special_tokens and token < self.vocabulary:
                decoded += self.MARKERS[token - 256].encode()
        return decoded.decode(errors="replace")

    def is_special(self, token: int) -> bool:
        """Whether *token* is a marker or unknown."""
        return token >= 256


def load_tokenizer(path: Path) -> FileTokenizer:
    """Read a ``tokenizer.json``; raises `TokenizerError`."""
    try:
        return FileTokenizer(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # The library raises bare Exception for any fault of the file.
        raise TokenizerError(f"{path} is no readable tokenizer.json: {error}") from error


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(
            f"character {error.start} is a lone surrogate, which no text can hold"
        ) from error
