"""The whole daemon in one process: HTTP, all four actors, and the simulated worker.

The clients are those that people use: ``openai``, synchronous and not, and bare HTTP.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from prometheus_client.parser import text_string_to_metric_families

from harness.events import chunks_of, data_of
from harness.http import Server, serving
from radixd.actors.engine import Engine
from radixd.api.app import create_app
from radixd.api.engine import ServingEngine
from radixd.settings import Settings
from radixd.workers.simulated import SimulatedWorker, StepCost

PAGE_SIZE = 16
MODEL = "simulated-model"
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]


def make_engine(**settings: Any) -> Engine:
    """Return an engine over a fast simulated worker that never ends by itself, not started."""
    chosen = Settings(
        worker="simulated",
        served_model_name=MODEL,
        page_size=PAGE_SIZE,
        max_model_len=4096,
        **settings,
    )
    cost = StepCost(fixed=0.0002, prefill_token=0.0, decode_row=0.0)
    return Engine(chosen, worker=SimulatedWorker(chosen, cost=cost, eos_id=None))


@dataclass(frozen=True)
class Daemon:
    """A running engine behind a socket, and clients of it."""

    engine: Engine
    server: Server
    client: httpx.AsyncClient
    sdk: openai.AsyncOpenAI
    """Does not try again by itself."""


@asynccontextmanager
async def daemon(**settings: Any) -> AsyncIterator[Daemon]:
    """Run a daemon.  No fixture: a task group must be left in the task that entered it."""
    async with (
        make_engine(**settings) as engine,
        serving(create_app(engine, keep_alive=0.01)) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client,
        openai.AsyncOpenAI(
            base_url=f"{server.url}/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx2.AsyncClient(trust_env=False),
        ) as sdk,
    ):
        yield Daemon(engine, server, client, sdk)


def sync_sdk(server: Server) -> openai.OpenAI:
    """Return OpenAI's synchronous client, for use in a thread."""
    return openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        max_retries=0,
        http_client=httpx2.Client(trust_env=False),
    )


async def counters(client: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    """Return all samples of ``/metrics`` by name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families((await client.get("/metrics")).text)
        for sample in family.samples
    }


def generation(text: str, *, stream: bool = False, **sampling: Any) -> dict[str, Any]:
    """Return a greedy request in SGLang's dialect."""
    return {"text": text, "stream": stream, "sampling_params": {"temperature": 0, **sampling}}


def cached(usage: openai.types.CompletionUsage | None) -> int:
    """Return the cached tokens, which must be a number."""
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    count = usage.prompt_tokens_details.cached_tokens
    assert isinstance(count, int)
    return count


def test_the_engine_has_the_face_that_the_application_needs() -> None:
    """A type checker compares them; this holds the line that it checks."""
    serving_engine: ServingEngine = make_engine()
    assert not serving_engine.alive


# OpenAI's clients.


async def test_the_asynchronous_client_gets_the_same_answer_streamed_and_not() -> None:
    """At temperature 0 the pieces of a stream join to the whole answer, and the usage agrees."""
    async with daemon() as running:
        whole = await running.sdk.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=24
        )
        text, usage, finish = "", None, None
        stream = await running.sdk.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            usage = chunk.usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
        assert text == whole.choices[0].message.content
        assert text
        assert finish == whole.choices[0].finish_reason == "length"
        assert whole.usage is not None
        assert usage is not None
        assert usage.completion_tokens == whole.usage.completion_tokens == 24
        assert usage.prompt_tokens == whole.usage.prompt_tokens
        assert cached(whole.usage) == 0
        assert cached(usage) == (usage.prompt_tokens - 1) // PAGE_SIZE * PAGE_SIZE


async def test_the_synchronous_client_works_too() -> None:
    """Streamed and not, from a thread of its own."""
    async with daemon() as running:

        def ask() -> tuple[str | None, str]:
            with sync_sdk(running.server) as sdk:
                whole = sdk.chat.completions.create(
                    model=MODEL, messages=QUESTION, temperature=0, max_tokens=8
                )
                chunks: Iterator[Any] = sdk.chat.completions.create(
                    model=MODEL, messages=QUESTION, temperature=0, max_tokens=8, stream=True
                )
                pieces = [c.delta.content or "" for chunk in chunks for c in chunk.choices]
                return whole.choices[0].message.content, "".join(pieces)

        whole, streamed = await asyncio.to_thread(ask)
        assert whole == streamed


async def test_an_answer_sent_back_is_found_in_the_cache() -> None:
    """The next turn of a conversation reuses prompt and answer to within one page."""
    async with daemon() as running:
        first = await running.sdk.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=40
        )
        assert first.usage is not None
        reply = first.choices[0].message
        second = await running.sdk.chat.completions.create(
            model=MODEL,
            messages=[
                *QUESTION,
                reply.model_dump(),  # type: ignore[list-item]
                {"role": "user", "content": "And of Italy?"},
            ],
            temperature=0,
            max_tokens=4,
        )
        shared = first.usage.total_tokens
        assert shared - PAGE_SIZE <= cached(second.usage) <= shared


async def test_completions_take_text_ids_and_several() -> None:
    """One text, the same as ids, and a list of it give the same continuation."""
    async with daemon() as running:
        prompt = "Once upon a time"
        text = await running.sdk.completions.create(
            model=MODEL, prompt=prompt, temperature=0, max_tokens=9
        )
        ids = await running.sdk.completions.create(
            model=MODEL, prompt=list(prompt.encode()), temperature=0, max_tokens=9
        )
        several = await running.sdk.completions.create(
            model=MODEL, prompt=[prompt, prompt], temperature=0, max_tokens=9
        )
        texts = [choice.text for answer in (text, ids, several) for choice in answer.choices]
        assert len(texts) == 4
        assert len(set(texts)) == 1


async def test_models_are_listed_and_described() -> None:
    """The client finds the served name and how long a context may be."""
    async with daemon() as running:
        models = [model async for model in running.sdk.models.list()]
        assert [model.id for model in models] == [MODEL]
        model = await running.sdk.models.retrieve(MODEL)
        assert model.to_dict()["max_model_len"] == 4096


async def test_the_client_raises_what_it_would_at_openai() -> None:
    """Each refusal is the class of exception that programs catch, with its field and code."""
    async with daemon() as running:
        with pytest.raises(openai.NotFoundError) as missing:
            await running.sdk.chat.completions.create(model="gpt-4o", messages=QUESTION)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as hot:
            await running.sdk.chat.completions.create(model=MODEL, messages=QUESTION, temperature=3)
        assert hot.value.param == "temperature"
        assert "2" in hot.value.message
        with pytest.raises(openai.BadRequestError) as long:
            await running.sdk.completions.create(model=MODEL, prompt="x" * 5000)
        assert (long.value.param, long.value.code) == ("prompt", "context_length_exceeded")
        assert "4096" in long.value.message
        with pytest.raises(openai.BadRequestError) as tools:
            await running.sdk.chat.completions.create(model=MODEL, messages=QUESTION, logprobs=True)
        assert tools.value.param == "logprobs"


async def test_a_request_id_goes_round() -> None:
    """The client reads back the id that it sent."""
    async with daemon() as running:
        answer = await running.sdk.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=1, extra_headers={"X-Request-Id": "mine"}
        )
        assert answer._request_id == "mine"
        assert answer.id == "chatcmpl-mine"


# SGLang's dialect.


async def test_generate_agrees_with_itself_in_every_form() -> None:
    """Text or ids, streamed or not: one answer, and ids that are its text's."""
    async with daemon() as running:
        prompt = "Tell me a story about a fox"
        request = generation(prompt, max_new_tokens=12)
        by_text = (await running.client.post("/generate", json=request)).json()
        as_ids = {**request, "text": None, "input_ids": list(prompt.encode())}
        by_ids = (await running.client.post("/generate", json=as_ids)).json()
        streamed = chunks_of(
            (await running.client.post("/generate", json={**request, "stream": True})).text
        )
        assert by_text["text"] == by_ids["text"] == streamed[-1]["text"]
        assert by_text["output_ids"] == by_ids["output_ids"] == streamed[-1]["output_ids"]
        assert bytes(by_text["output_ids"]).decode() == by_text["text"]
        assert by_text["meta_info"]["finish_reason"] == {"type": "length", "length": 12}
        assert by_text["meta_info"]["cached_tokens"] == 0
        assert by_ids["meta_info"]["cached_tokens"] == PAGE_SIZE
        for before, after in itertools.pairwise(streamed):
            assert after["text"].startswith(before["text"])


async def test_a_stop_string_ends_the_answer_before_it() -> None:
    """The answer is what came before, and meta_info names the string."""
    async with daemon() as running:
        request = generation("Sing", max_new_tokens=40)
        free = (await running.client.post("/generate", json=request)).json()["text"]
        stop = free[10:13]
        request = generation("Sing", max_new_tokens=40, stop=stop)
        answer = (await running.client.post("/generate", json=request)).json()
        assert answer["text"] == free[: free.index(stop)]
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


async def test_a_stop_token_is_what_matched() -> None:
    """The id that ended the answer is in meta_info, and its text is not in the answer."""
    async with daemon() as running:
        request = generation("Sing", max_new_tokens=40)
        free = (await running.client.post("/generate", json=request)).json()
        token = free["output_ids"][7]
        request = generation("Sing", max_new_tokens=40, stop_token_ids=[token])
        answer = (await running.client.post("/generate", json=request)).json()
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}
        length = free["output_ids"].index(token)
        assert answer["text"] == bytes(free["output_ids"][:length]).decode()


# Numbers.


async def test_metrics_tell_where_every_prompt_token_came_from() -> None:
    """Over HTTP the counters rise by what the answers reported, and nothing stays locked."""
    async with daemon() as running:
        usages = []
        for _ in range(3):
            response = await running.client.post(
                "/v1/completions",
                json={"model": MODEL, "prompt": "y" * 100, "max_tokens": 5},
            )
            usages.append(response.json()["usage"])
        seen = await counters(running.client)
        hits = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        prompts = sum(usage["prompt_tokens"] for usage in usages)
        assert hits == 2 * 96
        assert seen["radixd_prompt_tokens_total", "tree"] == hits
        assert seen["radixd_prompt_tokens_total", "in_flight"] == 0
        assert seen["radixd_prompt_tokens_total", "computed"] == prompts - hits
        assert seen["radixd_cache_lookup_tokens_total",] == prompts
        assert seen["radixd_cache_hit_tokens_total", "tree"] == hits
        assert seen["radixd_generated_tokens_total",] == 15
        assert seen["radixd_requests_total", "length"] == 3
        assert seen["radixd_time_to_first_token_seconds_count",] == 3


async def test_statistics_show_an_idle_engine() -> None:
    """The pages of the pool add up, no request is inside, no lease is held."""
    async with daemon() as running:
        await running.client.post("/generate", json={"text": "x" * 50})
        running.engine.drain()
        await running.engine.drained()
        books = (await running.client.get("/cache/stats")).json()
        assert sum(books["cache"]["pages"].values()) == books["cache"]["capacity_pages"]
        assert books["gate"]["requests"] == 0
        assert books["scheduler"]["running"] == books["scheduler"]["waiting"] == 0


# Ends.


async def test_leaving_a_stream_frees_the_engine() -> None:
    """A client that goes away in the middle of an answer leaves no request behind."""
    async with daemon() as running:
        request = generation("x", stream=True, max_new_tokens=4000)
        async with running.client.stream("POST", "/generate", json=request) as response:
            await anext(response.aiter_text())
        running.engine.drain()
        await running.engine.drained()
        assert (await counters(running.client))["radixd_requests_total", "abort"] == 1


async def test_one_request_too_many_is_told_to_come_back() -> None:
    """While as many requests as may be are inside, the next gets 429 and Retry-After."""
    async with daemon(max_requests=1) as running:
        request = generation("x", stream=True, max_new_tokens=4000)
        async with running.client.stream("POST", "/generate", json=request):
            refused = await running.client.post("/generate", json=request)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(refused.headers["retry-after"]) >= 1


async def test_a_draining_engine_finishes_and_refuses() -> None:
    """The running answer is complete, a new request gets 503, ready says no and health yes."""
    async with daemon() as running:
        request = generation("x", stream=True, max_new_tokens=30)
        async with running.client.stream("POST", "/generate", json=request) as response:
            pieces = response.aiter_text()
            body = await anext(pieces)
            running.engine.drain()
            refused = await running.client.post("/generate", json=request)
            assert (await running.client.get("/ready")).status_code == 503
            assert (await running.client.get("/health")).status_code == 200
            body += "".join([piece async for piece in pieces])
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert int(refused.headers["retry-after"]) >= 1
        assert chunks_of(body)[-1]["meta_info"]["completion_tokens"] == 30
        await running.engine.drained()


async def test_a_closed_engine_answers_503_everywhere() -> None:
    """An engine that has stopped is reported as such, not as a bug."""
    engine = make_engine()
    async with engine:
        pass
    async with (
        serving(create_app(engine)) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False) as client,
    ):
        for path in ("/health", "/ready", "/v1/models", f"/v1/models/{MODEL}"):
            assert (await client.get(path)).status_code == 503, path
        response = await client.post("/generate", json={"text": "x"})
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_closed"


async def test_closing_the_engine_ends_its_streams_with_an_error() -> None:
    """A client in the middle of an answer is told that it is not whole."""
    engine = make_engine()
    request = generation("x", stream=True, max_new_tokens=4000)
    async with (
        serving(create_app(engine)) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False) as client,
        AsyncExitStack() as running,
    ):
        await running.enter_async_context(engine)
        async with client.stream("POST", "/generate", json=request) as response:
            pieces = response.aiter_text()
            body = await anext(pieces)
            await running.aclose()
            body += "".join([piece async for piece in pieces])
    *_, error, done = data_of(body)
    assert done == "[DONE]"
    assert '"code":"engine_closed"' in error
