"""Scheduler, cache owner and simulated model joined by function calls: no loop, no time.

Every operation is audited.  The worker lags: steps queue until `Machines.work` runs one, so a test
chooses how far planning overlaps with computing.  The owner may lag too: with ``owner_lags`` what
it is told queues until `Machines.serve_owner`, and its answers until `Machines.hear_owner`.
"""

from collections import deque
from functools import cache

from harness.memory import WatchedMemory
from radixd.cache.audit import audit
from radixd.cache.messages import (
    CacheCommand,
    CacheEvent,
    CacheReceipt,
    CacheTransaction,
    NewGeneration,
    RequestId,
    Watch,
)
from radixd.cache.owner import CacheOwner
from radixd.cache.prefix_cache import PrefixCache
from radixd.cache.tokens import pack
from radixd.scheduling.messages import (
    Abort,
    Acknowledge,
    FinishReason,
    SamplingParams,
    SchedulerCommand,
    SchedulerEvent,
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
from radixd.settings import PolicyName, SharingMode
from radixd.workers.simulated import SimulatedModel

VOCABULARY = 1000
GREEDY = SamplingParams(temperature=0.0)


def model(kv_pages: int, page_size: int) -> SimulatedModel:
    """Return an empty simulated memory whose answers never end by themselves."""
    return SimulatedModel(
        kv_pages=kv_pages, page_size=page_size, vocabulary=VOCABULARY, eos_id=None
    )


def answer_alone(
    prompt: list[int], max_tokens: int, sampling: SamplingParams = GREEDY
) -> list[int]:
    """Return what a request gets that shares nothing with anyone."""
    return list(_answer_alone(tuple(prompt), max_tokens, sampling))


@cache
def _answer_alone(
    prompt: tuple[int, ...], max_tokens: int, sampling: SamplingParams
) -> tuple[int, ...]:
    machines = Machines(kv_pages=2 + (len(prompt) + max_tokens) // 16, disable_cache=True)
    request = machines.submit(list(prompt), max_tokens, sampling)
    machines.run()
    return tuple(machines.answers[request])


class Machines:
    """The whole engine without tasks."""

    def __init__(
        self,
        *,
        kv_pages: int = 256,
        page_size: int = 16,
        policy: PolicyName = "fcfs",
        sharing: SharingMode = "same-step",
        max_running: int = 8,
        max_step_tokens: int = 64,
        disable_cache: bool = False,
        owner_lags: bool = False,
    ) -> None:
        order = ordering_policy(policy)
        self.cache = PrefixCache(
            capacity_pages=kv_pages, page_size=page_size, enabled=not disable_cache
        )
        self.owner = CacheOwner(self.cache, sharing=sharing, report_matches=order.reads_matches)
        self.scheduler = Scheduler(
            policy=order,
            sharing=sharing,
            page_size=page_size,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
        )
        self._owner_lags = owner_lags
        self._to_owner: deque[CacheEvent] = deque()
        self._from_owner: deque[CacheCommand] = deque()
        self._memory = (kv_pages, page_size)
        self.model = model(kv_pages, page_size)
        self._watched = WatchedMemory(page_size)
        self._sequences: dict[RequestId, list[int]] = {}
        self.steps: deque[Step] = deque()
        self.history: list[Step] = []
        self.receipts: list[CacheReceipt] = []
        self.prompts: dict[RequestId, list[int]] = {}
        self.answers: dict[RequestId, list[int]] = {}
        self.finished: dict[RequestId, FinishReason] = {}
        self.usage: dict[RequestId, Usage] = {}
        self._next = 1

    def submit(
        self,
        prompt: list[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        stop_ids: tuple[int, ...] = (),
    ) -> RequestId:
        """Let one request arrive."""
        return self.submit_all([prompt], max_tokens, sampling, stop_ids)[0]

    def submit_all(
        self,
        prompts: list[list[int]],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        stop_ids: tuple[int, ...] = (),
    ) -> list[RequestId]:
        """Let requests arrive in one batch."""
        events: list[SchedulerEvent] = []
        requests = []
        for prompt in prompts:
            request = RequestId(self._next)
            self._next += 1
            requests.append(request)
            self.prompts[request] = prompt
            self.answers[request] = []
            self._sequences[request] = list(prompt)
            events.append(Submit(request, pack(prompt), max_tokens, sampling, stop_ids))
        self.tell(*events)
        return requests

    def abort(self, request: RequestId) -> None:
        """Let a client leave."""
        self.tell(Abort(request, "abort"))

    def work(self) -> bool:
        """Compute the oldest step; False if there is none."""
        if not self.steps:
            return False
        step = self.steps.popleft()
        requests, tokens = self.model.compute(step)
        self._watched.apply(step, requests, self._sequences)
        for request, token in zip(requests, tokens, strict=True):
            self._sequences[request].append(token)
        self.tell(StepDone(step.number, requests, tokens, 0.0))
        return True

    def serve_owner(self) -> bool:
        """Let an owner that lags take its oldest message; False if there is none."""
        if not self._to_owner:
            return False
        self._from_owner += self._ask_owner(self._to_owner.popleft())
        return True

    def hear_owner(self) -> bool:
        """Pass on the oldest answer of an owner that lags; False if there is none."""
        if not self._from_owner:
            return False
        self.tell(self._from_owner.popleft())
        return True

    def run(self, steps_max: int = 100_000) -> None:
        """Compute until nothing is left to do."""
        for _ in range(steps_max):
            if not (self.hear_owner() or self.serve_owner() or self.work()):
                return
        raise AssertionError(f"still working after {steps_max} steps")

    def lose_worker(self) -> None:
        """Lose the worker's memory and every step it has, then start a fresh one."""
        self.steps.clear()
        self.model = model(*self._memory)
        self._watched = WatchedMemory(self._memory[1])
        self.tell(WorkerLost())
        self.tell(WorkerReady())

    def tell(self, *events: SchedulerEvent) -> None:
        """Give the scheduler *events* in one batch, and carry everything out that follows."""
        commands = deque(self.scheduler.handle(events, 0.0))
        while commands:
            self.check()
            commands.extend(self._perform(commands.popleft()))
        self.check()

    def check(self) -> None:
        """Audit everything."""
        self.scheduler.check()
        self.cache.tree.check()
        report = audit(self.cache, self.owner.private_pages())
        assert report.problems == ()

    def _ask_owner(self, event: CacheEvent) -> list[CacheCommand]:
        replies = self.owner.handle([event], 0.0)
        self.receipts += [reply for reply in replies if isinstance(reply, CacheReceipt)]
        return replies

    def _perform(self, command: SchedulerCommand) -> list[SchedulerCommand]:
        match command:
            case Watch() | CacheTransaction() | NewGeneration():
                if self._owner_lags:
                    self._to_owner.append(command)
                    return []
                replies = self._ask_owner(command)
                return self.scheduler.handle(replies, 0.0) if replies else []
            case Step():
                self.steps.append(command)
                self.history.append(command)
                return []
            case TokenBatch():
                for delivery in command.deliveries:
                    self.answers[delivery.request] += delivery.tokens
                    if delivery.usage is not None:
                        self.usage[delivery.request] = delivery.usage
                    if delivery.finish is not None:
                        assert delivery.request not in self.finished, "ended twice"
                        self.finished[delivery.request] = delivery.finish
                return self.scheduler.handle([Acknowledge()], 0.0)
