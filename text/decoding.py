"""Tokens to text, one after the other, where a token's text can depend on its neighbours.

A token alone cannot be decoded: many decoders strip a space at their very beginning, and a
character may be spread over tokens.  So each new token is decoded together with a short window of
those before it, and what is new is what extends the text that the window had.  The window is cut
once it is full, so the cost of a token does not grow with the answer.

Bytes that do not make a character yet decode to U+FFFD.  Two kinds of decoder differ there:

* Byte-level ones spoil only the unfinished character itself.  Their windows may be cut anywhere: at
  worst the cut spoils the first characters of the window, and those were shown long ago.
* Byte-fallback ones (SentencePiece's) spoil the whole run of byte tokens that it belongs to, also
  the characters that are complete and shown, one U+FFFD for each byte.  So a text that no longer
  begins with what was shown means: wait for the next byte.  Their windows are cut where no
  character is open.

The parts add up to the tokenizer's own text of all tokens, with one exception: where a run of byte
tokens holds a byte of no character, or U+FFFD itself, a byte-fallback decoder takes the whole run
back.  Here what was shown stays, and only the rest of that run may come out as U+FFFD.
"""

from collections.abc import Sequence

from radixd.text.tokenizers import Tokenizer

_WINDOW_FULL = 16
"""Tokens after which the window is cut where no character is open."""
_WINDOW_MAX = 32
"""Tokens after which it is cut anyway: tokens that make no text can go on for ever."""
_WINDOW_KEPT = 8
"""Tokens kept by such a cut: a cut spoils at most the first 3 bytes after it."""

_INCOMPLETE_MAX = 3
"""Bytes of the longest unfinished character in UTF-8."""
_REPLACEMENT = "\ufffd"


class IncrementalDecoder:
    """Returns the text of one sequence as soon as it is final; special tokens are no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._shown = ""
        """How much of the window's text was returned."""
        self._complete = 0
        """Tokens of the window up to the last place where nothing was withheld."""

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that *ids* make final."""
        return "".join(
            [self._next(token) for token in ids if not self._tokenizer.is_special(token)]
        )

    def finish(self) -> str:
        """Return what was withheld: nothing more will come."""
        text = self._decode()
        if not text.startswith(self._shown):
            text = self._set_apart()
        rest = text[len(self._shown) :]
        self._window, self._shown, self._complete = [], "", 0
        return rest

    def _next(self, token: int) -> str:
        self._window.append(token)
        text = self._decode()
        if not text.startswith(self._shown):
            waiting = len(self._window) - self._complete
            if text.endswith(_REPLACEMENT) and waiting <= _INCOMPLETE_MAX:
                return ""
            text = self._set_apart()
        new = text[len(self._shown) : len(text) - _incomplete(text)]
        self._shown += new
        withheld = len(text) - len(self._shown)
        size = len(self._window)
        cut = 0
        if new and withheld == 0 and size > _WINDOW_FULL:
            cut = self._complete
        elif size > _WINDOW_MAX:
            cut = size - _WINDOW_KEPT
        if cut:
            self._cut(cut, withheld)
        if cut or withheld == 0:
            # After a forced cut: a byte-fallback decoder withholds one character for each token.
            self._complete = max(0, len(self._window) - withheld)
        return new

    def _cut(self, tokens: int, withheld: int) -> None:
        """Forget the first *tokens*; the last *withheld* characters stay withheld."""
        del self._window[:tokens]
        self._shown = self._decode().removesuffix(_REPLACEMENT * withheld)

    def _set_apart(self) -> str:
        """Drop the part of the window that was shown whole, and return the text of the rest."""
        del self._window[: self._complete]
        self._shown, self._complete = "", 0
        return self._decode()

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window)


def _incomplete(text: str) -> int:
    """Return how many characters at the end of *text* may stand for an unfinished one."""
    spoilt = len(text) - len(text.rstrip(_REPLACEMENT))
    return min(spoilt, _INCOMPLETE_MAX)
