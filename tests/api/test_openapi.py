"""The route table and the document made of it."""

import json
import re
from typing import Any

import httpx
import msgspec
import pytest

from harness.events import chunks_of
from radixd.api import openapi
from radixd.api.endpoint import Route
from radixd.api.routes import ROUTES


@pytest.fixture
async def document(client: httpx.AsyncClient) -> Any:
    """The document as it is served."""
    response = await client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    return response.json()


def references(node: Any) -> set[str]:
    """Return every ``$ref`` below *node*."""
    if isinstance(node, dict):
        own = {node["$ref"]} if "$ref" in node else set()
        return own.union(*(references(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(references(value) for value in node))
    return set()


async def test_it_describes_every_route_of_the_table(document: Any) -> None:
    """No path more or less, and each with a summary and an id of its own."""
    described = {
        (path, method) for path, methods in document["paths"].items() for method in methods
    }
    assert described == {
        (re.sub(r":\w+\}", "}", route.path), route.method.lower()) for route in ROUTES
    }
    operations = [
        operation for methods in document["paths"].values() for operation in methods.values()
    ]
    assert len({operation["operationId"] for operation in operations}) == len(ROUTES)
    assert all(operation["summary"] for operation in operations)


async def test_it_is_openapi_3_1_in_structure(document: Any) -> None:
    """Its version, its required parts, declared path parameters, and references that lead."""
    assert document["openapi"] == "3.1.0"
    assert document["info"].keys() >= {"title", "version"}
    for reference in references(document):
        name = reference.removeprefix("#/components/schemas/")
        assert name in document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            declared = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert declared == set(re.findall(r"\{(\w+)\}", path))
            assert {"200", "400", "500"} <= operation["responses"].keys()
            assert all("description" in reply for reply in operation["responses"].values())


async def test_a_validator_accepts_it(document: Any) -> None:
    """Where the validator is installed, it finds nothing."""
    validator = pytest.importorskip(
        "openapi_spec_validator", reason="optional peer: openapi-spec-validator"
    )
    validator.validate(document)


async def test_what_is_let_through_is_in_the_schema(document: Any) -> None:
    """A client that validates before it sends may send what the server accepts."""
    schemas = document["components"]["schemas"]
    chat = schemas["ChatCompletionRequest"]["properties"]
    assert chat["n"]["enum"] == [1, None]
    assert chat["user"]["description"].startswith("Ignored: ")
    assert schemas["Message"]["properties"]["tool_calls"]["enum"] == [[], None]
    assert schemas["GenerateSampling"]["properties"]["min_p"]["enum"] == [0, None]
    assert schemas["ChatCompletionRequest"]["additionalProperties"] is False
    assert schemas["ChatCompletionRequest"]["required"] == ["model", "messages"]


async def test_retries_and_streams_are_described(document: Any) -> None:
    """429 and 503 have their header; an endpoint that can stream says so."""
    operation = document["paths"]["/v1/chat/completions"]["post"]
    assert operation["responses"].keys() == {"200", "400", "404", "413", "429", "500", "503"}
    for status in ("429", "503"):
        assert "Retry-After" in operation["responses"][status]["headers"]
    assert operation["responses"]["200"]["content"].keys() == {
        *("application/json", "text/event-stream")
    }


def test_describing_twice_gives_the_same() -> None:
    """The table is not changed by being described."""
    assert openapi.document(ROUTES) == openapi.document(ROUTES)


REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "scripted",
        "messages": [{"role": "user", "content": "x"}],
    },
    "/v1/completions": {"model": "scripted", "prompt": "x"},
    "/generate": {"text": "x"},
}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_answers_are_of_the_type_that_the_table_says(
    client: httpx.AsyncClient, route: Route
) -> None:
    """What the handler sends decodes strictly as the row's type, with no field besides."""
    path = re.sub(r"\{model:path\}", "scripted", route.path)
    response = await client.request(route.method, path, json=REQUESTS.get(path))
    assert response.status_code == 200
    assert response.headers["content-type"].startswith(route.media_type)
    if route.media_type == "application/json":
        answer = msgspec.json.decode(response.content, type=route.response)
        assert json.loads(msgspec.json.encode(answer)) == response.json()


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.event], ids=lambda route: route.path
)
async def test_events_are_of_the_type_that_the_table_says(
    client: httpx.AsyncClient, route: Route
) -> None:
    """The same for each event of a stream."""
    request = {**REQUESTS[route.path], "stream": True}
    for event in chunks_of((await client.post(route.path, json=request)).text):
        chunk = msgspec.convert(event, route.event)
        assert json.loads(msgspec.json.encode(chunk)) == event
