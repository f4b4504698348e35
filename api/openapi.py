"""The OpenAPI 3.1 document of a route table."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from radixd import __version__
from radixd.api.body import Tolerance
from radixd.api.call import JSON
from radixd.api.endpoint import Route
from radixd.api.errors import ErrorReply
from radixd.api.sse import MEDIA_TYPE

_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")

_RETRY_AFTER: Final = {429, 503}

_REQUEST_ID: Final = {
    "name": "X-Request-Id",
    "in": "header",
    "description": "Names the request in logs and in the answer; by default a new name is made.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[ -~]+$"},
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document, as plain values for JSON."""
    routes = tuple(routes)
    types = [t for route in routes for t in (route.request, route.response, route.event) if t]
    schemas, components = msgspec.json.schema_components(
        [*types, ErrorReply], ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip([*types, ErrorReply], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, by_type)
        if route.request is not None:
            _add_tolerated(components, by_type[route.request], route.tolerance)
    return {
        "openapi": "3.1.0",
        "info": {"title": "radixd", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    content = {route.media_type: {"schema": schemas[route.response]}}
    if route.event is not None:
        content[MEDIA_TYPE] = {
            "schema": {
                "type": "string",
                "description": "Events whose data is [DONE] at the end and else as x-event says.",
                "x-event": schemas[route.event],
            }
        }
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.handler.__name__,
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in _PARAMETER.findall(route.path)
            ),
            _REQUEST_ID,
        ],
        "responses": {
            "200": {"description": "The answer", "content": content},
            **{
                str(status): _error(status, schemas) for status in sorted({400, 500, *route.errors})
            },
        },
    }
    if route.request is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {JSON: {"schema": schemas[route.request]}},
        }
    return operation


def _error(status: int, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    error: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "content": {JSON: {"schema": schemas[ErrorReply]}},
    }
    if status in _RETRY_AFTER:
        error["headers"] = {
            "Retry-After": {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}}
        }
    return error


def _add_tolerated(
    components: dict[str, Any], schema: Mapping[str, Any], tolerance: Tolerance
) -> None:
    """Add the fields that *tolerance* lets through to the object that *schema* leads to."""
    target = _object(components, schema)
    properties = target["properties"]
    for name, values in tolerance.neutral.items():
        properties[name] = {"enum": [*values, None], "description": "Nothing else is supported."}
    for name, reason in tolerance.ignored.items():
        properties[name] = {"description": f"Ignored: {reason}."}
    for name, inner in (*tolerance.nested.items(), *tolerance.listed.items()):
        _add_tolerated(components, properties[name], inner)


def _object(components: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the component that *schema* is, may be (beside null), or is a list of."""
    if "items" in schema:
        return _object(components, schema["items"])
    if "anyOf" in schema:
        return _object(components, next(s for s in schema["anyOf"] if "$ref" in s))
    found: dict[str, Any] = components[schema["$ref"].rpartition("/")[2]]
    return found
