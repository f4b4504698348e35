"""Request bodies: read within a limit, decoded into a type, and refused by the field's name.

A field that the type does not have is refused, because ignoring it would change what the client
asked for.  Two kinds are let through, and a `Tolerance` lists them: fields whose value asks for
nothing that would not happen anyway, and hints that this server has no use for.
"""

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive

from radixd.api.disconnect import ClientDisconnectedError
from radixd.api.errors import ApiError, invalid, shortened

T = TypeVar("T", bound=msgspec.Struct)

LIST_LENGTH_MAX: Final = 10_000
"""Objects in one list of a request."""

_PATH: Final = r"(?: - at `\$\.?(?P<path>[^`]*)`)?$"
_AT_PATH: Final = re.compile(rf"^(?P<reason>.*?){_PATH}", re.DOTALL)
_AT_FIELD: Final = re.compile(
    rf"^Object (?P<what>missing required|contains unknown) field `(?P<name>.*?)`{_PATH}", re.DOTALL
)
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Fields of a JSON object that its type lacks and that are accepted all the same."""

    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values, besides null, that ask for nothing; any other one is refused."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Fields that may hold anything, with the reason why that does no harm."""
    nested: Mapping[str, "Tolerance"] = field(default_factory=dict)
    """The same for the object in a field of the type."""
    listed: Mapping[str, "Tolerance"] = field(default_factory=dict)
    """The same for each object of the list in a field of the type."""


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
    with _collector_paused():
        try:
            content = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            reason = _why_not_json(body, error)
            raise ApiError(400, f"the body is not JSON: {reason}", code="invalid_json") from error
        if not isinstance(content, dict):
            raise ApiError(400, "the body is not a JSON object", code="invalid_json")
        try:
            return msgspec.convert(_tolerate(content, tolerance, ""), into)
        except msgspec.ValidationError as error:
            raise _blame(str(error)) from error


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking a growing tree of JSON, which has no cycles.

    It would do so again and again: millions of small lists take it seconds.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _why_not_json(body: bytes, error: Exception) -> str:
    reason = _AT_PATH.sub(r"\g<reason>", str(error))
    # msgspec looks for the other half of a surrogate pair and finds the end of the string.
    if reason == "Input data was truncated" and _SURROGATE.search(body) is not None:
        return "a string holds half of a surrogate pair, or the body ends too early"
    return reason


def _tolerate(content: dict[str, Any], tolerance: Tolerance, path: str) -> dict[str, Any]:
    """Return *content* without what *tolerance* lets through; *path* is put before its fields.

    What has another type than the tables expect is left to the check of types.
    """
    kept: dict[str, Any] = {}
    for name, value in content.items():
        if name in tolerance.neutral:
            _refuse_unless_neutral(value, tolerance.neutral[name], path + name)
        elif name in tolerance.nested and isinstance(value, dict):
            kept[name] = _tolerate(value, tolerance.nested[name], f"{path}{name}.")
        elif name in tolerance.listed and isinstance(value, list):
            kept[name] = _tolerate_each(value, tolerance.listed[name], path + name)
        elif name not in tolerance.ignored:
            kept[name] = value
    return kept


def _tolerate_each(items: list[Any], tolerance: Tolerance, path: str) -> list[Any]:
    if len(items) > LIST_LENGTH_MAX:
        raise invalid(path, f"holds {len(items)} items; at most {LIST_LENGTH_MAX} are taken")
    return [
        _tolerate(item, tolerance, f"{path}[{index}].") if isinstance(item, dict) else item
        for index, item in enumerate(items)
    ]


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
    if (of_field := _AT_FIELD.match(message)) is not None:
        path, name = of_field["path"], shortened(of_field["name"])
        param = f"{path}.{name}" if path else name
        if of_field["what"] == "missing required":
            return invalid(param, "is required", "missing_required_parameter")
        return invalid(param, "is not a field of this request", "unknown_parameter")
    parts = _AT_PATH.match(message)
    assert parts is not None
    reason, path = shortened(parts["reason"]), parts["path"]
    if not path:
        return ApiError(400, reason, code="invalid_value")
    return invalid(path, reason[:1].lower() + reason[1:])
