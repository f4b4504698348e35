"""Stop strings in text that arrives in parts.

Text is emitted only when no stop string can still begin in it.  The stop string that is complete
first wins, so that an answer ends as soon as one was written; of those that end together, the one
that begins first.  So the result does not depend on how the text was cut into parts.  Where no stop
string lies inside another, this is simply the one that begins first in the text.
"""

from collections.abc import Sequence


class StopStrings:
    """Watches one answer.  *stops* must not be empty strings."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would stop everything"
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the answer."""

    def feed(self, text: str) -> str:
        """Return what of the text so far is safe to emit.  Nothing once a stop string was found."""
        if self.found is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        matches = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if matches:
            _, start, self.found = min(matches)
            self._held = ""
            return text[:start]
        held = max(_beginning_at_end(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Return what was held back: nothing more will come."""
        held, self._held = self._held, ""
        return held


def _beginning_at_end(text: str, stop: str) -> int:
    """Return the length of the longest proper beginning of *stop* that *text* ends with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
