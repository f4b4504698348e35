"""The cache owner's actor: the only task in which the prefix cache changes."""

import anyio

from radixd.actors.mailbox import Mailbox
from radixd.cache.messages import CacheEvent, CacheReceipt, CacheStatistics
from radixd.cache.owner import CacheOwner
from radixd.metrics.registry import CacheGauges, Metrics
from radixd.scheduling.messages import SchedulerEvent


async def run_cache(
    owner: CacheOwner,
    inbox: Mailbox[CacheEvent],
    scheduler: Mailbox[SchedulerEvent],
    metrics: Metrics,
) -> None:
    """Serve *inbox* until cancelled."""
    _publish(owner.statistics(), metrics)
    while True:
        events = await inbox.take()
        for command in owner.handle(events, anyio.current_time()):
            if isinstance(command, CacheReceipt) and command.evicted_pages:
                metrics.pages_evicted("lru", "admission", command.evicted_pages)
            scheduler.post(command)
        _publish(owner.statistics(), metrics)


def _publish(statistics: CacheStatistics, metrics: Metrics) -> None:
    pages = statistics.pages
    metrics.publish_cache(
        CacheGauges(
            free=pages.free,
            locked=pages.locked,
            evictable=pages.evictable,
            pending=pages.pending,
            private=pages.private,
            quarantined=pages.quarantined,
            scratch=pages.scratch,
            locks=statistics.leases,
        )
    )
