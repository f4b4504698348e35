"""The worker's actor: keeps steps flowing into the worker, and the worker alive.

Steps are handed over as they come, so the worker has the next one when it ends the last.  When it
is lost, the actor says so once, starts a fresh one, and drops every step until it has seen the
scheduler's `NewGeneration`: those steps count on memory that is gone.
"""

from collections.abc import Awaitable, Callable

import anyio
import structlog
from anyio.abc import TaskGroup

from radixd.actors.mailbox import Mailbox
from radixd.actors.messages import WorkerEvent
from radixd.cache.messages import NewGeneration
from radixd.metrics.registry import Metrics
from radixd.scheduling.messages import SchedulerEvent, StepDone, WorkerLost, WorkerReady
from radixd.workers.protocol import Worker, WorkerError

log = structlog.get_logger("radixd.worker")

STARTS_MAX = 5
"""Failed attempts to start a lost worker again before the daemon gives up."""
RESULTS_MAX = 4
"""Steps that are out: at most two, and two more of a worker that was just lost."""
BACKOFF_FIRST = 0.5
"""Seconds before the second attempt; each later one waits twice as long."""


class WorkerActor:
    """Serves one worker."""

    def __init__(
        self,
        worker: Worker,
        inbox: Mailbox[WorkerEvent],
        scheduler: Mailbox[SchedulerEvent],
        metrics: Metrics,
        on_change: Callable[[bool], None],
    ) -> None:
        self._worker = worker
        self._inbox = inbox
        self._scheduler = scheduler
        self._metrics = metrics
        self._on_change = on_change
        """Told whether the worker takes steps."""
        self._stale = False
        """Whether steps in the mailbox may be older than the worker's memory."""
        self._running = True
        self._fenced = anyio.Event()
        self._results: Mailbox[Awaitable[StepDone]] = Mailbox("worker's results", RESULTS_MAX)

    async def run(self) -> None:
        """Serve the mailbox until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._pass_results_on, group)
            while True:
                for event in await self._inbox.take():
                    if isinstance(event, NewGeneration):
                        self._stale = False
                        self._fenced.set()
                    elif not self._stale:
                        # `run` queues the step before it returns, so the worker can go on.
                        self._results.post(self._worker.run(event))

    async def _pass_results_on(self, group: TaskGroup) -> None:
        """Await the results in the order of their steps."""
        while True:
            for result in await self._results.take():
                try:
                    done = await result
                except WorkerError as error:
                    self._lose(error, group)
                else:
                    self._metrics.step_done(done.seconds)
                    self._scheduler.post(done)

    def _lose(self, error: WorkerError, group: TaskGroup) -> None:
        if not self._running:
            return
        self._running = False
        self._stale = True
        self._fenced = anyio.Event()
        self._on_change(False)
        log.error("worker lost", reason=str(error))
        self._scheduler.post(WorkerLost())
        group.start_soon(self._start_again)

    async def _start_again(self) -> None:
        await self._fenced.wait()
        for attempt in range(STARTS_MAX):
            try:
                await self._worker.start()
                break
            except WorkerError as error:
                log.error("worker does not start", attempt=attempt + 1, reason=str(error))
                if attempt + 1 == STARTS_MAX:
                    raise
                await anyio.sleep(BACKOFF_FIRST * 2**attempt)
        self._running = True
        self._metrics.worker_restarted()
        self._on_change(True)
        log.info("worker is back")
        self._scheduler.post(WorkerReady())
