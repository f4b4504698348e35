"""Every Prometheus metric of the daemon, with its name, labels and meaning.

Counters and histograms are told of events as they happen.  Gauges are not kept here: the actor
shells publish frozen snapshots of their state, and a scrape reads the last of each.  This module
does not know what an actor, a request or a page is.

The exposition is the Prometheus text format alone.  OpenMetrics names a counter's family without
``_total``, so there ``radixd_requests_total`` and the gauge ``radixd_requests`` would be one family
of two types; in the text format they are two families.  A `CollectorRegistry` reserves names as
OpenMetrics does, so the metrics are in none: `Metrics` is the collector of them all.  It leaves out
the ``_created`` series, which lengthen the page and which Prometheus does not use.
"""

from collections.abc import Iterator
from typing import Literal, get_args

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from radixd import __version__

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""What `Metrics.render` returns, as a value of the HTTP header ``Content-Type``."""

Outcome = Literal["stop", "length", "abort", "error", "rejected"]
"""How a request ended; ``rejected`` ones were never queued."""

PromptSource = Literal["tree", "in_flight", "computed"]
"""Where the KV of a prompt token came from."""

EvictionPolicy = Literal["lru"]
EvictionReason = Literal["admission"]
"""Why pages were evicted: to admit a waiting request."""

FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5),
    *(10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0),
)
"""Seconds.  Fine from 1 ms on: a hit may take 2 ms where the miss takes 200."""

STEP_BUCKETS = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
"""Seconds."""


class CacheGauges(msgspec.Struct, frozen=True, kw_only=True):
    """The page pool at one moment; all but *locks* are pages and add up to its capacity."""

    free: int = 0
    locked: int = 0
    evictable: int = 0
    pending: int = 0
    private: int = 0
    quarantined: int = 0
    scratch: int = 0
    locks: int = 0
    """Leases that are held."""


class RequestGauges(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests are in which state at one moment."""

    waiting: int = 0
    held: int = 0
    running: int = 0


class Metrics(Collector):
    """The daemon's metrics: told of events, given snapshots, rendered at a scrape.

    Every series of every known label value is there from the start, at zero.  Two of these share
    nothing, and neither touches the global registry; an embedding program may register one there.
    """

    def __init__(self) -> None:
        self._requests = _counter(
            "radixd_requests_total", "Requests by how they ended.", "outcome", get_args(Outcome)
        )
        self._prompt_tokens = _counter(
            "radixd_prompt_tokens_total",
            "Prompt tokens of admitted requests by where their KV came from.",
            "source",
            get_args(PromptSource),
        )
        self._generated_tokens = Counter(
            "radixd_generated_tokens_total", "Tokens generated.", registry=None
        )
        self._lookup_tokens = Counter(
            "radixd_cache_lookup_tokens_total",
            "Prompt tokens looked up in the cache, once for each admitted request.",
            registry=None,
        )
        self._hit_tokens = _counter(
            "radixd_cache_hit_tokens_total",
            "Looked-up tokens that were not computed, by where their KV was.",
            "source",
            ("tree", "in_flight"),
        )
        self._evicted_pages = Counter(
            "radixd_cache_evicted_pages_total",
            "Pages evicted, by the policy that chose them and the need behind it.",
            ("policy", "reason"),
            registry=None,
        )
        for policy in get_args(EvictionPolicy):
            for reason in get_args(EvictionReason):
                self._evicted_pages.labels(policy, reason)
        self._worker_restarts = Counter(
            "radixd_worker_restarts_total",
            "Times that a lost worker was started again.",
            registry=None,
        )
        self._first_token = Histogram(
            "radixd_time_to_first_token_seconds",
            "Time from a request's arrival to its first token.",
            buckets=FIRST_TOKEN_BUCKETS,
            registry=None,
        )
        self._step = Histogram(
            "radixd_worker_step_seconds",
            "Time that the worker computed one step.",
            buckets=STEP_BUCKETS,
            registry=None,
        )
        self._cache = CacheGauges()
        self._states = RequestGauges()

    def request_finished(self, outcome: Outcome) -> None:
        """Count a request that has left, or was turned away at the door."""
        self._requests.labels(outcome).inc()

    def prompt_admitted(self, *, from_tree: int, in_flight: int, computed: int) -> None:
        """Count the prompt tokens of a request at its first admission, and only then."""
        self._prompt_tokens.labels("tree").inc(from_tree)
        self._prompt_tokens.labels("in_flight").inc(in_flight)
        self._prompt_tokens.labels("computed").inc(computed)
        self._hit_tokens.labels("tree").inc(from_tree)
        self._hit_tokens.labels("in_flight").inc(in_flight)
        self._lookup_tokens.inc(from_tree + in_flight + computed)

    def tokens_generated(self, count: int) -> None:
        """Count sampled tokens."""
        self._generated_tokens.inc(count)

    def pages_evicted(self, policy: EvictionPolicy, reason: EvictionReason, pages: int) -> None:
        """Count pages that were taken from the tree."""
        self._evicted_pages.labels(policy, reason).inc(pages)

    def first_token(self, seconds: float) -> None:
        """Note how long a request waited for its first token."""
        self._first_token.observe(seconds)

    def step_done(self, seconds: float) -> None:
        """Note how long the worker computed one step."""
        self._step.observe(seconds)

    def worker_restarted(self) -> None:
        """Count a worker that replaced a lost one."""
        self._worker_restarts.inc()

    def publish_cache(self, gauges: CacheGauges) -> None:
        """Show *gauges* from now on."""
        self._cache = gauges

    def publish_requests(self, gauges: RequestGauges) -> None:
        """Show *gauges* from now on."""
        self._states = gauges

    def render(self) -> bytes:
        """Return all metrics in Prometheus text format 0.0.4; see `CONTENT_TYPE`."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Yield each family, as it is at this moment."""
        yield self._build_info()
        for metric in (
            self._requests,
            self._prompt_tokens,
            self._generated_tokens,
            self._lookup_tokens,
            self._hit_tokens,
            self._evicted_pages,
            self._worker_restarts,
            self._first_token,
            self._step,
        ):
            for family in metric.collect():
                created = f"{family.name}_created"
                family.samples = [s for s in family.samples if s.name != created]
                yield family
        yield from self._gauges()

    @staticmethod
    def _build_info() -> Metric:
        family = GaugeMetricFamily("radixd_build_info", "Always 1.", labels=("version",))
        family.add_metric((__version__,), 1)
        return family

    def _gauges(self) -> Iterator[Metric]:
        cache, states = self._cache, self._states
        yield GaugeMetricFamily("radixd_cache_locks", "Leases held on the tree.", cache.locks)
        pages = GaugeMetricFamily(
            "radixd_cache_pages",
            "Pages of the pool by state; they add up to its capacity.",
            labels=("state",),
        )
        for state in CacheGauges.__struct_fields__:
            if state != "locks":
                pages.add_metric((state,), getattr(cache, state))
        yield pages
        requests = GaugeMetricFamily("radixd_requests", "Requests by state.", labels=("state",))
        for state in RequestGauges.__struct_fields__:
            requests.add_metric((state,), getattr(states, state))
        yield requests


def _counter(name: str, documentation: str, label: str, values: tuple[str, ...]) -> Counter:
    """Make a counter whose series for all of *values* exist already."""
    counter = Counter(name, documentation, (label,), registry=None)
    for value in values:
        counter.labels(value)
    return counter
