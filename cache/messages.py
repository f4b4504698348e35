"""What the cache owner is told and what it answers.

Frozen values that can be serialised, so that the owner could live in another process.  Positions
and lengths are in tokens unless a name says pages; tokens and page tables are packed
little-endian uint32 (see `radixd.cache.tokens`).
"""

from typing import Literal, NewType

import msgspec

RequestId = NewType("RequestId", int)
"""Number of a request within one engine, given at the gate in the order of arrival."""


class Watch(msgspec.Struct, frozen=True, tag=True):
    """A request has arrived: remember its prompt until it is released."""

    request: RequestId
    tokens: bytes
    max_tokens: int


class Watched(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Watch`: how much of the prompt the tree holds now, computed or in flight."""

    request: RequestId
    matched: int


class Commit(msgspec.Struct, frozen=True):
    """A finished step wrote the KV of a request's tokens before *computed*.

    *appended* holds the sampled tokens among them that the owner has not been told of yet.
    """

    request: RequestId
    computed: int
    appended: bytes


class Release(msgspec.Struct, frozen=True):
    """A request has left, admitted or not; no step after *last_step* has a row of it."""

    request: RequestId
    last_step: int


class Progress(msgspec.Struct, frozen=True):
    """The step being planned computes an admitted request's prompt up to *scheduled*."""

    request: RequestId
    scheduled: int


class CacheTransaction(msgspec.Struct, frozen=True, tag=True):
    """Everything that the plan of one step asks of the cache, applied in the order of fields."""

    step: int
    """Number of the step being planned; every earlier one has been sent to the worker."""
    done: int
    """Last step that the worker has finished: fences up to it open."""
    commits: tuple[Commit, ...] = ()
    releases: tuple[Release, ...] = ()
    progress: tuple[Progress, ...] = ()
    candidates: tuple[RequestId, ...] = ()
    """Waiting requests to admit, in order; the first that falls short ends the list."""
    step_tokens: int = 0
    """Tokens that admissions may add to the step."""
    seats: int = 0
    """Requests that may be admitted."""


class Admitted(msgspec.Struct, frozen=True, tag=True):
    """A candidate holds a lease and all the pages that it can ever need."""

    request: RequestId
    table: bytes
    """Page table: one page id for each page of prompt and answer."""
    from_tree: int
    """Prompt tokens taken from pages that were ready when the request was first considered."""
    in_flight: int
    """Prompt tokens taken from pages that others were computing then."""
    scheduled: int
    """End of the first chunk, which starts at ``from_tree + in_flight``."""
    write: bool
    """False where the prompt's last page is cached whole, so its last token is not written."""


class Held(msgspec.Struct, frozen=True, tag=True):
    """A candidate waits until *leader* has scheduled (or computed) its prompt up to *until*."""

    request: RequestId
    leader: RequestId
    until: int


class Short(msgspec.Struct, frozen=True, tag=True):
    """A candidate does not fit now; nothing after it was tried."""

    request: RequestId
    of: Literal["pages", "tokens", "seats"]


class Remap(msgspec.Struct, frozen=True):
    """From the next step on, page *index* of a request's table is *page*."""

    request: RequestId
    index: int
    page: int


class Advanced(msgspec.Struct, frozen=True):
    """Someone else computed a request's own pages: its prompt is ready up to *position*."""

    request: RequestId
    position: int


class MatchChanged(msgspec.Struct, frozen=True):
    """The tree now holds *matched* tokens of a waiting request's prompt."""

    request: RequestId
    matched: int


class CacheReceipt(msgspec.Struct, frozen=True, tag=True):
    """What a `CacheTransaction` did."""

    step: int
    outcomes: tuple[Admitted | Held | Short, ...] = ()
    remaps: tuple[Remap, ...] = ()
    advanced: tuple[Advanced, ...] = ()
    matches: tuple[MatchChanged, ...] = ()
    evicted_pages: int = 0


class PageCounts(msgspec.Struct, frozen=True):
    """Where every page of the pool is; the fields add up to the capacity."""

    free: int
    locked: int
    evictable: int
    pending: int
    private: int
    quarantined: int
    scratch: int


class CacheStatistics(msgspec.Struct, frozen=True):
    """The books of the cache at one moment."""

    capacity_pages: int
    page_size: int
    pages: PageCounts
    nodes: int
    leases: int
    evicted_pages_total: int
    generation: int


class NewGeneration(msgspec.Struct, frozen=True, tag=True):
    """The worker's memory is lost: void every lease, forget every page."""


CacheEvent = Watch | CacheTransaction | NewGeneration
CacheCommand = Watched | CacheReceipt
