"""The page pool: which pages are free, in use or quarantined.

A page that a sent step may still read or write is given back behind a *fence*, the number of that
step, and stays quarantined until the step is done.  Page 0 is scratch: workers write there what
nobody will read, and it is never handed out.
"""

from array import array
from collections import deque
from collections.abc import Iterable

SCRATCH_PAGES = 1

_FREE, _USED, _QUARANTINED = range(3)


class PageError(RuntimeError):
    """A page is about to be handed out or taken back wrongly: a bug, and no client's fault."""


class PagePool:
    """Pages 1 to ``capacity - 1``; giving and taking cost O(1) a page."""

    def __init__(self, capacity: int) -> None:
        if capacity <= SCRATCH_PAGES:
            raise ValueError(f"a pool of {capacity} pages holds nothing beside its scratch page")
        self.capacity = capacity
        self.reset()

    def reset(self) -> None:
        """Make every page free, whoever had it."""
        # Reversed, so that low pages go out first.
        self._free = list(range(self.capacity - 1, SCRATCH_PAGES - 1, -1))
        self._state = bytearray(self.capacity)
        self._fenced: deque[tuple[int, array[int]]] = deque()
        self.quarantined = 0
        self._done = 0

    @property
    def free(self) -> int:
        """Pages that can be taken now."""
        return len(self._free)

    def take(self, count: int) -> "array[int]":
        """Hand out *count* pages; raises `PageError` if fewer are free."""
        if count > len(self._free):
            raise PageError(f"{count} pages are wanted and {len(self._free)} are free")
        if count == 0:
            return array("I")
        pages = array("I", self._free[-count:])
        del self._free[-count:]
        for page in pages:
            if self._state[page] != _FREE:
                raise PageError(f"page {page} is on the free list and in use")
            self._state[page] = _USED
        return pages

    def give(self, pages: Iterable[int], fence: int = 0) -> None:
        """Take *pages* back; they are free once step *fence* is done."""
        returned = array("I", pages)
        fenced = fence > self._done
        state = _QUARANTINED if fenced else _FREE
        for page in returned:
            if self._state[page] != _USED:
                raise PageError(f"page {page} was given back twice")
            self._state[page] = state
        if fenced:
            self._fenced.append((fence, returned))
            self.quarantined += len(returned)
        else:
            self._free.extend(returned)

    def open_fences(self, done: int) -> None:
        """Free what waited for steps up to *done*."""
        self._done = max(self._done, done)
        # Fences rarely come out of order, and then by a step: a page may wait that much longer.
        while self._fenced and self._fenced[0][0] <= done:
            _, pages = self._fenced.popleft()
            for page in pages:
                self._state[page] = _FREE
            self.quarantined -= len(pages)
            self._free.extend(pages)

    def free_pages(self) -> set[int]:
        """Return the ids of the free pages, for an audit."""
        return set(self._free)

    def quarantined_pages(self) -> set[int]:
        """Return the ids of the quarantined pages, for an audit."""
        return {page for _, pages in self._fenced for page in pages}
