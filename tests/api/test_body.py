"""Decoding, and the tables of what is let through."""

import contextlib
import gc
import json
from typing import Annotated, Any

import msgspec
import pytest

from radixd.api import chat, completions, generate
from radixd.api.body import NO_TOLERANCE, Tolerance, decode_body
from radixd.api.errors import ApiError


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    """An object in a list."""

    size: int


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    """The object of these tests."""

    name: str
    inner: Annotated[tuple[Inner, ...], msgspec.Meta(max_length=2)] = ()


TOLERANCE = Tolerance(
    neutral={"n": (1,), "flag": (False,), "extra": ({}, [])},
    ignored={"user": "it is nobody's business"},
    listed={"inner": Tolerance(neutral={"depth": (0,)})},
)


def decode(content: Any, tolerance: Tolerance = TOLERANCE) -> Outer:
    """Decode *content*, given as what its JSON holds."""
    return decode_body(json.dumps(content).encode(), Outer, tolerance)


def refusal(content: Any, tolerance: Tolerance = TOLERANCE) -> ApiError:
    """Return the error of decoding *content*."""
    with pytest.raises(ApiError) as caught:
        decode(content, tolerance)
    assert caught.value.status == 400
    return caught.value


def test_fields_arrive_in_their_type() -> None:
    """A body without surprises is the struct."""
    content = {"name": "a", "inner": [{"size": 1}, {"size": 2}]}
    assert decode(content, NO_TOLERANCE) == Outer("a", (Inner(1), Inner(2)))


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 1},
        {"n": 1.0},
        {"n": None},
        {"flag": False},
        {"extra": {}},
        {"extra": []},
        {"user": {"any": ["thing"]}},
        {"inner": [{"size": 3, "depth": 0}]},
        {"inner": [{"size": 3, "depth": None}]},
    ],
    ids=json.dumps,
)
def test_what_changes_nothing_is_let_through(extra: dict[str, Any]) -> None:
    """Neutral values, null and hints leave no trace."""
    assert decode({"name": "a", **extra}).name == "a"


@pytest.mark.parametrize(
    ("content", "param", "message", "code"),
    [
        ({}, "name", "is required", "missing_required_parameter"),
        ({"name": "a", "x": 1}, "x", "is not a field of this request", "unknown_parameter"),
        ({"name": "a", "x": None}, "x", "is not a field of this request", "unknown_parameter"),
        (
            {"name": "a", "inner": [{"size": 1, "x": 1}]},
            *("inner[0].x", "is not a field of this request", "unknown_parameter"),
        ),
        (
            {"name": "a", "inner": [{"size": 1}, {}]},
            *("inner[1].size", "is required", "missing_required_parameter"),
        ),
        (
            {"name": "a", "inner": [{"size": "1"}]},
            *("inner[0].size", "expected `int`, got `str`", "invalid_value"),
        ),
        (
            {"name": "a", "inner": [{"size": 1}] * 3},
            *("inner", "expected `array` of length <= 2", "invalid_value"),
        ),
        ({"name": "a", "inner": {}}, "inner", "expected `array`, got `object`", "invalid_value"),
        (
            {"name": "a", "inner": [{}] * 10_001},
            *("inner", "holds 10001 items; at most 10000 are taken", "invalid_value"),
        ),
        (
            {"name": "a", "b\nc - at `$.d": 1},
            *("b\nc - at `$.d", "is not a field of this request", "unknown_parameter"),
        ),
        (
            {"name": "a", "n": 2},
            *("n", "is not supported; only 1 or null is accepted", "unsupported_parameter"),
        ),
        (
            {"name": "a", "n": True},
            *("n", "is not supported; only 1 or null is accepted", "unsupported_parameter"),
        ),
        (
            {"name": "a", "flag": 0},
            *("flag", "is not supported; only false or null is accepted", "unsupported_parameter"),
        ),
        (
            {"name": "a", "inner": [{"size": 1}, {"size": 1, "depth": 2}]},
            "inner[1].depth",
            "is not supported; only 0 or null is accepted",
            "unsupported_parameter",
        ),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_the_first_field_at_fault_is_named(
    content: Any, param: str, message: str, code: str
) -> None:
    """The error has the path of the field, what is wrong with it, and a code for programs."""
    detail = refusal(content).reply.error
    assert (detail.param, detail.message, detail.code) == (param, f"{param}: {message}", code)


TABLES: list[tuple[str, type[msgspec.Struct], Tolerance, dict[str, Any]]] = [
    (
        "chat",
        chat.ChatCompletionRequest,
        chat.TOLERANCE,
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream_options": {}},
    ),
    (
        "completions",
        completions.CompletionRequest,
        completions.TOLERANCE,
        {"model": "m", "prompt": "x", "stream_options": {}},
    ),
    (
        "generate",
        generate.GenerateRequest,
        generate.TOLERANCE,
        {"text": "x", "sampling_params": {}},
    ),
]


def rows(tolerance: Tolerance, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Return (path, neutral value) for each field that *tolerance* lets through."""
    found = [
        ((*path, name), value)
        for name, values in tolerance.neutral.items()
        for value in (*values, None)
    ]
    found += [((*path, name), {"any": "thing"}) for name in tolerance.ignored]
    for name, inner in (*tolerance.nested.items(), *tolerance.listed.items()):
        found += rows(inner, (*path, name))
    return found


def with_field(content: Any, path: tuple[str, ...], value: Any) -> Any:
    """Return *content* with *value* at *path*, in every object of a list on the way."""
    if isinstance(content, list):
        return [with_field(item, path, value) for item in content]
    name, *rest = path
    return {**content, name: with_field(content[name], tuple(rest), value) if rest else value}


@pytest.mark.parametrize(
    ("into", "tolerance", "content", "path", "value"),
    [
        pytest.param(into, tolerance, content, path, value, id=f"{name}-{'.'.join(path)}-{value}")
        for name, into, tolerance, content in TABLES
        for path, value in rows(tolerance)
    ],
)
def test_each_row_of_the_tables_accepts_its_value_and_nothing_else(
    into: type[msgspec.Struct],
    tolerance: Tolerance,
    content: dict[str, Any],
    path: tuple[str, ...],
    value: Any,
) -> None:
    """The value decodes as if it were absent; another is refused, unless it is ignored."""
    plain = decode_body(json.dumps(content).encode(), into, tolerance)
    given = json.dumps(with_field(content, path, value)).encode()
    assert decode_body(given, into, tolerance) == plain
    if path[-1] in tolerance.ignored:
        return
    other = json.dumps(with_field(content, path, "another")).encode()
    with pytest.raises(ApiError, match="is not supported"):
        decode_body(other, into, tolerance)


def test_a_list_where_an_object_belongs_is_not_walked() -> None:
    """What an object there might hold does not count in the items of a list."""
    tolerance = Tolerance(nested={"inner": Tolerance(neutral={"depth": (0,)})})
    detail = refusal({"name": "a", "inner": [{"size": 1, "depth": 1}]}, tolerance).reply.error
    assert detail.param == "inner[0].depth"
    assert detail.code == "unknown_parameter"


@pytest.mark.parametrize("content", [{"name": "a"}, {}], ids=["accepted", "refused"])
@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(content: dict[str, Any], enabled: bool) -> None:
    """It rests while a body is decoded, and no longer."""
    was_enabled = gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        with contextlib.suppress(ApiError):
            decode(content)
        assert gc.isenabled() == enabled
    finally:
        gc.enable() if was_enabled else gc.disable()
