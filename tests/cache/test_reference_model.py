"""Tree and pool against a naive model: a set of page paths, and a set of page ids."""

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from radixd.cache.audit import audit
from radixd.cache.leases import Lease, LeaseError
from radixd.cache.messages import RequestId
from radixd.cache.prefix_cache import PrefixCache
from radixd.cache.tokens import pack

Path = tuple[int, ...]
"""A prefix of whole pages, each page named by one small number."""

PATHS = st.lists(st.integers(0, 2), max_size=6).map(tuple)
CAPACITY = 24


class Holder:
    """A request of the model: what it has leased, and what it computes."""

    def __init__(self, lease: Lease, path: Path) -> None:
        self.lease = lease
        self.path = path
        """Everything under its lease."""
        self.leads: set[Path] = set()
        """Paths of the pages that it entered and nobody has computed."""


class CacheAgainstModel(RuleBasedStateMachine):
    """Every operation on both, every answer compared.

    The model is a page id for each path, and two sets of paths: ``ready``, and ``scheduled`` for
    those that a step will make ready.
    """

    page_size = 1

    @initialize()
    def start(self) -> None:
        """Begin with nothing."""
        self.cache = PrefixCache(capacity_pages=CAPACITY, page_size=self.page_size)
        self.pages: dict[Path, int] = {}
        self.ready: set[Path] = set()
        self.scheduled: set[Path] = set()
        self.holders: dict[RequestId, Holder] = {}
        self.private: dict[RequestId, list[int]] = {}
        self.fenced: list[tuple[int, int]] = []
        self.last_used: dict[Path, int] = {}
        self.tick = 0
        self.step = 1
        self.next = 1

    # How the model sees things.

    def tokens(self, path: Path) -> bytes:
        """Return the tokens of *path*: pages of equal content differ only by their number."""
        return pack([page * 7 + i % 2 for page in path for i in range(self.page_size)])

    def matched(self, path: Path) -> Path:
        """Return the longest beginning of *path* in the tree, by trying every length."""
        return max(
            (path[:n] for n in range(len(path) + 1) if n == 0 or path[:n] in self.pages), key=len
        )

    def locked(self) -> set[Path]:
        """Return every path under a lease."""
        return {h.path[:n] for h in self.holders.values() for n in range(1, len(h.path) + 1)}

    def free(self) -> int:
        """Count the pages that nobody has."""
        held = sum(map(len, self.private.values()))
        return CAPACITY - 1 - len(self.pages) - held - len(self.fenced)

    def touch(self, path: Path) -> None:
        """Note that *path* was just used."""
        self.tick += 1
        for length in range(1, len(path) + 1):
            self.last_used[path[:length]] = self.tick

    # Rules.

    @rule(path=PATHS)
    def match(self, path: Path) -> None:
        """A question has the model's answer and changes nothing."""
        position = self.cache.match(self.tokens(path))
        expected = self.matched(path)
        assert position.depth == len(expected)
        beginnings = {expected[:n] for n in range(1, len(expected) + 1)}
        ready, scheduled = self.cache.tree.borders(position)
        assert ready == len(beginnings & self.ready)
        assert scheduled == len(beginnings & (self.ready | self.scheduled))
        for depth in range(ready, len(expected)):
            leader, _ = self.cache.leader_at(position, depth)
            assert expected[: depth + 1] in self.holders[leader].leads

    @precondition(lambda self: len(self.holders) < 4)
    @rule(path=PATHS, own=st.integers(0, 3))
    def acquire(self, path: Path, own: int) -> None:
        """A request leases what is ready or about to be, and takes pages for what it will add."""
        found = self.matched(path)
        while found and found not in self.ready | self.scheduled:
            found = found[:-1]
        position = self.cache.above(self.cache.match(self.tokens(path)), len(found))
        evictable = [p for p in self.pages if p not in self.locked()]
        spared = sum(found[:n] in evictable for n in range(1, len(found) + 1))
        available = self.free() + len(evictable) - spared
        assert self.cache.available_beside(position) == available
        if own > available:
            return
        request = RequestId(self.next)
        self.next += 1
        lease = self.cache.acquire(request, position)
        self.touch(found)
        holder = self.holders[request] = Holder(lease, found)
        assert list(self.cache.page_table(lease.node)) == [
            self.pages[found[:n]] for n in range(1, len(found) + 1)
        ]
        self.evict_from_model(own - self.free())
        self.private[request] = list(self.cache.take(own))
        ahead = path[len(found) : len(found) + own]
        # What another one leads is left to it, as the owner does with sharing off.
        if ahead and found + ahead[:1] not in self.pages:
            key = self.tokens(path[: len(found) + len(ahead)])[len(self.tokens(found)) :]
            entered, self.private[request] = (
                self.private[request][: len(ahead)],
                self.private[request][len(ahead) :],
            )
            self.cache.enter(lease, key, array("I", entered))
            for page in range(len(ahead)):
                whole = found + ahead[: page + 1]
                self.pages[whole] = entered[page]
                self.last_used[whole] = self.tick
                holder.leads.add(whole)
            holder.path = found + ahead

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def schedule(self, data: st.DataObject) -> None:
        """A step that is planned writes some of the pages that a request leads."""
        request = data.draw(st.sampled_from(sorted(self.holders)))
        holder = self.holders[request]
        depth = data.draw(st.integers(0, len(holder.path)))
        self.cache.schedule(holder.lease, depth)
        self.scheduled |= {path for path in holder.leads if len(path) <= depth}

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """A step has computed some of the pages that a request leads, those above them included."""
        request = data.draw(st.sampled_from(sorted(self.holders)))
        holder = self.holders[request]
        paths = [holder.path[:n] for n in range(1, len(holder.path) + 1)]
        others = [path for path in paths if path not in self.ready | holder.leads]
        limit = len(others[0]) - 1 if others else len(paths)
        self.commit(holder, data.draw(st.integers(0, limit)))

    def commit(self, holder: Holder, depth: int) -> None:
        """Make the pages of *holder* ready up to *depth*."""
        self.cache.commit(holder.lease, depth)
        computed = {path for path in holder.leads if len(path) <= depth}
        holder.leads -= computed
        self.scheduled -= computed
        self.ready |= computed

    @precondition(lambda self: self.able())
    @rule(data=st.data(), page=st.integers(0, 2))
    def store(self, data: st.DataObject, page: int) -> None:
        """A request that has computed a page of its own enters it; equal pages become one."""
        request = data.draw(st.sampled_from(self.able()))
        holder = self.holders[request]
        path = (*holder.path, page)
        own = self.private[request].pop(0)
        stored = self.cache.store(holder.lease, self.tokens((page,)), own)
        if path not in self.pages:
            assert stored.page == own
            assert stored.displaced is None
            self.pages[path] = own
            self.last_used[path] = self.tick
        elif path in self.ready:
            assert stored.page == self.pages[path] != own
            assert stored.displaced is None
            self.give(own)
        else:
            leader = next(r for r, h in self.holders.items() if path in h.leads)
            assert stored.page == own
            assert stored.displaced == (leader, self.pages[path])
            self.give(self.pages[path])
            self.pages[path] = own
            self.holders[leader].leads.discard(path)
            self.scheduled.discard(path)
        self.last_used[path] = self.tick
        self.ready.add(path)
        holder.path = path

    def able(self) -> list[RequestId]:
        """Return who has computed all that it leases, and has pages left."""
        return [
            request
            for request, holder in sorted(self.holders.items())
            if self.private[request] and (not holder.path or holder.path in self.ready)
        ]

    def give(self, page: int) -> None:
        """Give a page back behind the step that is being planned."""
        self.cache.pool.give((page,), self.step)
        self.fenced.append((self.step, page))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A request leaves: what it led and no step computes goes with it."""
        # It leaves when its last step is done, and so are all before that one.
        free = [r for r, h in sorted(self.holders.items()) if not self.waits(h)]
        request = data.draw(st.sampled_from(free))
        holder = self.holders.pop(request)
        self.commit(holder, max(map(len, holder.leads & self.scheduled), default=0))
        for page in self.private.pop(request):
            self.give(page)
        self.cache.give_back(holder.lease, self.step)
        for path in holder.leads:
            self.fenced.append((self.step, self.pages.pop(path)))
            self.last_used.pop(path)
        self.touch(holder.path[: len(holder.path) - len(holder.leads)])
        with pytest.raises(LeaseError):
            self.cache.give_back(holder.lease, self.step)

    def waits(self, holder: Holder) -> bool:
        """Return whether *holder* stands on pages that another one has not computed yet."""
        paths = (holder.path[:n] for n in range(1, len(holder.path) + 1))
        return any(path not in self.ready | holder.leads for path in paths)

    @rule()
    def finish_step(self) -> None:
        """The step is done: what waited for it is free."""
        self.cache.pool.open_fences(self.step)
        self.fenced = [(step, page) for step, page in self.fenced if step > self.step]
        self.step += 1

    @rule(count=st.integers(1, 8))
    def evict(self, count: int) -> None:
        """As many pages go as asked, or all that are under no lease."""
        expected = self.evict_from_model(count)
        assert self.cache.evict(count) == expected

    def evict_from_model(self, count: int) -> int:
        """Remove the least recently used leaf pages, tails first; return how many."""
        gone = 0
        while gone < count:
            locked = self.locked()
            parents = {path[:-1] for path in self.pages}
            leaves = [p for p in self.pages if p not in parents and p not in locked]
            if not leaves:
                break
            oldest = min(self.last_used[leaf] for leaf in leaves)
            (victim,) = [leaf for leaf in leaves if self.last_used[leaf] == oldest]
            del self.pages[victim], self.last_used[victim]
            self.ready.discard(victim)
            gone += 1
        return gone

    @rule()
    def lose_everything(self) -> None:
        """The memory is gone: all is free, and old leases are void."""
        old = [holder.lease for holder in self.holders.values()]
        self.cache.void_all()
        self.start_model_again()
        for lease in old:
            self.cache.give_back(lease)

    def start_model_again(self) -> None:
        """Empty the model, but for what counts on."""
        self.pages, self.ready, self.scheduled, self.holders = {}, set(), set(), {}
        self.private, self.fenced, self.last_used = {}, [], {}

    # After every rule.

    @invariant()
    def books_agree(self) -> None:
        """Structure, ownership and sums are the model's."""
        if not hasattr(self, "cache"):
            return
        self.cache.tree.check()
        assert audit(self.cache, self.private).problems == ()
        assert self.cache.tree_pages == len(self.pages)
        assert self.cache.pending_pages == len(self.pages) - len(self.ready)
        assert self.cache.evictable_pages == len(self.pages) - len(self.locked())
        assert self.cache.pool.free == self.free()
        held = {}
        for node in self.cache.tree.walk():
            for offset, page in enumerate(node.pages):
                held[page] = node.start + offset
        assert held == {page: len(path) - 1 for path, page in self.pages.items()}


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_tree_and_pool_do_what_the_naive_model_does(page_size: int) -> None:
    """Random operations, for page sizes 1, 4 and 16."""
    machine = type("Machine", (CacheAgainstModel,), {"page_size": page_size})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
