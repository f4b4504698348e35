"""The metrics as Prometheus reads them."""

import shutil
import subprocess
from collections.abc import Mapping

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from radixd import __version__
from radixd.metrics.registry import CONTENT_TYPE, CacheGauges, Metrics, RequestGauges


def samples(metrics: Metrics) -> Mapping[tuple[str, ...], float]:
    """All samples by (name, label value, ...), each label set in the order of its names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def busy() -> Metrics:
    """Metrics after one of everything."""
    metrics = Metrics()
    metrics.request_finished("stop")
    metrics.prompt_admitted(from_tree=32, in_flight=16, computed=5)
    metrics.tokens_generated(7)
    metrics.pages_evicted("lru", "admission", 3)
    metrics.first_token(0.0021)
    metrics.step_done(0.004)
    metrics.worker_restarted()
    metrics.publish_cache(
        CacheGauges(
            free=1, locked=2, evictable=3, pending=4, private=5, quarantined=6, scratch=7, locks=8
        )
    )
    metrics.publish_requests(RequestGauges(waiting=9, held=10, running=11))
    return metrics


def test_every_known_series_is_zero_from_the_start() -> None:
    """A dashboard opened before the first request sees zeros, not gaps."""
    seen = samples(Metrics())
    expected = {
        *(
            ("radixd_requests_total", outcome)
            for outcome in ("stop", "length", "abort", "error", "rejected")
        ),
        *(("radixd_prompt_tokens_total", s) for s in ("tree", "in_flight", "computed")),
        ("radixd_generated_tokens_total",),
        ("radixd_cache_lookup_tokens_total",),
        *(("radixd_cache_hit_tokens_total", s) for s in ("tree", "in_flight")),
        ("radixd_cache_locks",),
        *(
            ("radixd_cache_pages", state)
            for state in (
                *("free", "locked", "evictable", "pending", "private", "quarantined", "scratch"),
            )
        ),
        ("radixd_cache_evicted_pages_total", "lru", "admission"),
        *(("radixd_requests", state) for state in ("waiting", "held", "running")),
        ("radixd_time_to_first_token_seconds_count",),
        ("radixd_worker_step_seconds_count",),
        ("radixd_worker_restarts_total",),
    }
    assert expected <= seen.keys()
    assert all(seen[series] == 0 for series in expected)
    assert seen["radixd_build_info", __version__] == 1


def test_events_move_their_counters() -> None:
    """Each event is counted under the label that it names, and nowhere else."""
    seen = samples(busy())
    assert seen["radixd_requests_total", "stop"] == 1
    assert seen["radixd_requests_total", "length"] == 0
    assert seen["radixd_generated_tokens_total",] == 7
    assert seen["radixd_cache_evicted_pages_total", "lru", "admission"] == 3
    assert seen["radixd_worker_restarts_total",] == 1
    assert seen["radixd_worker_step_seconds_count",] == 1
    assert seen["radixd_worker_step_seconds_sum",] == pytest.approx(0.004)


def test_an_admitted_prompt_is_looked_up_once_and_split_by_source() -> None:
    """Sources add up to the looked-up tokens, and hits are what was not computed."""
    seen = samples(busy())
    by_source = {
        source: seen["radixd_prompt_tokens_total", source]
        for source in ("tree", "in_flight", "computed")
    }
    assert by_source == {"tree": 32, "in_flight": 16, "computed": 5}
    assert seen["radixd_cache_lookup_tokens_total",] == sum(by_source.values())
    assert seen["radixd_cache_hit_tokens_total", "tree"] == 32
    assert seen["radixd_cache_hit_tokens_total", "in_flight"] == 16


def test_gauges_show_the_last_published_snapshot() -> None:
    """A scrape reads what was published last, whole."""
    metrics = busy()
    seen = samples(metrics)
    assert [
        seen["radixd_cache_pages", state]
        for state in (
            *("free", "locked", "evictable", "pending", "private", "quarantined", "scratch"),
        )
    ] == [1, 2, 3, 4, 5, 6, 7]
    assert seen["radixd_cache_locks",] == 8
    assert [seen["radixd_requests", s] for s in ("waiting", "held", "running")] == [9, 10, 11]

    metrics.publish_cache(CacheGauges(free=28))
    metrics.publish_requests(RequestGauges())
    seen = samples(metrics)
    assert seen["radixd_cache_pages", "free"] == 28
    assert seen["radixd_cache_pages", "locked"] == 0
    assert seen["radixd_requests", "running"] == 0


def test_first_token_buckets_tell_a_hit_from_a_miss() -> None:
    """A 2 ms hit and a 200 ms miss lie many buckets apart, and 120 s is still inside one."""
    metrics = Metrics()
    metrics.first_token(0.002)
    metrics.first_token(0.2)
    metrics.first_token(119.0)
    seen = samples(metrics)
    name = "radixd_time_to_first_token_seconds_bucket"
    assert seen[name, "0.001"] == 0
    assert seen[name, "0.002"] == 1
    assert seen[name, "0.15"] == 1
    assert seen[name, "0.2"] == 2
    assert seen[name, "90.0"] == 2
    assert seen[name, "120.0"] == 3


def test_the_gauge_and_the_counter_of_requests_are_two_families() -> None:
    """``radixd_requests`` and ``radixd_requests_total`` are declared apart, each with its type."""
    page = busy().render().decode()
    assert "# TYPE radixd_requests gauge\n" in page
    assert "# TYPE radixd_requests_total counter\n" in page


def test_no_family_is_declared_twice_and_no_creation_times_are_shown() -> None:
    """The page holds each family once, without the ``_created`` series."""
    lines = busy().render().decode().splitlines()
    declared = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared))
    assert not [line for line in lines if "_created" in line]


def test_two_instances_share_nothing_with_each_other_or_the_global_registry() -> None:
    """Two engines in one process count apart, and the global registry stays as it was."""
    one, other = Metrics(), Metrics()
    one.request_finished("abort")
    assert samples(other)["radixd_requests_total", "abort"] == 0
    assert REGISTRY.get_sample_value("radixd_requests_total", {"outcome": "abort"}) is None


def test_an_embedding_program_can_register_them_with_its_own() -> None:
    """`Metrics` is a collector that a registry accepts."""
    registry = CollectorRegistry()
    registry.register(busy())
    assert registry.get_sample_value("radixd_requests_total", {"outcome": "stop"}) == 1
    assert registry.get_sample_value("radixd_requests", {"state": "running"}) == 11


def test_the_content_type_is_the_text_format_of_the_page() -> None:
    """Scrapers are told text format 0.0.4, in which alone the two families differ by name."""
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="optional peer: promtool")
@pytest.mark.parametrize("metrics", [Metrics(), busy()], ids=["fresh", "busy"])
def test_promtool_finds_nothing_to_complain_about(metrics: Metrics) -> None:
    """Prometheus' own linter parses the page and accepts every name and type."""
    check = subprocess.run(
        ["promtool", "check", "metrics"],
        input=metrics.render(),
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, b"", b"")
