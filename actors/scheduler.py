"""The scheduler's actor: feeds the machine and carries its commands to their receivers."""

from typing import assert_never

import anyio

from radixd.actors.mailbox import Mailbox
from radixd.actors.messages import TokenizerEvent, WorkerEvent
from radixd.cache.messages import CacheEvent, CacheTransaction, NewGeneration, Watch
from radixd.metrics.registry import Metrics, RequestGauges
from radixd.scheduling.messages import SchedulerEvent, Step, TokenBatch
from radixd.scheduling.scheduler import Scheduler


async def run_scheduler(
    scheduler: Scheduler,
    inbox: Mailbox[SchedulerEvent],
    cache: Mailbox[CacheEvent],
    worker: Mailbox[WorkerEvent],
    tokenizer: Mailbox[TokenizerEvent],
    metrics: Metrics,
) -> None:
    """Serve *inbox* until cancelled."""
    while True:
        events = await inbox.take()
        for command in scheduler.handle(events, anyio.current_time()):
            match command:
                case Watch() | CacheTransaction():
                    cache.post(command)
                case Step():
                    worker.post(command)
                case TokenBatch():
                    tokenizer.post(command)
                case NewGeneration():
                    cache.post(command)
                    worker.post(command)
                case _:
                    assert_never(command)
        statistics = scheduler.statistics()
        metrics.publish_requests(
            RequestGauges(
                waiting=statistics.waiting, held=statistics.held, running=statistics.running
            )
        )
