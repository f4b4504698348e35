"""Tokens to text, a few at a time, where the text of a token can depend on its neighbours.

What is decoded anew for each token is a short window of the last tokens, so the cost of a token does
not grow with the answer.  The window starts with tokens whose text has been emitted: decoders strip
a space at their very beginning, or join pieces, and must see what came before.

Bytes that do not end a character decode to one U+FFFD at the end of the window; it is withheld until
the next tokens tell.  A window that is cut begins, at worst, inside a character or inside garbage;
that changes its first characters, which were emitted long ago, and never its last.
"""

from collections.abc import Sequence

from radixd.text.tokenizers import Tokenizer

_WINDOW_MAX = 16
_WINDOW_KEPT = 8
"""Tokens.  A character has at most 4 bytes, so an incomplete one lies within the last 3 tokens."""

_REPLACEMENT = "\ufffd"


class IncrementalDecoder:
    """Emits the text of one sequence as soon as it is final; special tokens are no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._emitted = 0
        """Characters of the window's text that were returned."""

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that *ids* make final."""
        self._window += [token for token in ids if not self._tokenizer.is_special(token)]
        stable = self._decode().removesuffix(_REPLACEMENT)
        new = stable[self._emitted :]
        self._emitted = max(self._emitted, len(stable))
        if len(self._window) > _WINDOW_MAX:
            del self._window[:-_WINDOW_KEPT]
            self._emitted = len(self._decode().removesuffix(_REPLACEMENT))
        return new

    def finish(self) -> str:
        """Return what was withheld: nothing more will come."""
        text = self._decode()
        new = text[self._emitted :]
        self._emitted = len(text)
        return new

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window)
