"""``POST /v1/chat/completions`` over a real socket."""

from typing import Any

import httpx
import pytest

from harness.events import chunks_of
from harness.scripted import ScriptedEngine
from radixd.actors.generation import ChatPrompt, GenerationParams

URL = "/v1/chat/completions"
QUESTION = {"role": "user", "content": "What is the capital of France?"}


def body(**fields: Any) -> dict[str, Any]:
    """Return a request of one question, with *fields* besides."""
    return {"model": "scripted", "messages": [QUESTION], **fields}


async def test_an_answer_has_the_shape_of_openai(client: httpx.AsyncClient) -> None:
    """One choice with the whole text, how it ended, and the usage with its cached tokens."""
    response = await client.post(URL, json=body(), headers={"X-Request-Id": "r1"})
    assert response.status_code == 200
    answer = response.json()
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Paris is it.", "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": 30,
            "completion_tokens": 3,
            "total_tokens": 33,
            "prompt_tokens_details": {"cached_tokens": 5},
        },
    }


async def test_a_stream_sends_role_then_texts_then_the_finish(client: httpx.AsyncClient) -> None:
    """The first delta has the role, the last one nothing but a finish reason."""
    response = await client.post(URL, json=body(stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    chunks = chunks_of(response.text)
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Paris"},
        {"content": " is"},
        {"content": " it."},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [*[None] * 4, "stop"]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_stream_ends_with_the_usage_if_asked(client: httpx.AsyncClient) -> None:
    """Every chunk has a null usage but the last, which has numbers and no choices."""
    options = {"include_usage": True}
    response = await client.post(URL, json=body(stream=True, stream_options=options))
    *chunks, last = chunks_of(response.text)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
    assert last["usage"]["total_tokens"] == 33


async def test_pieces_without_text_send_no_empty_chunks(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    """A token that is half a character is not a chunk, but the first still brings the role."""
    engine.script.texts = ["", "", "é", ""]
    chunks = chunks_of((await client.post(URL, json=body(stream=True))).text)
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "é"},
        {},
    ]


@pytest.mark.parametrize("stream", [True, False])
async def test_nothing_cached_is_zero_and_not_null(
    client: httpx.AsyncClient, engine: ScriptedEngine, stream: bool
) -> None:
    """Clients read null as "not supported", so the number is always there."""
    engine.script.from_tree = engine.script.in_flight = 0
    options = {"stream_options": {"include_usage": True}} if stream else {}
    response = await client.post(URL, json=body(stream=stream, **options))
    usage = (chunks_of(response.text)[-1] if stream else response.json())["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


async def test_every_supported_field_reaches_the_engine(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    """Fields keep their meaning on the way."""
    fields = {
        "max_tokens": 7,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 3,
        "stop": ["a", "b"],
        "stop_token_ids": [5],
        "seed": 42,
        "ignore_eos": True,
    }
    assert (await client.post(URL, json=body(**fields))).status_code == 200
    assert engine.submitted.get_nowait().params == GenerationParams(
        max_tokens=7,
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        stop=("a", "b"),
        stop_token_ids=(5,),
        seed=42,
        ignore_eos=True,
    )


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({}, GenerationParams(max_tokens=None, temperature=1.0)),
        ({"temperature": None, "stop": None, "max_tokens": None}, GenerationParams()),
        ({"stop": "end"}, GenerationParams(stop=("end",))),
        ({"stop": []}, GenerationParams(stop=())),
        ({"top_k": -1}, GenerationParams(top_k=0)),
        ({"max_completion_tokens": 9}, GenerationParams(max_tokens=9)),
        ({"max_completion_tokens": 9, "max_tokens": 9}, GenerationParams(max_tokens=9)),
    ],
    ids=["nothing", "nulls", "one stop", "no stop", "all tokens", "new name", "both names"],
)
async def test_fields_default_as_openai_documents(
    client: httpx.AsyncClient,
    engine: ScriptedEngine,
    fields: dict[str, Any],
    params: GenerationParams,
) -> None:
    """What is left out or null keeps the default, and shorter forms mean the longer ones."""
    assert (await client.post(URL, json=body(**fields))).status_code == 200
    assert engine.submitted.get_nowait().params == params


async def test_messages_reach_the_template_as_text(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    """All roles pass, parts are joined, a null content of the assistant is empty text."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Really."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
            "name": "ann",
        },
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": None},
        {"role": "tool", "content": "4", "tool_call_id": "call-1"},
    ]
    assert (await client.post(URL, json=body(messages=messages))).status_code == 200
    assert engine.submitted.get_nowait().prompt == ChatPrompt(
        (
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": "Really."},
            {"role": "user", "content": "one\ntwo", "name": "ann"},
            {"role": "assistant", "content": ""},
            {"role": "tool", "content": "4", "tool_call_id": "call-1"},
        )
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "wizard", "content": ""}]}, "messages[0].role"),
        ({"messages": [QUESTION, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{**QUESTION, "colour": "red"}]}, "messages[0].colour"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls",
        ),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"seed": True}, "seed"),
        ({"stop": [1]}, "stop[0]"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_a_bad_field_is_refused_by_name(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any], param: str
) -> None:
    """The 400 says which field it is about, and nothing reaches the engine."""
    response = await client.post(URL, json=body(**fields))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")
    assert engine.submitted.empty()


async def test_another_model_is_not_found(client: httpx.AsyncClient) -> None:
    """OpenAI's code for it, so that clients raise what they would there."""
    response = await client.post(URL, json=body(model="gpt-4o"))
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'scripted'" in error["message"]
