"""`radixd.scheduling.scheduler`: plans, overlap, endings, and a lost worker."""

from collections.abc import Callable

import pytest

from harness.machines import GREEDY, Machines, answer_alone
from radixd.cache.messages import (
    Admitted,
    CacheReceipt,
    CacheTransaction,
    Held,
    NewGeneration,
    Release,
    RequestId,
    Short,
    Watch,
    Watched,
)
from radixd.cache.tokens import pack, unpack
from radixd.scheduling.messages import (
    Abort,
    Acknowledge,
    Delivery,
    SchedulerCommand,
    Step,
    StepDone,
    Submit,
    TokenBatch,
    Usage,
    WorkerLost,
    WorkerReady,
)
from radixd.scheduling.policies import ordering_policy
from radixd.scheduling.scheduler import Scheduler
from radixd.settings import SharingMode

A, B = RequestId(1), RequestId(2)


def scheduler(**changes: object) -> Scheduler:
    """Return a scheduler alone, to be fed by hand."""
    fields: dict[str, object] = {
        "policy": ordering_policy("fcfs"),
        "sharing": "same-step",
        "page_size": 4,
        "max_running": 4,
        "max_step_tokens": 32,
    }
    return Scheduler(**(fields | changes))  # type: ignore[arg-type]


def transactions(commands: list[SchedulerCommand]) -> list[CacheTransaction]:
    """Return the transactions among *commands*."""
    return [command for command in commands if isinstance(command, CacheTransaction)]


def rows(step: Step) -> list[tuple[int, int, int, bool]]:
    """Return request, start, prompt tokens (0: a decode) and whether it samples, for each row."""
    return [(row.request, row.start, len(unpack(row.tokens)), row.sample) for row in step.rows]


# Plans.


def test_one_plan_is_open_at_a_time() -> None:
    """What happens meanwhile goes into the next one."""
    machine = scheduler()
    commands = machine.handle([Submit(A, pack([1]), 1, GREEDY, ())], 0.0)
    assert commands == [Watch(A, pack([1]), 1)]
    (first,) = transactions(machine.handle([Watched(A, 0)], 0.0))
    assert first.candidates == (A,)
    machine.handle([Submit(B, pack([2]), 1, GREEDY, ())], 0.0)
    assert transactions(machine.handle([Watched(B, 0)], 0.0)) == []
    (second,) = transactions(machine.handle([CacheReceipt(1)], 0.0))
    assert second.candidates == (A, B)


def test_at_most_two_steps_are_out_and_the_second_is_sent_while_the_first_computes() -> None:
    """The worker always has the next one."""
    machines = Machines()
    machines.submit([1, 2, 3], 10)
    assert [step.number for step in machines.steps] == [1, 2]
    machines.work()
    assert [step.number for step in machines.steps] == [2, 3]


def test_decodes_come_first_and_prefill_gets_the_rest_of_the_budget() -> None:
    """A long prompt is cut, and running streams keep their row in each step."""
    machines = Machines(max_step_tokens=10, max_running=4)
    machines.submit([1, 2, 3], 10)
    machines.work()
    machines.submit(list(range(100, 125)), 2)
    for _ in range(4):
        machines.work()
    long = [rows(step) for step in machines.history if any(r[0] == 2 for r in rows(step))]
    assert [r[1:] for step in long[:3] for r in step if r[0] == 2] == [
        (0, 9, False),
        (9, 9, False),
        (18, 7, True),
    ]
    assert all(step[0][0] == 1 and step[0][2] == 0 for step in long[:3])


def test_nothing_is_planned_while_two_batches_are_unacknowledged() -> None:
    """A tokenizer that lags slows the engine down instead of filling its mailbox."""
    machine = scheduler()
    machine.handle([Submit(RequestId(n), pack([n]), 1, GREEDY, ()) for n in range(1, 4)], 0.0)
    for number in (1, 2):
        (batch,) = [
            c
            for c in machine.handle([Abort(RequestId(number), "abort")], 0.0)
            if isinstance(c, TokenBatch)
        ]
        assert [d.request for d in batch.deliveries] == [number]
    watched = [Watched(RequestId(n), 0) for n in range(1, 4)]
    assert transactions(machine.handle(watched, 0.0)) == []
    (transaction,) = transactions(machine.handle([Acknowledge()], 0.0))
    assert transaction.candidates == (3,)


def test_a_scheduler_that_is_short_of_pages_waits_for_a_change() -> None:
    """It does not ask the owner again and again."""
    machines = Machines(kv_pages=5, page_size=4, max_step_tokens=64)
    machines.submit(list(range(10)), 6)
    machines.submit(list(range(50, 60)), 6)
    asked = len(machines.receipts)
    machines.tell()
    machines.tell()
    assert len(machines.receipts) == asked
    machines.run()
    assert machines.answers[B] == answer_alone(list(range(50, 60)), 6)


def test_a_verdict_that_is_older_than_a_change_blocks_nobody() -> None:
    """Short of pages, says the owner, while the request that had them is already leaving."""
    machines = Machines(kv_pages=3, page_size=1, owner_lags=True)
    machines.submit([5], 2)
    while len(machines.steps) < 2:
        assert machines.hear_owner() or machines.serve_owner()
    machines.work()
    second = machines.submit([6], 2)
    while Short(second, "pages") not in machines.receipts[-1].outcomes:
        assert machines.hear_owner() or machines.serve_owner()
    machines.work()
    machines.run()
    assert machines.finished[second] == "length"


@pytest.mark.parametrize(("policy", "order"), [("fcfs", [2, 3]), ("lpm", [3, 2])])
def test_the_order_decides_who_gets_the_only_seat(policy: str, order: list[int]) -> None:
    """By arrival, or by how much of the prompt is in the tree."""
    machines = Machines(policy=policy, max_running=1, page_size=1)  # type: ignore[arg-type]
    machines.submit([1, 2, 3, 4], 2)
    machines.submit([9, 9, 9], 1)
    machines.submit([1, 2, 3, 5], 1)
    machines.run()
    assert list(machines.finished) == [1, *order]


# Endings.


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_an_answer_has_exactly_its_number_of_tokens(max_tokens: int) -> None:
    """No row is planned beyond it."""
    machines = Machines()
    request = machines.submit([1, 2, 3], max_tokens)
    machines.run()
    assert len(machines.answers[request]) == max_tokens
    assert machines.finished[request] == "length"
    assert len(machines.history) == max_tokens


def test_a_stop_id_ends_the_answer_although_a_row_of_it_is_out() -> None:
    """The worker skips that row, and it is delivered to nobody."""
    whole = answer_alone([1, 2, 3], 10)
    stop = whole[4]
    machines = Machines()
    request = machines.submit([1, 2, 3], 10, stop_ids=(stop,))
    machines.run()
    assert machines.answers[request] == whole[: whole.index(stop) + 1]
    assert machines.finished[request] == "stop"
    assert len(machines.cache.leases) == 0


def test_an_abort_is_answered_once_in_every_phase() -> None:
    """Waiting, held, running and leaving; what nobody knows is ignored."""
    machines = Machines(max_running=2, page_size=4, sharing="next-step")
    prompts = [list(range(30)), [*range(28), 99, 98], *([n, n, n] for n in range(200, 204))]
    running, held, *waiting = machines.submit_all(prompts, 5)
    statistics = machines.scheduler.statistics()
    assert (statistics.held, statistics.running, statistics.waiting) == (1, 1, 4)
    for request in (held, running, waiting[3], running, RequestId(77)):
        machines.abort(request)
    assert machines.finished == dict.fromkeys((held, running, waiting[3]), "abort")
    machines.run()
    assert all(machines.finished[request] == "length" for request in waiting[:3])
    assert len(machines.cache.leases) == 0


def test_an_abort_can_come_before_the_prompt_is_watched() -> None:
    """It leaves as soon as the owner has answered."""
    machine = scheduler()
    machine.handle([Submit(A, pack([1]), 1, GREEDY, ())], 0.0)
    (batch,) = machine.handle([Abort(A, "abort")], 0.0)
    assert isinstance(batch, TokenBatch)
    (transaction,) = transactions(machine.handle([Watched(A, 0)], 0.0))
    assert [release.request for release in transaction.releases] == [A]
    assert machine.statistics().waiting == 0


def test_an_abort_can_come_while_the_admission_is_under_way() -> None:
    """Its chunk is computed all the same, since others may count on it, and then it leaves."""
    machines = Machines(page_size=4)
    plan = machines.scheduler.handle([Submit(A, pack(list(range(9))), 5, GREEDY, ())], 0.0)
    (watched,) = machines.owner.handle([c for c in plan if isinstance(c, Watch)], 0.0)
    assert isinstance(watched, Watched)
    (transaction,) = transactions(machines.scheduler.handle([watched], 0.0))
    (batch,) = machines.scheduler.handle([Abort(A, "abort")], 0.0)
    assert isinstance(batch, TokenBatch)
    (receipt,) = machines.owner.handle([transaction], 0.0)
    assert isinstance(receipt, CacheReceipt)
    (step,) = machines.scheduler.handle([receipt, Acknowledge()], 0.0)
    assert isinstance(step, Step)
    after = machines.scheduler.handle([StepDone(1, (A,), (5,), 0.0)], 0.0)
    (transaction,) = transactions(after)
    assert [release.request for release in transaction.releases] == [A]
    machines.owner.handle([transaction], 0.0)
    assert len(machines.cache.leases) == 0
    assert machines.cache.tree_pages == 2, "what was computed is kept"


@pytest.mark.parametrize("verdict", [(Held(B, A, 4),), (Short(B, "pages"),), ()])
def test_a_candidate_that_is_aborted_while_the_owner_answers_leaves_with_the_answer(
    verdict: tuple[Held | Short, ...],
) -> None:
    """Held, short or not even tried: it is not offered again, and waits for nobody."""
    machine = scheduler()
    machine.handle([Submit(n, pack([1, 2, 3, 4, n]), 1, GREEDY, ()) for n in (A, B)], 0.0)
    machine.handle([Watched(A, 0), Watched(B, 0)], 0.0)
    machine.handle([Abort(B, "abort")], 0.0)
    leader = Admitted(A, pack([1, 2]), 0, 0, 5, True)
    commands = machine.handle([CacheReceipt(1, (leader, *verdict)), Acknowledge()], 0.0)
    (transaction,) = transactions(commands)
    assert transaction.releases == (Release(B, 0),)
    statistics = machine.statistics()
    assert (statistics.waiting, statistics.held, statistics.running) == (0, 0, 1)


def scene(sharing: SharingMode) -> tuple[Machines, list[RequestId]]:
    """Return machines whose owner lags, and an answer that overtakes a prompt and its follower.

    The first request answers what the second one's prompt goes on with, at the same pace; the
    third one follows the second, and the fourth waits for a seat.
    """
    answer = answer_alone([1, 2, 3], 20)
    machines = Machines(
        page_size=4,
        kv_pages=64,
        max_running=3,
        max_step_tokens=4,
        sharing=sharing,
        owner_lags=True,
    )
    first = machines.submit([1, 2, 3], 20)
    for _ in range(17):
        owner_first(machines)
    rest = machines.submit_all([[1, 2, 3, *answer[:14], n] for n in (7, 8, 9)], 3)
    return machines, [first, *rest]


def owner_first(machines: Machines) -> bool:
    """Let the next thing happen, the worker last; False if there is none."""
    return machines.hear_owner() or machines.serve_owner() or machines.work()


def worker_first(machines: Machines) -> bool:
    """Let the worker finish whatever it has before the owner is heard."""
    return machines.work() or machines.hear_owner() or machines.serve_owner()


def moments(sharing: SharingMode) -> int:
    """Return in how many moments of the scene something may go wrong."""
    machines, _ = scene(sharing)
    count = 0
    while owner_first(machines):
        count += 1
    return count


Turn = Callable[[Machines], bool]


@pytest.mark.parametrize("then", [owner_first, worker_first])
@pytest.mark.parametrize("sharing", ["same-step", "next-step", "off"])
@pytest.mark.parametrize("who", range(4))
def test_an_abort_at_any_moment_leaves_nothing_behind(
    who: int, sharing: SharingMode, then: Turn
) -> None:
    """Not a lease, nor a row, nor a follower; the others get what they asked for."""
    whole = [answer_alone(scene(sharing)[0].prompts[RequestId(n)], 20) for n in range(1, 5)]
    for moment in range(moments(sharing)):
        machines, requests = scene(sharing)
        for _ in range(moment):
            owner_first(machines)
        machines.abort(requests[who])
        while then(machines):
            pass
        assert set(machines.finished) == set(requests)
        statistics = machines.scheduler.statistics()
        assert (statistics.waiting, statistics.held, statistics.running) == (0, 0, 0)
        assert len(machines.cache.leases) == 0
        for request, answer in zip(requests, whole, strict=True):
            given = machines.answers[request]
            assert given == answer[: len(given)]
            if machines.finished[request] == "length":
                assert len(given) == (20 if request == A else 3)


def test_a_request_leaves_though_the_row_that_was_planned_for_it_is_not_needed() -> None:
    """It is aborted while the owner answers that another one has computed all of that row."""
    machines = Machines(page_size=4, kv_pages=64, max_running=2, max_step_tokens=3, owner_lags=True)
    machines.submit([1, 2, 3], 20)
    for _ in range(17):
        owner_first(machines)
    request = machines.submit([1, 2, 3, *answer_alone([1, 2, 3], 20)[:16]], 3)
    while not machines.receipts[-1].advanced:
        owner_first(machines)
    machines.abort(request)
    while worker_first(machines):
        pass
    rows_sent = [row for step in machines.history for row in step.rows if row.request == request]
    assert len(rows_sent) == 1, "the second one was not needed"
    assert machines.scheduler.statistics().running == 0
    assert len(machines.cache.leases) == 0


def test_a_stop_string_ends_the_answer_and_what_is_out_is_dropped() -> None:
    """Tokens that were sampled after it are delivered to nobody, and the end is told once."""
    machines = Machines()
    request = machines.submit([1, 2, 3], 10)
    machines.work()
    machines.work()
    machines.tell(Abort(request, "stop"))
    delivered = list(machines.answers[request])
    machines.run()
    assert machines.answers[request] == delivered == answer_alone([1, 2, 3], 10)[:2]
    assert machines.finished[request] == "stop"
    assert len(machines.history) == 4, "the two steps that were out, and none after them"


def test_a_row_beyond_a_stop_id_is_billed_to_nobody() -> None:
    """Usage is told with the first token and at the end, and the skipped row is in neither."""
    machine = scheduler()
    machine.handle([Submit(A, pack([1, 2, 3]), 10, GREEDY, (6,))], 0.0)
    machine.handle([Watched(A, 0)], 0.0)
    admitted = Admitted(A, pack([1, 2, 3]), 0, 0, 3, True)
    machine.handle([CacheReceipt(1, (admitted,))], 0.0)
    machine.handle([CacheReceipt(2)], 0.0)
    told: list[Delivery] = []
    for number, token in ((1, 5), (2, 6)):
        commands = machine.handle([StepDone(number, (A,), (token,), 0.0)], 0.0)
        told += [d for c in commands if isinstance(c, TokenBatch) for d in c.deliveries]
        commands = machine.handle([CacheReceipt(number + 2), Acknowledge()], 0.0)
    assert machine.statistics().steps_in_flight == 1, "a row beyond the end is out"
    commands += machine.handle([StepDone(3, (), (), 0.0)], 0.0)
    assert not [command for command in commands if isinstance(command, TokenBatch)]
    usage = Usage(from_tree=0, in_flight=0, computed=3)
    assert told == [Delivery(A, (5,), None, usage), Delivery(A, (6,), "stop", usage)]
    assert [t.releases for t in transactions(commands)][-1] == (Release(A, 3),)


def test_a_seat_ends_with_the_next_step_and_only_once() -> None:
    """The worker forgets the request before its pages may be another one's."""
    machines = Machines(max_running=1)
    first, second = machines.submit_all([[1, 2], [3, 4]], 2)
    machines.run()
    ended = [(step.number, request) for step in machines.history for request in step.end]
    begun = [(step.number, seat.request) for step in machines.history for seat in step.begin]
    assert [request for _, request in begun] == [first, second]
    assert ended == [(begun[1][0], first)]


# A lost worker.


@pytest.mark.parametrize("then", [owner_first, worker_first])
@pytest.mark.parametrize("sharing", ["same-step", "next-step", "off"])
def test_a_worker_may_be_lost_at_any_moment(sharing: SharingMode, then: Turn) -> None:
    """Held, admitted, under way or ended: everyone gets each token once."""
    whole = [answer_alone(scene(sharing)[0].prompts[RequestId(n)], 20) for n in range(1, 5)]
    for moment in range(moments(sharing)):
        machines, requests = scene(sharing)
        for _ in range(moment):
            owner_first(machines)
        machines.lose_worker()
        while then(machines):
            pass
        assert machines.finished == dict.fromkeys(requests, "length")
        for request, answer in zip(requests, whole, strict=True):
            assert machines.answers[request] == answer[: 20 if request == A else 3]
            usage = machines.usage[request]
            assert usage.from_tree + usage.in_flight + usage.computed == len(
                machines.prompts[request]
            )
        assert len(machines.cache.leases) == 0


def test_nothing_is_planned_until_a_fresh_worker_is_ready() -> None:
    """Arrivals are watched meanwhile."""
    machine = scheduler()
    machine.handle([WorkerLost()], 0.0)
    commands = machine.handle([Submit(A, pack([1]), 1, GREEDY, ()), Watched(A, 0)], 0.0)
    assert commands == [Watch(A, pack([1]), 1)]
    (transaction,) = transactions(machine.handle([WorkerReady()], 0.0))
    assert transaction.candidates == (A,)


def test_the_answer_to_a_plan_that_died_with_a_worker_admits_nobody() -> None:
    """It comes after the loss, and the next plan has another number."""
    machine = scheduler()
    machine.handle([Submit(A, pack([1]), 1, GREEDY, ())], 0.0)
    (dead,) = transactions(machine.handle([Watched(A, 0)], 0.0))
    commands = machine.handle([WorkerLost(), WorkerReady()], 0.0)
    assert commands == [NewGeneration(), Watch(A, pack([1]), 1)]
    late = CacheReceipt(dead.step, (Admitted(A, pack([1]), 0, 0, 1, True),))
    assert machine.handle([late], 0.0) == []
    (plan,) = transactions(machine.handle([Watched(A, 0)], 0.0))
    assert machine.handle([late], 0.0) == []
    assert plan.step > dead.step
    assert plan.candidates == (A,)
    assert machine.statistics().running == 0


def test_who_had_ended_before_the_loss_is_not_started_again() -> None:
    """Its end was told, though a row of it was out."""
    machines = Machines()
    request = machines.submit([1, 2, 3], 9)
    machines.abort(request)
    assert machines.scheduler.statistics().running == 1
    machines.lose_worker()
    machines.run()
    assert machines.finished == {request: "abort"}
    assert machines.scheduler.statistics().running == 0


def test_every_request_goes_on_from_what_it_has_delivered() -> None:
    """No token twice, none missing, in whatever phase it was."""
    machines = Machines(max_step_tokens=16, max_running=2)
    prompts = [[n, n + 1, n + 2, *range(40)] for n in range(0, 50, 10)]
    requests = machines.submit_all(prompts, 12)
    for _ in range(6):
        machines.work()
    machines.lose_worker()
    machines.run()
    for request, prompt in zip(requests, prompts, strict=True):
        assert machines.answers[request] == answer_alone(prompt, 12)
        assert machines.usage[request].computed + machines.usage[request].in_flight >= 0
    assert machines.owner.statistics().generation == 1


@pytest.mark.parametrize("good_tokens", [0, 3])
def test_a_poisonous_request_fails_alone(good_tokens: int) -> None:
    """Each step that has a row of it past its good tokens kills the worker; nobody else suffers."""
    machines = Machines(max_running=8, max_step_tokens=64)
    prompts = [[n, n + 1, n + 2] for n in range(0, 60, 10)]
    requests = machines.submit_all(prompts, 8)
    poison = requests[2]
    losses = 0
    while machines.steps:
        step = machines.steps[0]
        deadly = [row for row in step.rows if row.request == poison]
        if deadly and deadly[0].start + len(deadly[0].tokens) // 4 >= 3 + good_tokens:
            losses += 1
            machines.lose_worker()
        else:
            machines.work()
    assert losses == 2
    for request, prompt in zip(requests, prompts, strict=True):
        expected = answer_alone(prompt, 8)
        if request == poison:
            assert machines.finished[request] == "error"
            assert machines.answers[request] == expected[: len(machines.answers[request])]
        else:
            assert machines.finished[request] == "length"
            assert machines.answers[request] == expected


def test_only_requests_of_the_step_that_was_being_computed_are_suspects() -> None:
    """Whoever was to join in the step behind it need not be tried alone."""
    machines = Machines()
    suspect = machines.submit([1, 2, 3], 9)
    other = machines.submit([4, 5, 6], 9)
    machines.work()
    assert [seat.request for seat in machines.steps[1].begin] == [other]
    before = len(machines.history)
    machines.lose_worker()
    machines.run()
    steps = [{row.request for row in step.rows} for step in machines.history[before:]]
    assert steps[0] == {suspect}
    assert {other} not in steps[:3]
    assert machines.finished == dict.fromkeys((suspect, other), "length")


def test_everyone_else_is_paused_while_a_suspect_is_tried() -> None:
    """One that was running already goes on once the suspect has got a token."""
    machine = scheduler()
    machine.handle([Submit(n, pack([1, 2, 3]), 9, GREEDY, ()) for n in (A, B)], 0.0)
    machine.handle([Watched(B, 0)], 0.0)
    admitted = [Admitted(request, pack([1, 2, 3]), 0, 0, 3, True) for request in (A, B)]
    machine.handle([CacheReceipt(1, (admitted[1],))], 0.0)
    machine.handle([WorkerLost(), WorkerReady()], 0.0)
    # The one that is no suspect is known to the owner first, and computes meanwhile.
    (plan,) = transactions(machine.handle([Watched(A, 0)], 0.0))
    machine.handle([CacheReceipt(plan.step, (admitted[0],)), Watched(B, 0)], 0.0)
    done = plan.step
    seen = []
    for request, token in ((A, 7), (B, 8), (B, 9)):
        trial = done + 1
        verdict = (admitted[1],) if trial == plan.step + 1 else ()
        commands = machine.handle([CacheReceipt(trial, verdict)], 0.0)
        seen += [{row.request for row in c.rows} for c in commands if isinstance(c, Step)]
        machine.handle([StepDone(done, (request,), (token,), 0.0), Acknowledge()], 0.0)
        done += 1
    assert seen == [{B}, {B}, {A, B}]


def test_losses_far_apart_blame_nobody() -> None:
    """A stream that got further in between was not the cause."""
    machines = Machines()
    request = machines.submit([6, 6, 6], 30)
    for _ in range(5):
        for _ in range(4):
            machines.work()
        machines.lose_worker()
    machines.run()
    assert machines.finished[request] == "length"
    assert machines.answers[request] == answer_alone([6, 6, 6], 30)


def test_an_answer_of_the_lost_worker_is_ignored() -> None:
    """A result that was under way when it died changes nothing."""
    machines = Machines()
    request = machines.submit([1, 2, 3], 4)
    machines.lose_worker()
    machines.tell(StepDone(1, (request,), (999,), 0.0))
    machines.run()
    assert machines.answers[request] == answer_alone([1, 2, 3], 4)
