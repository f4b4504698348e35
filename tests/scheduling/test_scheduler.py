"""`radixd.scheduling.scheduler`: plans, overlap, endings, and a lost worker."""

import pytest

from harness.machines import GREEDY, Machines, answer_alone
from radixd.cache.messages import (
    CacheReceipt,
    CacheTransaction,
    RequestId,
    Short,
    Watch,
    Watched,
)
from radixd.cache.tokens import pack, unpack
from radixd.scheduling.messages import (
    Abort,
    Acknowledge,
    SchedulerCommand,
    Step,
    StepDone,
    Submit,
    TokenBatch,
)
from radixd.scheduling.policies import ordering_policy
from radixd.scheduling.scheduler import Scheduler

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


# A lost worker.


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


def test_a_request_that_was_in_two_lost_steps_fails_alone() -> None:
    """It is the likely cause; the others go on."""
    machines = Machines(max_running=1, max_step_tokens=64)
    poison = machines.submit([6, 6, 6], 5)
    other = machines.submit([7, 7, 7], 5)
    machines.lose_worker()
    machines.lose_worker()
    machines.run()
    assert machines.finished == {poison: "error", other: "length"}
    assert machines.answers[other] == answer_alone([7, 7, 7], 5)


def test_an_answer_of_the_lost_worker_is_ignored() -> None:
    """A result that was under way when it died changes nothing."""
    machines = Machines()
    request = machines.submit([1, 2, 3], 4)
    machines.lose_worker()
    machines.tell(StepDone(1, (request,), (999,), 0.0))
    machines.run()
    assert machines.answers[request] == answer_alone([1, 2, 3], 4)
