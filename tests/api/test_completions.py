"""``POST /v1/completions`` over a real socket."""

import tracemalloc
from typing import Any

import httpx
import msgspec
import pytest

from harness.events import chunks_of
from harness.scripted import ScriptedEngine
from radixd.actors.generation import OverloadedError, Prompt, TextPrompt, TokenPrompt
from radixd.api.completions import _prompts
from radixd.api.errors import ApiError

URL = "/v1/completions"


def body(**fields: Any) -> dict[str, Any]:
    """Return a request, with *fields* besides."""
    return {"model": "scripted", "prompt": "The capital of France is", **fields}


async def test_an_answer_has_the_shape_of_openai(client: httpx.AsyncClient) -> None:
    """One choice with the text, and the usage."""
    response = await client.post(URL, json=body(), headers={"X-Request-Id": "r1"})
    answer = response.json()
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "id": "cmpl-r1",
        "object": "text_completion",
        "model": "scripted",
        "choices": [
            {"index": 0, "text": "Paris is it.", "finish_reason": "stop", "logprobs": None}
        ],
        "usage": {
            "prompt_tokens": 24,
            "completion_tokens": 3,
            "total_tokens": 27,
            "prompt_tokens_details": {"cached_tokens": 5},
        },
    }


async def test_a_stream_sends_texts_and_the_usage_if_asked(client: httpx.AsyncClient) -> None:
    """The last text carries the finish reason; the usage comes in a chunk of its own."""
    options = {"include_usage": True}
    response = await client.post(URL, json=body(stream=True, stream_options=options))
    *chunks, last = chunks_of(response.text)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["text"] for choice in choices] == ["Paris", " is", " it."]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3


async def test_the_answer_is_sixteen_tokens_long_by_default(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    """As in OpenAI's API, whose clients rely on it."""
    await client.post(URL, json=body())
    await client.post(URL, json=body(max_tokens=500))
    assert engine.submitted.get_nowait().params.max_tokens == 16
    assert engine.submitted.get_nowait().params.max_tokens == 500


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("text", [TextPrompt("text")]),
        ([1, 2, 3], [TokenPrompt((1, 2, 3))]),
        (["a", "b"], [TextPrompt("a"), TextPrompt("b")]),
        ([[1, 2], [3]], [TokenPrompt((1, 2)), TokenPrompt((3,))]),
    ],
    ids=["text", "ids", "texts", "lists of ids"],
)
async def test_a_prompt_is_text_or_ids_or_a_list_of_either(
    client: httpx.AsyncClient, engine: ScriptedEngine, prompt: Any, expected: list[Prompt]
) -> None:
    """Each prompt is one request to the engine and one choice, in the order given."""
    response = await client.post(URL, json=body(prompt=prompt))
    assert response.status_code == 200, response.text
    assert [choice["index"] for choice in response.json()["choices"]] == [*range(len(expected))]
    assert response.json()["usage"]["completion_tokens"] == 3 * len(expected)
    assert [engine.submitted.get_nowait().prompt for _ in expected] == expected


async def test_a_stream_of_several_prompts_interleaves_their_choices(
    client: httpx.AsyncClient,
) -> None:
    """Each chunk says whose it is, and each choice is complete and in order."""
    options = {"include_usage": True}
    request = body(prompt=["aaaaaaaa", "bbbbbbbb"], stream=True, stream_options=options)
    *chunks, last = chunks_of((await client.post(URL, json=request)).text)
    choices = [chunk["choices"][0] for chunk in chunks]
    for index in (0, 1):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == "Paris is it."
        assert own[-1]["finish_reason"] == "stop"
    assert [choice["index"] for choice in choices] == [0, 1, 0, 1, 0, 1]
    assert last["usage"] == {
        "prompt_tokens": 16,
        "completion_tokens": 6,
        "total_tokens": 22,
        "prompt_tokens_details": {"cached_tokens": 10},
    }


async def test_several_prompts_have_ids_of_their_own(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    """The engine's ids are made from the request's, which the answer has."""
    response = await client.post(
        URL, json=body(prompt=["a", "b"]), headers={"X-Request-Id": "both"}
    )
    assert response.json()["id"] == "cmpl-both"
    ids = [engine.submitted.get_nowait().request_id for _ in range(2)]
    assert ids == ["both-0", "both-1"]


@pytest.mark.parametrize(
    "prompt", [[], [1, "a"], ["a", [1]], [1, [1]], 3, {"text": "a"}, [["a"]], [1.5]]
)
async def test_a_prompt_of_another_kind_is_refused(client: httpx.AsyncClient, prompt: Any) -> None:
    """The 400 names the prompt, or the item of it that is wrong."""
    response = await client.post(URL, json=body(prompt=prompt))
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prompt")


async def test_more_prompts_than_the_server_ever_holds_are_refused(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    """A batch that can never fit is the client's fault, not a reason to try again."""
    response = await client.post(URL, json=body(prompt=["a"] * 5))
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "prompt: holds 5 prompts; at most 4 are taken at once"
    )
    assert engine.submitted.empty()


@pytest.mark.parametrize("prompt", ["a", [1]], ids=["texts", "token ids"])
def test_too_many_prompts_are_counted_before_they_are_made(prompt: Any) -> None:
    """A million of them cost no more than the list that came."""
    given = msgspec.convert([prompt] * 100_000, tuple[str | tuple[int, ...], ...])
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match="holds 100000 prompts; at most 4"):
            _prompts(given, 4)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


async def test_a_batch_that_does_not_fit_now_leaves_nothing_behind(
    client: httpx.AsyncClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the third of three prompts is refused, the two before it are aborted."""
    submit = engine.submit

    async def submit_two(*args: Any, **kwargs: Any) -> Any:
        if engine.submitted.qsize() == 2:
            raise OverloadedError(1.0)
        return await submit(*args, **kwargs)

    monkeypatch.setattr(engine, "submit", submit_two)
    response = await client.post(
        URL, json=body(prompt=["a", "b", "c"]), headers={"X-Request-Id": "r"}
    )
    assert response.status_code == 429
    assert {engine.aborted.get_nowait() for _ in range(2)} == {"r-0", "r-1"}
    assert engine.aborted.empty()


@pytest.mark.parametrize(
    ("field", "value"), [("best_of", 2), ("echo", True), ("logprobs", 0), ("suffix", "!"), ("n", 2)]
)
async def test_what_is_not_supported_is_refused_by_name(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    """Ignoring it would answer something else than was asked."""
    response = await client.post(URL, json=body(**{field: value}))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert response.json()["error"]["code"] == "unsupported_parameter"


async def test_another_model_is_not_found(client: httpx.AsyncClient) -> None:
    """OpenAI's code for it."""
    response = await client.post(URL, json=body(model="davinci"))
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
