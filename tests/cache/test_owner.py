"""`radixd.cache.owner`: what each transaction does, and what its receipt says."""

import pytest

from harness.cache import check
from radixd.cache.messages import (
    Admitted,
    CacheReceipt,
    CacheTransaction,
    Commit,
    Held,
    NewGeneration,
    Progress,
    Release,
    RequestId,
    Short,
    Watch,
    Watched,
)
from radixd.cache.owner import CacheOwner
from radixd.cache.prefix_cache import PrefixCache
from radixd.cache.tokens import pack, unpack
from radixd.settings import SharingMode

A, B, C = RequestId(1), RequestId(2), RequestId(3)


class Driver:
    """An owner, and transactions in a line each."""

    def __init__(
        self,
        *,
        capacity: int = 65,
        page_size: int = 4,
        sharing: SharingMode = "same-step",
        enabled: bool = True,
        report_matches: bool = False,
    ) -> None:
        self.cache = PrefixCache(capacity_pages=capacity, page_size=page_size, enabled=enabled)
        self.owner = CacheOwner(self.cache, sharing=sharing, report_matches=report_matches)
        self.step = 0

    def watch(self, request: RequestId, tokens: list[int], max_tokens: int = 1) -> int:
        """Let a request arrive; return what the tree holds of its prompt."""
        (watched,) = self.owner.handle([Watch(request, pack(tokens), max_tokens)], 0.0)
        assert isinstance(watched, Watched)
        return watched.matched

    def transact(
        self,
        *,
        done: int = 0,
        commits: tuple[Commit, ...] = (),
        releases: tuple[Release, ...] = (),
        progress: tuple[Progress, ...] = (),
        candidates: tuple[RequestId, ...] = (),
        tokens: int = 1000,
        seats: int = 8,
    ) -> CacheReceipt:
        """Plan the next step."""
        self.step += 1
        transaction = CacheTransaction(
            self.step, done, commits, releases, progress, candidates, tokens, seats
        )
        (receipt,) = self.owner.handle([transaction], 0.0)
        assert isinstance(receipt, CacheReceipt)
        check(self.cache, self.owner.private_pages())
        for request, running in self.owner._running.items():
            shared = self.cache.page_table(running.lease.node)
            assert running.table[: len(shared)] == shared, f"request {request} has another table"
        return receipt

    def admit(self, request: RequestId, tokens: int = 1000) -> Admitted:
        """Plan a step that admits *request*, which must fit."""
        (admitted,) = self.transact(candidates=(request,), tokens=tokens).outcomes
        assert isinstance(admitted, Admitted)
        return admitted

    def idle(self) -> None:
        """Assert that nobody holds anything."""
        counts = self.owner.page_counts()
        assert counts.locked == counts.pending == counts.private == counts.quarantined == 0
        assert len(self.cache.leases) == 0


def prompt(first: int, length: int) -> list[int]:
    """Return *length* tokens that begin with *first*."""
    return [first, *range(100, 99 + length)]


def test_a_request_gets_the_pages_of_prompt_and_answer() -> None:
    """All of them, once: the last token of the answer has no KV."""
    driver = Driver(page_size=4)
    driver.watch(A, prompt(1, 10), max_tokens=7)
    admitted = driver.admit(A)
    assert len(unpack(admitted.table)) == 4
    assert (admitted.from_tree, admitted.in_flight, admitted.scheduled) == (0, 0, 10)
    assert admitted.write


def test_the_last_sampled_token_is_never_matched() -> None:
    """It has no KV: it was never fed back."""
    driver = Driver(page_size=1)
    driver.watch(A, [1, 2, 3], max_tokens=3)
    driver.admit(A)
    # The answer is 7, 8, 9; the last step fed 8 back and sampled 9.
    driver.transact(done=1, commits=(Commit(A, 5, pack([7, 8])),), releases=(Release(A, 1),))
    assert driver.watch(B, [1, 2, 3, 7, 8, 9, 5]) == 5
    driver.idle()


def test_a_prompt_that_is_cached_whole_computes_one_token_and_does_not_write_it() -> None:
    """Its last page is the tree's, and stays as it is."""
    driver = Driver(page_size=4)
    driver.watch(A, prompt(1, 8))
    driver.admit(A)
    driver.transact(done=1, commits=(Commit(A, 8, b""),), releases=(Release(A, 1),))
    driver.watch(B, prompt(1, 8))
    admitted = driver.admit(B)
    assert (admitted.from_tree, admitted.scheduled, admitted.write) == (7, 8, False)


def test_a_page_computed_twice_ends_as_one_behind_a_fence() -> None:
    """The second one's table is remapped; its own page is free when the steps out are done."""
    driver = Driver(page_size=4, sharing="off")
    for request in (A, B):
        driver.watch(request, prompt(1, 9))
    receipt = driver.transact(candidates=(A, B))
    one, other = (unpack(a.table) for a in receipt.outcomes if isinstance(a, Admitted))
    driver.transact()  # Step 2 is out with the old tables.
    free = driver.cache.pool.free
    receipt = driver.transact(done=1, commits=(Commit(A, 9, b""), Commit(B, 9, b"")))
    assert [(r.request, r.index, r.page) for r in receipt.remaps] == [
        (B, 0, one[0]),
        (B, 1, one[1]),
    ]
    assert driver.cache.pool.quarantined_pages() == {other[0], other[1]}
    driver.transact(done=2)
    assert driver.cache.pool.free == free + 2


def test_a_leader_moves_on_over_pages_that_another_one_computed() -> None:
    """An answer overtakes a prompt that contains it: the pages turn ready as the answer's."""
    driver = Driver(page_size=2)
    driver.watch(A, [1, 2], max_tokens=9)
    driver.admit(A)
    driver.transact(done=1, commits=(Commit(A, 2, b""),))
    driver.watch(B, [1, 2, 3, 4, 5, 6, 7])
    admitted = driver.admit(B, tokens=1)
    own = unpack(admitted.table)
    receipt = driver.transact(done=1, commits=(Commit(A, 4, pack([3, 4])),))
    ((remap,), (advanced,)) = receipt.remaps, receipt.advanced
    assert (remap.request, remap.index) == (B, 1)
    assert (advanced.request, advanced.position) == (B, 4)
    assert own[1] in driver.cache.pool.quarantined_pages()


def test_followers_move_on_with_their_leader_to_the_page_that_another_one_computed() -> None:
    """They joined its step, so its own page is in their tables, and it will soon be free."""
    driver = Driver(page_size=2)
    driver.watch(A, [1, 2], max_tokens=9)
    driver.admit(A)
    driver.transact(done=1, commits=(Commit(A, 2, b""),))
    for request in (B, C):
        driver.watch(request, [1, 2, 3, 4, 5, 6, request])
    leader, follower = driver.transact(candidates=(B, C)).outcomes
    assert isinstance(leader, Admitted)
    assert isinstance(follower, Admitted)
    assert unpack(follower.table)[:3] == unpack(leader.table)[:3]
    receipt = driver.transact(done=1, commits=(Commit(A, 4, pack([3, 4])),))
    (page,) = {remap.page for remap in receipt.remaps}
    assert page == driver.cache.page_table(driver.cache.match(pack([1, 2, 3, 4])).node)[1]
    assert sorted((remap.request, remap.index) for remap in receipt.remaps) == [(B, 1), (C, 1)]


@pytest.mark.parametrize(
    ("sharing", "held", "computed"), [("same-step", False, 1), ("next-step", True, 0)]
)
def test_a_follower_joins_the_step_or_waits_for_the_next(
    sharing: SharingMode, held: bool, computed: int
) -> None:
    """Both are candidates of one transaction, the leader first."""
    driver = Driver(page_size=4, sharing=sharing)
    driver.watch(A, [*prompt(1, 8), 50])
    driver.watch(B, [*prompt(1, 8), 60])
    leader, follower = driver.transact(candidates=(A, B)).outcomes
    assert isinstance(leader, Admitted)
    if held:
        assert follower == Held(B, A, 8)
        driver.transact(done=1, commits=(Commit(A, 9, b""),))
        follower = driver.admit(B)
        # It waited for what was not ready when it first asked.
        assert (follower.from_tree, follower.in_flight) == (0, 8)
    else:
        assert isinstance(follower, Admitted)
        assert (follower.from_tree, follower.in_flight, follower.scheduled) == (0, 8, 9)
        assert unpack(follower.table)[:2] == unpack(leader.table)[:2]
    assert driver.cache.tree_pages == 2


def test_with_sharing_off_nobody_waits_and_nobody_shares_in_flight() -> None:
    """Alike prompts are computed side by side."""
    driver = Driver(sharing="off")
    for request in (A, B):
        driver.watch(request, prompt(1, 9))
    receipt = driver.transact(candidates=(A, B))
    assert [a.in_flight for a in receipt.outcomes if isinstance(a, Admitted)] == [0, 0]


def test_a_follower_of_a_chunked_leader_is_held_until_its_last_shared_page() -> None:
    """It may run in the step that computes it."""
    driver = Driver(page_size=4)
    driver.watch(A, [*prompt(1, 16), 50])
    driver.watch(B, [*prompt(1, 12), 60])
    receipt = driver.transact(candidates=(A, B), tokens=6)
    assert receipt.outcomes[1] == Short(B, "tokens")
    (held,) = driver.transact(progress=(Progress(A, 11),), candidates=(B,), tokens=5).outcomes
    assert held == Held(B, A, 12)
    (follower,) = driver.transact(progress=(Progress(A, 12),), candidates=(B,)).outcomes
    assert isinstance(follower, Admitted)
    assert (follower.in_flight, follower.scheduled) == (12, 13)


def test_a_leader_that_leaves_keeps_what_it_computed_and_the_next_one_leads() -> None:
    """Nothing that was committed is computed again."""
    driver = Driver(page_size=4)
    driver.watch(A, [*prompt(1, 16), 50])
    driver.watch(B, [*prompt(1, 16), 60])
    driver.admit(A, tokens=8)
    receipt = driver.transact(
        done=1, commits=(Commit(A, 8, b""),), releases=(Release(A, 1),), candidates=(B,)
    )
    (leader,) = receipt.outcomes
    assert isinstance(leader, Admitted)
    assert leader.from_tree + leader.in_flight == 8
    assert driver.cache.pending_pages == 2


def test_a_follower_of_a_follower_waits_for_whoever_is_behind() -> None:
    """The first page that is not scheduled names the leader."""
    driver = Driver(page_size=4)
    driver.watch(A, prompt(1, 8))
    driver.watch(B, [*prompt(1, 8), *range(500, 509)])
    driver.watch(C, [*prompt(1, 8), *range(500, 508), 70])
    receipt = driver.transact(candidates=(A, B, C), tokens=8 + 4)
    first, second, third = receipt.outcomes
    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert third == Short(C, "tokens")
    (held,) = driver.transact(candidates=(C,)).outcomes
    assert held == Held(C, B, 16)


def test_the_first_candidate_that_falls_short_ends_the_list() -> None:
    """Of seats, tokens or pages; the rest is not tried."""
    driver = Driver(capacity=9, page_size=4)
    for request in (A, B, C):
        driver.watch(request, prompt(request, 16))
    assert driver.transact(candidates=(A, B), seats=0).outcomes == (Short(A, "seats"),)
    assert driver.transact(candidates=(A, B), tokens=0).outcomes == (Short(A, "tokens"),)
    receipt = driver.transact(candidates=(A, B, C))
    assert [type(outcome) for outcome in receipt.outcomes] == [Admitted, Admitted, Short]
    assert receipt.outcomes[2] == Short(C, "pages")


def test_admission_evicts_what_it_needs_and_never_what_it_is_about_to_use() -> None:
    """A candidate's own prefix does not count as room for it."""
    driver = Driver(capacity=9, page_size=4)
    for request in (A, B):
        driver.watch(request, prompt(request, 16))
        driver.admit(request)
        driver.transact(
            done=driver.step,
            commits=(Commit(request, 16, b""),),
            releases=(Release(request, driver.step),),
        )
    driver.watch(C, [*prompt(A, 16), *range(900, 912)])
    receipt = driver.transact(done=driver.step, candidates=(C,))
    (admitted,) = receipt.outcomes
    assert isinstance(admitted, Admitted)
    assert (admitted.from_tree, receipt.evicted_pages) == (16, 3)
    assert driver.cache.match(pack(prompt(B, 16))).depth == 1


def test_without_a_cache_everything_is_given_back() -> None:
    """Nothing is matched, kept or entered."""
    driver = Driver(enabled=False)
    for request in (A, B):
        assert driver.watch(request, prompt(1, 16), max_tokens=5) == 0
        admitted = driver.admit(request)
        assert (admitted.from_tree, admitted.in_flight) == (0, 0)
        driver.transact(
            done=driver.step,
            commits=(Commit(request, 16, b""),),
            releases=(Release(request, driver.step),),
        )
    driver.transact(done=driver.step)
    driver.idle()
    assert driver.cache.tree_pages == 0


def test_a_request_that_was_never_admitted_leaves_nothing() -> None:
    """Its prompt is forgotten."""
    driver = Driver()
    driver.watch(A, prompt(1, 8))
    driver.transact(releases=(Release(A, 0),))
    driver.watch(A, prompt(1, 8))
    driver.idle()


def test_receipts_tell_whose_match_has_changed_where_the_order_needs_it() -> None:
    """By insertion and by eviction, and nothing when nothing did."""
    driver = Driver(page_size=4, report_matches=True)
    driver.watch(A, prompt(1, 8))
    driver.watch(B, [*prompt(1, 8), 9])
    assert driver.transact().matches == ()
    receipt = driver.transact(candidates=(A,))
    assert [(m.request, m.matched) for m in receipt.matches] == [(B, 8)]
    assert driver.transact().matches == ()
    driver.transact(done=driver.step, commits=(Commit(A, 8, b""),), releases=(Release(A, 2),))
    driver.cache.evict(1)
    assert [m.matched for m in driver.transact().matches] == [4]


def test_the_room_of_one_transaction_is_shared_by_its_candidates() -> None:
    """Each chunk lessens the tokens, each admission the seats; what is shared costs no tokens."""
    driver = Driver(page_size=4)
    for request in (A, B, C):
        driver.watch(request, [*prompt(1, 8), request, 99])
    first, second, third = driver.transact(candidates=(A, B, C), tokens=11).outcomes
    assert isinstance(first, Admitted)
    assert (first.scheduled, first.in_flight) == (10, 0)
    assert isinstance(second, Admitted)
    assert (second.scheduled, second.in_flight) == (9, 8)
    assert third == Short(C, "tokens")
    assert driver.transact(candidates=(C,), seats=1).outcomes[0].request == C


def test_the_seats_of_one_transaction_are_counted() -> None:
    """The second of two candidates for one seat is short of it."""
    driver = Driver()
    for request in (A, B):
        driver.watch(request, prompt(request, 8))
    outcomes = driver.transact(candidates=(A, B), seats=1).outcomes
    assert isinstance(outcomes[0], Admitted)
    assert outcomes[1] == Short(B, "seats")


def test_a_held_candidate_ends_nothing_and_takes_no_room() -> None:
    """Whoever comes after it may be admitted."""
    driver = Driver(sharing="next-step")
    for request in (A, B):
        driver.watch(request, prompt(1, 9))
    driver.watch(C, prompt(3, 9))
    outcomes = driver.transact(candidates=(A, B, C), tokens=18, seats=2).outcomes
    assert [type(outcome) for outcome in outcomes] == [Admitted, Held, Admitted]


def test_a_request_that_waited_counts_as_cached_what_was_ready_when_it_first_asked() -> None:
    """The rest of what it shares was computed by others meanwhile: it was in flight."""
    driver = Driver(page_size=4, sharing="next-step")
    driver.watch(A, [*prompt(1, 16), 50])
    driver.admit(A, tokens=8)
    driver.watch(B, [*prompt(1, 16), 60])
    step = driver.step
    receipt = driver.transact(
        done=step,
        commits=(Commit(A, 8, b""),),
        progress=(Progress(A, 17),),
        candidates=(B,),
    )
    assert receipt.outcomes == (Held(B, A, 16),)
    driver.transact(done=driver.step, commits=(Commit(A, 17, b""),))
    admitted = driver.admit(B)
    assert (admitted.from_tree, admitted.in_flight) == (8, 8)


def test_a_follower_is_released_as_soon_as_its_own_part_is_there() -> None:
    """The leader's prompt goes on, and it does not wait for that."""
    driver = Driver(page_size=4, sharing="next-step")
    driver.watch(A, [*prompt(1, 32), 50])
    driver.watch(B, [*prompt(1, 8), 60])
    driver.admit(A, tokens=4)
    assert driver.transact(candidates=(B,)).outcomes == (Held(B, A, 8),)
    driver.transact(done=1, commits=(Commit(A, 4, b""),), progress=(Progress(A, 8),))
    assert driver.transact(candidates=(B,)).outcomes == (Held(B, A, 8),)
    receipt = driver.transact(done=2, commits=(Commit(A, 8, b""),), candidates=(B,))
    assert isinstance(receipt.outcomes[0], Admitted)


def test_a_page_that_is_computed_in_part_is_not_visible() -> None:
    """It turns ready when its last token is computed."""
    driver = Driver(page_size=4)
    driver.watch(A, prompt(1, 16))
    driver.admit(A, tokens=7)
    driver.transact(done=1, commits=(Commit(A, 7, b""),))
    position = driver.cache.match(pack(prompt(1, 16)))
    assert driver.cache.tree.borders(position) == (1, 1)
    assert driver.owner.page_counts().pending == 3


def test_a_page_of_the_answer_is_visible_as_soon_as_it_is_full() -> None:
    """While its request still runs; the tokens of a partly filled page stay its own."""
    driver = Driver(page_size=4)
    driver.watch(A, prompt(1, 6), max_tokens=20)
    driver.admit(A)
    answer = [7, 8, 9, 10, 11]
    driver.transact(done=1, commits=(Commit(A, 6, b""),))
    assert driver.watch(B, prompt(1, 6) + answer) == 4
    driver.transact(done=1, commits=(Commit(A, 8, pack(answer[:2])),))
    driver.transact(done=1, commits=(Commit(A, 11, pack(answer[2:])),))
    assert driver.watch(C, prompt(1, 6) + answer) == 8


def test_a_freed_page_is_not_handed_out_before_the_last_step_that_uses_it_is_done() -> None:
    """The next request gets it then, and not a step earlier."""
    driver = Driver(capacity=5, page_size=4)
    driver.watch(A, prompt(1, 14), max_tokens=3)
    table = set(unpack(driver.admit(A).table))
    driver.transact(releases=(Release(A, 2),))
    driver.watch(B, prompt(2, 14), max_tokens=3)
    assert driver.transact(done=1, candidates=(B,)).outcomes == (Short(B, "pages"),)
    (admitted,) = driver.transact(done=2, candidates=(B,)).outcomes
    assert isinstance(admitted, Admitted)
    assert set(unpack(admitted.table)) == table


def test_a_leader_that_leaves_before_it_computed_anything_leaves_nothing() -> None:
    """Its pages are free behind their fence, and the prompt is nobody's."""
    driver = Driver(page_size=4)
    driver.watch(A, prompt(1, 16))
    driver.admit(A)
    driver.transact(releases=(Release(A, 1),))
    assert driver.cache.tree_pages == 0
    assert driver.cache.pool.quarantined == 4
    driver.transact(done=1)
    driver.idle()


def test_a_leader_that_leaves_keeps_the_pages_of_the_followers_that_joined_it() -> None:
    """They were computed; the rest of its prompt goes."""
    driver = Driver(page_size=4)
    driver.watch(A, [*prompt(1, 8), *range(300, 309)])
    driver.watch(B, [*prompt(1, 8), 60])
    driver.admit(A, tokens=8)
    follower = driver.admit(B)
    assert follower.in_flight == 8
    driver.transact(
        done=2, commits=(Commit(A, 8, b""), Commit(B, 9, b"")), releases=(Release(A, 1),)
    )
    assert driver.owner.page_counts().pending == 0
    assert driver.watch(C, [*prompt(1, 8), *range(300, 309)]) == 8
    driver.transact(done=2, releases=(Release(B, 2),))
    driver.idle()


def test_a_new_generation_forgets_requests_and_pages() -> None:
    """Everyone must be watched again, and starts with nothing."""
    driver = Driver(page_size=4)
    driver.watch(A, prompt(1, 8))
    driver.watch(B, prompt(2, 8))
    driver.admit(A)
    driver.transact(done=1, commits=(Commit(A, 8, b""),))
    assert driver.owner.handle([NewGeneration()], 0.0) == []
    assert driver.owner.statistics().generation == 1
    driver.idle()
    assert driver.watch(A, prompt(1, 8)) == 0
    assert driver.watch(B, prompt(2, 8)) == 0
    assert isinstance(driver.admit(B), Admitted)


def test_every_page_is_counted_once_at_every_moment() -> None:
    """The counts of a busy cache add up to its capacity, kind by kind."""
    driver = Driver(capacity=33, page_size=4)
    driver.watch(A, prompt(1, 8), max_tokens=5)
    driver.admit(A)
    driver.transact(done=1, commits=(Commit(A, 8, b""),), releases=(Release(A, 1),))
    driver.watch(B, [*prompt(1, 4), *range(200, 213)], max_tokens=4)
    driver.admit(B, tokens=4)
    driver.transact(done=1, commits=(Commit(B, 8, b""),))
    driver.watch(C, prompt(3, 4), max_tokens=9)
    driver.admit(C)
    driver.transact(done=1, releases=(Release(C, driver.step),))
    counts = driver.owner.page_counts()
    # The first prompt left two pages, one of which the second one leases.
    assert (counts.evictable, counts.locked, counts.pending, counts.private) == (1, 2, 2, 1)
    assert (counts.quarantined, counts.scratch) == (3, 1)
    assert counts.free == 33 - 1 - 2 - 2 - 1 - 3 - 1
