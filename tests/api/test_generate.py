"""``POST /generate`` as SGLang's clients use it, over a real socket."""

from typing import Any

import httpx
import pytest

from harness.events import chunks_of
from harness.scripted import ScriptedEngine
from radixd.actors.generation import (
    GenerationParams,
    InvalidRequestError,
    TextPrompt,
    TokenPrompt,
)

URL = "/generate"
TEXT = {"text": "The capital of France is"}


async def test_an_answer_has_the_shape_of_sglang(client: httpx.AsyncClient) -> None:
    """Text, ids, and a meta_info that says how it ended and what was cached."""
    response = await client.post(URL, json=TEXT, headers={"X-Request-Id": "r1"})
    answer = response.json()
    assert answer["meta_info"].pop("e2e_latency") > 0
    assert answer == {
        "text": "Paris is it.",
        "output_ids": [101, 102, 103],
        "meta_info": {
            "id": "r1",
            "finish_reason": {"type": "stop", "matched": 103},
            "prompt_tokens": 24,
            "completion_tokens": 3,
            "cached_tokens": 5,
        },
    }


async def test_a_stream_repeats_the_whole_answer_so_far(client: httpx.AsyncClient) -> None:
    """Texts and ids grow, and only the last event has a finish reason."""
    events = chunks_of((await client.post(URL, json={**TEXT, "stream": True})).text)
    assert [event["text"] for event in events] == ["Paris", "Paris is", "Paris is it."]
    assert [event["output_ids"] for event in events] == [[101], [101, 102], [101, 102, 103]]
    assert [event["meta_info"]["completion_tokens"] for event in events] == [1, 2, 3]
    reasons = [event["meta_info"]["finish_reason"] for event in events]
    assert reasons == [None, None, {"type": "stop", "matched": 103}]
    assert all(event["meta_info"]["cached_tokens"] == 5 for event in events)


async def test_a_stop_string_and_a_length_are_told_apart(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    """What matched is the string that the client gave; a cut answer says its length."""
    engine.script.stop_string = "END"
    answer = (await client.post(URL, json=TEXT)).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "END"}
    engine.script.finish = "length"
    engine.script.stop_string = None
    answer = (await client.post(URL, json=TEXT)).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


@pytest.mark.parametrize(
    ("sampling", "params"),
    [
        (None, GenerationParams(max_tokens=128)),
        ({}, GenerationParams(max_tokens=128)),
        ({"max_new_tokens": None, "temperature": None}, GenerationParams(max_tokens=128)),
        (
            {
                "max_new_tokens": 5,
                "temperature": 0,
                "top_p": 0.9,
                "top_k": -1,
                "stop": "x",
                "stop_token_ids": [1],
                "ignore_eos": True,
                "seed": 3,
            },
            GenerationParams(
                max_tokens=5,
                temperature=0.0,
                top_p=0.9,
                top_k=0,
                stop=("x",),
                stop_token_ids=(1,),
                ignore_eos=True,
                seed=3,
            ),
        ),
        ({"sampling_seed": 4}, GenerationParams(max_tokens=128, seed=4)),
    ],
    ids=["null", "empty", "nulls", "all", "sampling_seed"],
)
async def test_sampling_params_default_as_in_sglang(
    client: httpx.AsyncClient,
    engine: ScriptedEngine,
    sampling: dict[str, Any] | None,
    params: GenerationParams,
) -> None:
    """128 new tokens, temperature 1, and -1 for all tokens."""
    response = await client.post(URL, json={**TEXT, "sampling_params": sampling})
    assert response.status_code == 200, response.text
    assert engine.submitted.get_nowait().params == params


async def test_a_prompt_is_text_or_ids(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    """Both forms reach the engine as they stand."""
    await client.post(URL, json=TEXT)
    await client.post(URL, json={"input_ids": [1, 2, 3]})
    assert engine.submitted.get_nowait().prompt == TextPrompt("The capital of France is")
    assert engine.submitted.get_nowait().prompt == TokenPrompt((1, 2, 3))


async def test_what_sglangs_benchmark_sends_is_accepted(client: httpx.AsyncClient) -> None:
    """Fields at the values that its client always sends change nothing."""
    request = {
        **TEXT,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True},
        "stream": True,
        "lora_path": None,
        "return_logprob": False,
        "return_routed_experts": False,
        "logprob_start_len": -1,
        "image_data": None,
    }
    assert (await client.post(URL, json=request)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "header_out"),
    [({}, "mine"), ({"X-Request-Id": "theirs"}, "theirs")],
    ids=["alone", "beside the header"],
)
async def test_rid_names_the_request(
    client: httpx.AsyncClient,
    engine: ScriptedEngine,
    headers: dict[str, str],
    header_out: str,
) -> None:
    """The answer has the rid; the header is the client's, or else the rid too."""
    response = await client.post(URL, json={**TEXT, "rid": "mine"}, headers=headers)
    assert response.json()["meta_info"]["id"] == "mine"
    assert engine.submitted.get_nowait().request_id == "mine"
    assert response.headers["x-request-id"] == header_out


@pytest.mark.parametrize(
    ("request_body", "param"),
    [
        ({}, "text"),
        ({**TEXT, "input_ids": [1]}, "text"),
        ({"text": ["a", "b"]}, "text"),
        ({"input_ids": [[1], [2]]}, "input_ids[0]"),
        ({**TEXT, "rid": "é"}, "rid"),
        ({**TEXT, "rid": ""}, "rid"),
        ({**TEXT, "colour": 1}, "colour"),
        ({**TEXT, "return_logprob": True}, "return_logprob"),
        ({**TEXT, "sampling_params": {"colour": 1}}, "sampling_params.colour"),
        ({**TEXT, "sampling_params": {"n": 2}}, "sampling_params.n"),
        ({**TEXT, "sampling_params": {"regex": "a*"}}, "sampling_params.regex"),
        ({**TEXT, "sampling_params": {"top_p": "x"}}, "sampling_params.top_p"),
        ({**TEXT, "sampling_params": [{}]}, "sampling_params"),
    ],
)
async def test_a_bad_field_is_refused_by_name(
    client: httpx.AsyncClient, engine: ScriptedEngine, request_body: dict[str, Any], param: str
) -> None:
    """The 400 has the path of the field."""
    response = await client.post(URL, json=request_body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert engine.submitted.empty()


@pytest.mark.parametrize(
    ("field", "request_body", "param"),
    [
        ("max_tokens", TEXT, "sampling_params.max_new_tokens"),
        ("top_k", TEXT, "sampling_params.top_k"),
        ("prompt", TEXT, "text"),
        ("prompt", {"input_ids": [1]}, "input_ids"),
        ("seed", {**TEXT, "sampling_params": {"seed": 1}}, "sampling_params.seed"),
        (
            "seed",
            {**TEXT, "sampling_params": {"sampling_seed": 1}},
            "sampling_params.sampling_seed",
        ),
    ],
)
async def test_the_engines_refusal_names_the_clients_field(
    client: httpx.AsyncClient,
    engine: ScriptedEngine,
    field: str,
    request_body: dict[str, Any],
    param: str,
) -> None:
    """A client that sent max_new_tokens is not told about a max_tokens that it never sent."""
    engine.script.submit_error = InvalidRequestError(field, "must be another")
    response = await client.post(URL, json=request_body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["message"] == f"{param}: must be another"
