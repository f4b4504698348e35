"""What machines ask, over a real socket."""

import json

import httpx
import msgspec

from harness.scripted import ScriptedEngine
from radixd.metrics.registry import CONTENT_TYPE


async def test_health_follows_the_actors(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    """200 while they run, 503 when one has died: a supervisor should restart the daemon."""
    response = await client.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    engine.alive = False
    response = await client.get("/health")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_closed"
    assert "retry-after" in response.headers


async def test_ready_follows_the_worker(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    """200 while requests are taken, 503 while none should be sent; health does not mind."""
    response = await client.get("/ready")
    assert (response.status_code, response.json()) == (200, {"status": "ready"})
    engine.ready = False
    response = await client.get("/ready")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "not_ready"
    assert response.headers["retry-after"] == "1"
    assert (await client.get("/health")).status_code == 200


async def test_metrics_are_the_engines(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    """The page is what the engine's metrics render, with their content type."""
    engine.metrics.tokens_generated(12)
    response = await client.get("/metrics")
    assert response.headers["content-type"] == CONTENT_TYPE
    assert response.content == engine.metrics.render()
    assert "\nradixd_generated_tokens_total 12.0\n" in response.text


async def test_metrics_are_plain_text_whatever_is_accepted(client: httpx.AsyncClient) -> None:
    """A scraper that prefers OpenMetrics gets the text format, in which the names are distinct."""
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    response = await client.get("/metrics", headers={"Accept": accept})
    assert response.headers["content-type"] == CONTENT_TYPE


async def test_statistics_are_the_engines(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    """As JSON, nested as they are."""
    await client.post("/generate", json={"text": "x"})
    books = (await client.get("/cache/stats")).json()
    assert books.keys() == {"model", "cache", "scheduler", "gate"}
    assert books["gate"]["requests"] == 1
    assert books == json.loads(msgspec.json.encode(await engine.statistics()))
