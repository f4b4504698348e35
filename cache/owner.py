"""The cache owner: the machine that alone changes the prefix cache.

It remembers the prompts of waiting requests, and for admitted ones their page table and how far it
has entered the tree.  One `CacheTransaction` a step changes everything, in a fixed order; the
`CacheReceipt` says what came of it.  The scheduler decides who may run; the owner knows what each
would share.

**Sharing in flight.**  A request that is admitted enters the pages it will compute as a pending
node.  A later request whose prompt runs into that node never computes those pages again.  With
``same-step`` it may run once they are all scheduled, the very step that writes them included;
with ``next-step`` once they are ready; until then it is held.  With ``off`` requests compute
alike prompts side by side, and the first to finish a page keeps it.

**The last token.**  Logits need one computed token, so at most all but one of a prompt's tokens
count as cached.  Where its last page is cached whole, the last token is computed and not written.
"""

from array import array
from collections.abc import Sequence
from typing import assert_never

from radixd.cache.feasibility import pages_needed
from radixd.cache.leases import Lease
from radixd.cache.messages import (
    Admitted,
    Advanced,
    CacheCommand,
    CacheEvent,
    CacheReceipt,
    CacheStatistics,
    CacheTransaction,
    Commit,
    Held,
    MatchChanged,
    NewGeneration,
    PageCounts,
    Progress,
    Release,
    Remap,
    RequestId,
    Short,
    Watch,
    Watched,
)
from radixd.cache.pool import SCRATCH_PAGES
from radixd.cache.prefix_cache import PrefixCache
from radixd.cache.tokens import TOKEN_BYTES, pack
from radixd.cache.tree import Position
from radixd.settings import SharingMode


class _Waiting:
    """A prompt that is not admitted."""

    __slots__ = ("matched", "max_tokens", "ready_first", "tokens")

    def __init__(self, tokens: bytes, max_tokens: int, matched: int) -> None:
        self.tokens = tokens
        self.max_tokens = max_tokens
        self.matched = matched
        self.ready_first: int | None = None
        """Tokens that were ready when it was first a candidate: what it did not wait for."""

    @property
    def length(self) -> int:
        return len(self.tokens) // TOKEN_BYTES


class _Running:
    """An admitted request: its tokens so far, its page table, its lease."""

    __slots__ = ("lease", "prompt_tokens", "table", "tokens")

    def __init__(self, tokens: bytes, table: "array[int]", lease: Lease) -> None:
        self.tokens = bytearray(tokens)
        self.prompt_tokens = len(tokens) // TOKEN_BYTES
        self.table = table
        self.lease = lease

    @property
    def private(self) -> "array[int]":
        """Pages of the table that are not in the tree."""
        return self.table[self.lease.node.end :]


class CacheOwner:
    """See the module.  One door: `handle`."""

    def __init__(
        self, cache: PrefixCache, *, sharing: SharingMode, report_matches: bool = False
    ) -> None:
        self.cache = cache
        self._sharing = sharing
        self._report_matches = report_matches
        """Whether receipts list the waiting requests whose match has changed, which costs one
        match for each of them: only an order by matches needs it."""
        self._waiting: dict[RequestId, _Waiting] = {}
        self._running: dict[RequestId, _Running] = {}
        self._reported_version = 0

    def handle(self, events: Sequence[CacheEvent], now: float) -> list[CacheCommand]:
        """Apply *events* in order and return the answers."""
        commands: list[CacheCommand] = []
        for event in events:
            match event:
                case Watch():
                    commands.append(self._watch(event))
                case CacheTransaction():
                    commands.append(self._transact(event))
                case NewGeneration():
                    self._forget_everything()
                case _:
                    assert_never(event)
        return commands

    def statistics(self) -> CacheStatistics:
        """Return the books as they are."""
        cache = self.cache
        return CacheStatistics(
            capacity_pages=cache.pool.capacity,
            page_size=cache.page_size,
            pages=self.page_counts(),
            nodes=cache.tree.nodes,
            leases=len(cache.leases),
            evicted_pages_total=cache.evicted_total,
            generation=cache.leases.generation,
        )

    def page_counts(self) -> PageCounts:
        """Count the pages by where they are."""
        cache = self.cache
        return PageCounts(
            free=cache.pool.free,
            locked=cache.tree_pages - cache.evictable_pages - cache.pending_pages,
            evictable=cache.evictable_pages,
            pending=cache.pending_pages,
            private=sum(len(r.table) - r.lease.node.end for r in self._running.values()),
            quarantined=cache.pool.quarantined,
            scratch=SCRATCH_PAGES,
        )

    def private_pages(self) -> dict[RequestId, "array[int]"]:
        """Return the pages that each admitted request holds outside the tree, for an audit."""
        return {request: running.private for request, running in self._running.items()}

    # Events.

    def _watch(self, event: Watch) -> Watched:
        assert event.request not in self._waiting
        assert event.request not in self._running
        matched = self._matched_tokens(event.tokens)
        self._waiting[event.request] = _Waiting(event.tokens, event.max_tokens, matched)
        return Watched(event.request, matched)

    def _forget_everything(self) -> None:
        self.cache.void_all()
        self._running.clear()
        self._waiting.clear()

    def _transact(self, transaction: CacheTransaction) -> CacheReceipt:
        cache = self.cache
        evicted = cache.evicted_total
        cache.pool.open_fences(transaction.done)
        remaps: list[Remap] = []
        advanced: list[Advanced] = []
        for commit in transaction.commits:
            self._commit(commit, transaction.step - 1, remaps, advanced)
        for release in transaction.releases:
            self._release(release)
        for progress in transaction.progress:
            self._schedule(progress)
        outcomes = self._admit(transaction)
        return CacheReceipt(
            step=transaction.step,
            outcomes=tuple(outcomes),
            remaps=tuple(remaps),
            advanced=tuple(advanced),
            matches=self._changed_matches(),
            evicted_pages=cache.evicted_total - evicted,
        )

    # Parts of a transaction.

    def _commit(
        self, commit: Commit, fence: int, remaps: list[Remap], advanced: list[Advanced]
    ) -> None:
        """Make pages visible.  *fence* is the last step that was sent with the old page tables."""
        cache, running = self.cache, self._running[commit.request]
        running.tokens += commit.appended
        assert commit.computed * TOKEN_BYTES <= len(running.tokens), "KV of unknown tokens"
        if not cache.enabled:
            return
        ready = commit.computed // cache.page_size
        cache.commit(running.lease, ready)
        page_bytes = cache.tree.page_bytes
        for index in range(running.lease.node.end, ready):
            key = bytes(running.tokens[index * page_bytes : (index + 1) * page_bytes])
            own = running.table[index]
            stored = cache.store(running.lease, key, own)
            if stored.page != own:
                running.table[index] = stored.page
                remaps.append(Remap(commit.request, index, stored.page))
                cache.pool.give((own,), fence)
            if stored.displaced is not None:
                leader, old = stored.displaced
                remaps += self._replace(index, old, own)
                advanced.append(Advanced(leader, (index + 1) * cache.page_size))
                cache.pool.give((old,), fence)

    def _replace(self, index: int, old: int, new: int) -> list[Remap]:
        """Put page *new* in the place of *old* in every table: the leader's and its followers'."""
        remaps = []
        for request, running in self._running.items():
            if index < len(running.table) and running.table[index] == old:
                running.table[index] = new
                remaps.append(Remap(request, index, new))
        return remaps

    def _release(self, release: Release) -> None:
        self._waiting.pop(release.request, None)
        running = self._running.pop(release.request, None)
        if running is not None:
            self.cache.pool.give(running.private, release.last_step)
            self.cache.give_back(running.lease, release.last_step)

    def _schedule(self, progress: Progress) -> None:
        lease = self._running[progress.request].lease
        self.cache.schedule(lease, progress.scheduled // self.cache.page_size)

    def _admit(self, transaction: CacheTransaction) -> list[Admitted | Held | Short]:
        outcomes: list[Admitted | Held | Short] = []
        tokens, seats = transaction.step_tokens, transaction.seats
        for request in transaction.candidates:
            outcome = self._consider(request, tokens, seats)
            outcomes.append(outcome)
            if isinstance(outcome, Short):
                break
            if isinstance(outcome, Admitted):
                tokens -= outcome.scheduled - outcome.from_tree - outcome.in_flight
                seats -= 1
        return outcomes

    def _consider(self, request: RequestId, tokens: int, seats: int) -> Admitted | Held | Short:
        if seats == 0:
            return Short(request, "seats")
        if tokens == 0:
            return Short(request, "tokens")
        cache, waiting = self.cache, self._waiting[request]
        position = cache.match(waiting.tokens)
        ready, scheduled = cache.tree.borders(position)
        if waiting.ready_first is None:
            waiting.ready_first = ready * cache.page_size
        if self._sharing == "off":
            position = cache.above(position, ready)
        else:
            border = scheduled if self._sharing == "same-step" else ready
            if border < position.depth:
                leader, end = cache.leader_at(position, border)
                return Held(request, leader, end * cache.page_size)
        missing = pages_needed(waiting.length, waiting.max_tokens, cache.page_size) - position.depth
        if missing > cache.available_beside(position):
            return Short(request, "pages")
        return self._place(request, waiting, position, missing, tokens)

    def _place(
        self, request: RequestId, waiting: _Waiting, position: Position, missing: int, tokens: int
    ) -> Admitted:
        cache = self.cache
        lease = cache.acquire(request, position)
        own = cache.take(missing)
        table = cache.page_table(lease.node) + own
        self._enter(lease, waiting, own)
        cached = min(position.depth * cache.page_size, waiting.length - 1)
        scheduled = min(waiting.length, cached + tokens)
        cache.schedule(lease, scheduled // cache.page_size)
        del self._waiting[request]
        self._running[request] = _Running(waiting.tokens, table, lease)
        assert waiting.ready_first is not None
        from_tree = min(waiting.ready_first, cached)
        return Admitted(
            request=request,
            table=pack(table),
            from_tree=from_tree,
            in_flight=cached - from_tree,
            scheduled=scheduled,
            write=cached == position.depth * cache.page_size,
        )

    def _enter(self, lease: Lease, waiting: _Waiting, own: "array[int]") -> None:
        """Let the tree know which pages of the prompt are being computed from now on."""
        cache = self.cache
        if not cache.enabled or self._sharing == "off":
            return
        page_bytes = cache.tree.page_bytes
        first, last = lease.node.end, len(waiting.tokens) // page_bytes
        if last > first:
            key = waiting.tokens[first * page_bytes : last * page_bytes]
            cache.enter(lease, key, own[: last - first])

    def _matched_tokens(self, tokens: bytes) -> int:
        return self.cache.match(tokens).depth * self.cache.page_size

    def _changed_matches(self) -> tuple[MatchChanged, ...]:
        version = self.cache.tree.version
        if not self._report_matches or version == self._reported_version:
            return ()
        self._reported_version = version
        changed = []
        for request, waiting in self._waiting.items():
            matched = self._matched_tokens(waiting.tokens)
            if matched != waiting.matched:
                waiting.matched = matched
                changed.append(MatchChanged(request, matched))
        return tuple(changed)
