"""The scheduler: a machine that turns what happened into the next step.

**One step.**  A plan takes the rows of running requests (decodes first, then prefill chunks) from
one token budget, asks the cache owner to admit waiting requests with what is left, and sends the
step when the owner's receipt is in.  One plan is open at a time, and the worker holds at most two
steps: while it computes step N, step N+1 is planned and sent, so it never waits for this machine.

**Overlap.**  A decode row of step N+1 takes its input from the worker's own sample of step N.  So a
request may be found to have ended when a row of it is already out: the worker skips that row (stop
id), or computes it and it is dropped here (abort, stop string).  Such a request is LEAVING until
its last row is done, and only then gives its lease back.

**Sharing in flight.**  The owner holds a request whose prefix another one computes.  It becomes a
candidate again when that leader is scheduled (``next-step``: computed) far enough, or leaves.

**Backpressure.**  No step is planned while two token batches are unacknowledged.

**A lost worker.**  Every request starts again from what it has delivered.  Those of the step that
was being computed are suspects: each is tried alone, with everyone else paused, until it gets a
token further than it was.  One that is in a lost step again is the cause, and fails.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from typing import assert_never

from radixd.cache.messages import (
    Admitted,
    CacheReceipt,
    CacheTransaction,
    Commit,
    Held,
    NewGeneration,
    Progress,
    Release,
    Remap,
    RequestId,
    Short,
    Watch,
    Watched,
)
from radixd.cache.tokens import pack
from radixd.scheduling.holding import Followers
from radixd.scheduling.messages import (
    Abort,
    Acknowledge,
    Delivery,
    FinishReason,
    SchedulerCommand,
    SchedulerEvent,
    SchedulerStatistics,
    Seat,
    Step,
    StepDone,
    Submit,
    TokenBatch,
    WorkerLost,
    WorkerReady,
)
from radixd.scheduling.policies import OrderingPolicy
from radixd.scheduling.requests import Phase, Request
from radixd.scheduling.rows import Plan, PlannedRow, Sent
from radixd.settings import SharingMode

STEPS_OUT_MAX = 2
BATCHES_OUT_MAX = 2
LOSSES_MAX = 2
"""Steps that may be lost with a request, and no token of it between them, before it fails."""


class Scheduler:
    """See the module.  One door: `handle`."""

    def __init__(
        self,
        *,
        policy: OrderingPolicy,
        sharing: SharingMode,
        page_size: int,
        max_running: int,
        max_step_tokens: int,
    ) -> None:
        assert max_step_tokens > max_running, "decodes alone would fill every step"
        self._policy = policy
        self._sharing = sharing
        self._page_size = page_size
        self._max_running = max_running
        self._max_step_tokens = max_step_tokens
        self._requests: dict[RequestId, Request] = {}
        self._waiting: dict[RequestId, Request] = {}
        self._followers = Followers()
        self._running: dict[RequestId, Request] = {}
        """Requests with a lease, in the order of admission; LEAVING ones included."""
        self._step = 1
        self._plan: Plan | None = None
        self._sent: deque[Sent] = deque()
        self._done = 0
        self._batches_out = 0
        self._worker_ready = True
        self._suspects: set[RequestId] = set()
        """Requests of a lost step that have got no token since."""
        self._blocked = False
        """Whether a receipt was short of pages, and nothing has changed since its transaction."""
        self._stirred = False
        """Whether something has changed since the last transaction."""
        # For the next transaction, and for the next step.
        self._commits: list[Commit] = []
        self._releases: list[Release] = []
        self._remaps: list[Remap] = []
        self._ended_seats: list[RequestId] = []
        self._deliveries: list[Delivery] = []

    def handle(self, events: Sequence[SchedulerEvent], now: float) -> list[SchedulerCommand]:
        """Absorb *events* in order and return what to do about them."""
        commands: list[SchedulerCommand] = []
        for event in events:
            match event:
                case Submit():
                    commands.append(self._submit(event))
                case Watched():
                    self._watched(event)
                case CacheReceipt():
                    commands += self._conclude(event)
                case StepDone():
                    self._step_done(event)
                case Abort():
                    self._abort(event)
                case Acknowledge():
                    self._batches_out -= 1
                case WorkerLost():
                    commands += self._worker_lost()
                case WorkerReady():
                    self._worker_ready = True
                case _:
                    assert_never(event)
        if self._deliveries:
            commands.append(TokenBatch(tuple(self._deliveries)))
            self._deliveries = []
            self._batches_out += 1
        transaction = self._open_plan()
        if transaction is not None:
            commands.append(transaction)
        return commands

    def statistics(self) -> SchedulerStatistics:
        """Count the requests by state; ARRIVING ones wait, LEAVING ones run."""
        held = len(self._followers)
        running = len(self._running)
        return SchedulerStatistics(
            waiting=len(self._requests) - held - running,
            held=held,
            running=running,
            steps_in_flight=len(self._sent),
        )

    def check(self) -> None:
        """Raise `AssertionError` unless every invariant holds."""
        assert len(self._sent) <= STEPS_OUT_MAX
        assert len(self._running) <= self._max_running
        rows: dict[RequestId, int] = {}
        planned = [self._plan.rows] if self._plan else []
        for row in (row for part in (*planned, *(s.rows for s in self._sent)) for row in part):
            rows[row.request.id] = rows.get(row.request.id, 0) + 1
        for request in self._requests.values():
            assert request.rows_out == rows.get(request.id, 0)
            assert request.computed <= request.scheduled or request.phase is Phase.ARRIVING
            assert (request.id in self._waiting) == (request.phase is Phase.WAITING)
        assert self._suspects == {r.id for r in self._requests.values() if r.losses}
        for leader in self._followers.leaders():
            assert leader in self._running, "held on a request that is gone"
            assert all(f.phase is Phase.HELD for f in self._followers.of(leader))

    # Arrivals and departures.

    def _submit(self, event: Submit) -> Watch:
        assert event.request not in self._requests
        self._requests[event.request] = Request(event)
        return Watch(event.request, event.tokens, event.max_tokens)

    def _watched(self, event: Watched) -> None:
        request = self._requests.get(event.request)
        if request is None or request.phase is not Phase.ARRIVING:
            return
        if request.finish is not None:
            self._leave(request)
            return
        request.matched = event.matched
        request.phase = Phase.WAITING
        self._waiting[request.id] = request
        self._stir()

    def _abort(self, event: Abort) -> None:
        request = self._requests.get(event.request)
        if request is None or request.finish is not None:
            return
        self._finish(request, event.reason)
        # A candidate may be admitted by the receipt that is under way.
        candidate = self._plan is not None and request.id in self._plan.candidates
        under_way = request.phase is Phase.ARRIVING or candidate
        if request.rows_out == 0 and not under_way:
            self._leave(request)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """End *request* for its client; its lease and pages stay until its last row is done."""
        request.finish = reason
        if request.phase is Phase.RUNNING:
            request.phase = Phase.LEAVING
        self._deliver(request, ())

    def _leave(self, request: Request) -> None:
        """Forget *request*: nothing about it is under way."""
        assert request.rows_out == 0
        assert request.finish is not None
        if request.phase is Phase.HELD:
            self._followers.forget(request)
        self._waiting.pop(request.id, None)
        self._suspects.discard(request.id)
        del self._requests[request.id]
        if self._running.pop(request.id, None) is not None:
            self._ended_seats.append(request.id)
        self._releases.append(Release(request.id, request.last_step))
        for follower in self._followers.of(request.id):
            self._offer(follower)
        self._stir()

    def _deliver(self, request: Request, tokens: tuple[int, ...]) -> None:
        first = not request.usage_told and bool(tokens)
        request.usage_told = request.usage_told or first
        usage = request.usage() if first or request.finish is not None else None
        self._deliveries.append(Delivery(request.id, tokens, request.finish, usage))

    def _offer(self, follower: Request) -> None:
        """Make a held request a candidate again."""
        self._followers.forget(follower)
        follower.phase = Phase.WAITING
        self._waiting[follower.id] = follower

    def _stir(self) -> None:
        """Note that pages may have become free, or a request have come that needs fewer."""
        self._blocked = False
        self._stirred = True

    # Planning.

    def _open_plan(self) -> CacheTransaction | None:
        if (
            self._plan is not None
            or not self._worker_ready
            or len(self._sent) >= STEPS_OUT_MAX
            or self._batches_out >= BATCHES_OUT_MAX
        ):
            return None
        seats = self._max_running - len(self._running)
        suspect = self._next_suspect() if seats else None
        if suspect is None:
            rows, budget = self._running_rows()
            candidates = self._candidates(seats) if budget and seats else ()
        else:
            rows, budget = [], self._max_step_tokens
            candidates = (suspect.id,)
        if not (rows or candidates or self._commits or self._releases):
            return None
        transaction = CacheTransaction(
            step=self._step,
            done=self._done,
            commits=tuple(self._commits),
            releases=tuple(self._releases),
            progress=tuple(Progress(r.request.id, r.end) for r in rows if not r.decodes),
            candidates=candidates,
            step_tokens=budget,
            seats=seats,
        )
        self._commits, self._releases = [], []
        self._plan = Plan(self._step, rows, candidates)
        self._stirred = False
        return transaction

    def _running_rows(self) -> tuple[list[PlannedRow], int]:
        """Give each running request its row, and return what is left of the step's tokens."""
        budget = self._max_step_tokens
        on_trial = self._on_trial()
        running = on_trial or list(self._running.values())
        decodes: list[PlannedRow] = []
        for request in running:
            if not request.prefilling and request.decodable:
                decodes.append(self._row(request, 1))
        budget -= len(decodes)
        prefills: list[PlannedRow] = []
        for request in running:
            if budget and request.prefilling and request.finish is None:
                chunk = min(budget, request.prompt_length - request.scheduled)
                prefills.append(self._row(request, chunk))
                budget -= chunk
        self._offer_followers()
        return decodes + prefills, 0 if on_trial else budget

    def _offer_followers(self) -> None:
        """Make candidates of those whose leader gets far enough with this plan."""
        for leader_id in self._followers.leaders():
            leader = self._running[leader_id]
            reached = leader.scheduled if self._sharing == "same-step" else leader.computed
            for follower in self._followers.of(leader_id):
                if follower.until <= reached:
                    self._offer(follower)

    def _row(self, request: Request, tokens: int) -> PlannedRow:
        row = PlannedRow(request, request.scheduled, request.scheduled + tokens)
        request.scheduled = row.end
        request.rows_out += 1
        if row.samples:
            request.samples_planned += 1
        return row

    def _on_trial(self) -> list[Request]:
        """Return the suspect that runs, if one does."""
        running = [self._running[suspect] for suspect in self._suspects & self._running.keys()]
        return [request for request in running if request.finish is None]

    def _next_suspect(self) -> Request | None:
        """Return who is to be tried next: nobody while another one is, or while pages are short."""
        if self._blocked or self._on_trial():
            return None
        waiting = [self._waiting[suspect] for suspect in self._suspects & self._waiting.keys()]
        return min(waiting, key=self._policy.key, default=None)

    def _candidates(self, seats: int) -> tuple[RequestId, ...]:
        if self._blocked:
            return ()
        first = heapq.nsmallest(seats, self._waiting.values(), key=self._policy.key)
        return tuple(request.id for request in first)

    # The receipt.

    def _conclude(self, receipt: CacheReceipt) -> list[SchedulerCommand]:
        plan = self._plan
        if plan is None or plan.step != receipt.step:
            return []  # The answer to a transaction that died with a worker.
        self._plan = None
        rows = self._skip_what_others_computed(plan.rows, receipt)
        begin: list[Seat] = []
        for outcome in receipt.outcomes:
            match outcome:
                case Admitted():
                    rows.append(self._admit(outcome, begin))
                case Held():
                    follower = self._waiting.pop(outcome.request)
                    follower.phase = Phase.HELD
                    self._followers.hold(follower, outcome.leader, outcome.until)
                case Short(_, of):
                    self._blocked = of == "pages" and not self._stirred
                case _:
                    assert_never(outcome)
        for changed in receipt.matches:
            if changed.request in self._requests:
                self._requests[changed.request].matched = changed.matched
        self._remaps += receipt.remaps
        for candidate in plan.candidates:
            request = self._requests[candidate]
            if request.finish is not None and request.phase in (Phase.WAITING, Phase.HELD):
                self._leave(request)
        for leader in self._followers.leaders():
            if leader not in self._running:  # It left while the receipt was under way.
                for follower in self._followers.of(leader):
                    self._offer(follower)
        return self._send(rows, begin)

    def _skip_what_others_computed(
        self, rows: list[PlannedRow], receipt: CacheReceipt
    ) -> list[PlannedRow]:
        """Move requests on past their own pages that someone else has made ready."""
        reached = {advanced.request: advanced.position for advanced in receipt.advanced}
        kept: list[PlannedRow] = []
        for row in rows:
            position = 0 if row.decodes else reached.pop(row.request.id, 0)
            start = row.request.skip_to(position, row.start)
            if start < row.end:
                kept.append(PlannedRow(row.request, start, row.end))
            else:
                self._drop(row)
        for request_id, position in reached.items():
            # One that left while the receipt was under way needs nothing any more.
            request = self._running.get(request_id)
            if request is not None:
                request.skip_to(position, request.scheduled)
        return kept

    def _admit(self, admitted: Admitted, begin: list[Seat]) -> PlannedRow:
        request = self._waiting.pop(admitted.request)
        self._running[request.id] = request
        # A request that was aborted meanwhile computes its chunk all the same: another one of
        # this step may count on it.
        request.phase = Phase.RUNNING if request.finish is None else Phase.LEAVING
        request.scheduled = request.computed = admitted.from_tree + admitted.in_flight
        if not request.usage_told:
            request.from_tree, request.in_flight = admitted.from_tree, admitted.in_flight
        request.write = admitted.write
        begin.append(Seat(request.id, admitted.table, request.sampling, request.stop_ids))
        return self._row(request, admitted.scheduled - request.scheduled)

    def _send(self, rows: list[PlannedRow], begin: list[Seat]) -> list[SchedulerCommand]:
        kept: list[PlannedRow] = []
        for row in rows:
            if row.decodes and row.request.finish is not None:
                self._drop(row)
            else:
                kept.append(row)
        if not kept:
            return []
        remaps = tuple(r for r in self._remaps if r.request in self._running)
        step = Step(
            number=self._step,
            end=tuple(self._ended_seats),
            begin=tuple(begin),
            remaps=remaps,
            rows=tuple(row.message() for row in kept),
        )
        for row in kept:
            row.request.last_step = self._step
        self._remaps, self._ended_seats = [], []
        self._sent.append(Sent(self._step, kept))
        self._step += 1
        return [step]

    def _drop(self, row: PlannedRow) -> None:
        row.request.rows_out -= 1
        if row.request.rows_out == 0 and row.request.finish is not None:
            self._leave(row.request)

    # Results.

    def _step_done(self, event: StepDone) -> None:
        if event.number <= self._done:
            return  # A step of a worker that was given up.
        sent = self._sent.popleft()
        assert sent.step == event.number, "steps end in the order in which they were sent"
        self._done = event.number
        self._stir()
        sampled = dict(zip(event.requests, event.tokens, strict=True))
        for row in sent.rows:
            request = row.request
            request.rows_out -= 1
            token = sampled.get(request.id) if row.samples else None
            if token is not None or not row.samples:
                request.computed = max(request.computed, min(row.end, request.known))
            if token is not None and request.finish is None:
                self._sampled(request, token)
            self._commit(request)
            if request.finish is not None and request.rows_out == 0:
                self._leave(request)

    def _sampled(self, request: Request, token: int) -> None:
        request.answer.append(token)
        request.losses = 0
        self._suspects.discard(request.id)
        if token in request.stop_ids:
            request.finish = "stop"
        elif len(request.answer) == request.max_tokens:
            request.finish = "length"
        if request.finish is not None:
            request.phase = Phase.LEAVING
        self._deliver(request, (token,))

    def _commit(self, request: Request) -> None:
        """Tell the cache owner of computed tokens, once they make another page whole."""
        if request.computed // self._page_size == request.committed // self._page_size:
            return
        request.committed = request.computed
        fed_back = max(0, request.computed - request.prompt_length)
        appended = pack(request.answer[request.told : fed_back])
        request.told = max(request.told, fed_back)
        self._commits.append(Commit(request.id, request.computed, appended))

    # The worker's death.

    def _worker_lost(self) -> list[SchedulerCommand]:
        """Put every request back to its start, with what it delivered as part of its prompt."""
        # Steps are computed one after the other, so it died with the oldest that is out.
        lost = {row.request.id for sent in list(self._sent)[:1] for row in sent.rows}
        self._worker_ready = False
        self._plan = None
        self._sent.clear()
        # A receipt that is still under way must not be taken for the next plan's.
        self._step += 1
        self._done = self._step - 1
        self._commits, self._releases, self._remaps, self._ended_seats = [], [], [], []
        self._waiting.clear()
        self._running.clear()
        self._followers.clear()
        self._blocked = False
        commands: list[SchedulerCommand] = [NewGeneration()]
        for request in list(self._requests.values()):
            if request.id in lost:
                request.losses += 1
                self._suspects.add(request.id)
            if request.losses >= LOSSES_MAX and request.finish is None:
                self._finish(request, "error")
            if request.finish is not None:
                self._suspects.discard(request.id)
                del self._requests[request.id]
                continue
            request.resume_elsewhere()
            commands.append(Watch(request.id, request.prompt, request.max_tokens))
        return commands
