"""Request bodies: read within a limit, decoded into a type, and refused by the field's name.

A field that the type does not have is refused, because ignoring it would change what the client
asked for.  Two kinds are let through, and a `Tolerance` lists them: fields whose value asks for
nothing that would not happen anyway, and hints that this server has no use for.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive

from radixd.api.disconnect import ClientDisconnectedError
from radixd.api.errors import ApiError, invalid

T = TypeVar("T", bound=msgspec.Struct)

_AT_PATH: Final = re.compile(r"^(?P<reason>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_FIELD: Final = re.compile(r"^Object (?P<what>missing required|contains unknown) field `(.*)`$")


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Fields of a JSON object that its type lacks and that are accepted all the same."""

    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values, besides null, that ask for nothing; any other one is refused."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Fields that may hold anything, with the reason why that does no harm."""
    nested: Mapping[str, "Tolerance"] = field(default_factory=dict)
    """The same for the object, or each object of the list, in a field of the type."""


NO_TOLERANCE: Final = Tolerance()


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """Return the body of at most *limit* bytes; raises `ApiError` 413 for a longer one."""
    too_large = ApiError(413, f"the body is longer than {limit} bytes", code="request_too_large")
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise too_large
    chunks: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        chunk = message.get("body", b"")
        length += len(chunk)
        if length > limit:
            raise too_large
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def decode_body(body: bytes, into: type[T], tolerance: Tolerance) -> T:
    """Return *body* as *into*; raises `ApiError` 400 that names the first field at fault."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = _AT_PATH.sub(r"\g<reason>", str(error))
        raise ApiError(400, f"the body is not JSON: {reason}", code="invalid_json") from error
    if not isinstance(content, dict):
        raise ApiError(400, "the body is not a JSON object", code="invalid_json")
    try:
        return msgspec.convert(_tolerate(content, tolerance, ""), into)
    except msgspec.ValidationError as error:
        raise _blame(str(error)) from error


def _tolerate(content: Any, tolerance: Tolerance, path: str) -> Any:
    """Return *content* without what *tolerance* lets through."""
    if isinstance(content, list):
        return [
            _tolerate(item, tolerance, f"{path}[{index}]") for index, item in enumerate(content)
        ]
    if not isinstance(content, dict):
        return content
    kept = {}
    for name, value in content.items():
        here = f"{path}.{name}" if path else name
        if name in tolerance.neutral:
            _refuse_unless_neutral(value, tolerance.neutral[name], here)
        elif name in tolerance.nested:
            kept[name] = _tolerate(value, tolerance.nested[name], here)
        elif name not in tolerance.ignored:
            kept[name] = value
    return kept


def _refuse_unless_neutral(value: Any, neutral: tuple[Any, ...], path: str) -> None:
    if value is None:
        return
    # In Python True equals 1, in JSON it does not.
    if any(value == n and isinstance(value, bool) == isinstance(n, bool) for n in neutral):
        return
    allowed = " or ".join(msgspec.json.encode(n).decode() for n in (*neutral, None))
    raise invalid(path, f"is not supported; only {allowed} is accepted", "unsupported_parameter")


def _blame(message: str) -> ApiError:
    """Turn a message of msgspec, which ends with a path, into an error of that field."""
    parts = _AT_PATH.match(message)
    assert parts is not None
    reason, path = parts["reason"], parts["path"] or ""
    if (of_field := _FIELD.match(reason)) is not None:
        param = f"{path}.{of_field[2]}" if path else of_field[2]
        if of_field["what"] == "missing required":
            return invalid(param, "is required", "missing_required_parameter")
        return invalid(param, "is not a field of this request", "unknown_parameter")
    if not path:
        return ApiError(400, reason, code="invalid_value")
    return invalid(path, reason[:1].lower() + reason[1:])
