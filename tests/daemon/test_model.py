"""The daemon over the embedded model, asked as its users ask."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai

from harness.daemon import Daemon

MODEL = "smollm2-135m-instruct"
CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]


def ask(daemon: Daemon, path: str, **body: object) -> Any:
    """Post *body* and return the answer."""
    answer = httpx.post(f"{daemon.url}{path}", json={"model": MODEL, **body}, timeout=120)
    answer.raise_for_status()
    return answer.json()


def computed(daemon: Daemon) -> float:
    """Return the counter of computed prompt tokens."""
    page = httpx.get(f"{daemon.url}/metrics").text
    found = re.search(r'radixd_prompt_tokens_total\{source="computed"\} (\S+)', page)
    assert found
    return float(found[1])


def test_curl_gets_paris(embedded: Daemon) -> None:
    """The line that the banner shows, with another question."""
    body = json.dumps({"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_tokens": 30})
    for stream in ("false", "true"):
        answer = subprocess.run(
            [
                *("curl", "-sSN", "--fail-with-body", f"{embedded.url}/v1/chat/completions"),
                *("-H", "Content-Type: application/json"),
                *("-d", f'{body[:-1]}, "stream": {stream}}}'),
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "Paris" in answer
        assert (answer.rstrip().endswith("data: [DONE]")) == (stream == "true")


def test_the_openai_client_gets_paris(embedded: Daemon) -> None:
    """Whole and streamed, with usage where it is asked for."""
    with openai.OpenAI(base_url=f"{embedded.url}/v1", api_key="none") as client:
        whole = client.chat.completions.create(
            model=MODEL, messages=CAPITAL, temperature=0, max_tokens=30
        )
        assert "Paris" in (whole.choices[0].message.content or "")
        assert whole.usage
        assert whole.usage.prompt_tokens_details
        assert isinstance(whole.usage.prompt_tokens_details.cached_tokens, int)
        text = ""
        for chunk in client.chat.completions.create(
            model=MODEL,
            messages=CAPITAL,
            temperature=0,
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
        ):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunk.usage
        assert chunk.usage.completion_tokens == whole.usage.completion_tokens


async def test_the_asynchronous_openai_client_gets_paris(embedded: Daemon) -> None:
    """Several at once, streamed and not."""
    async with openai.AsyncOpenAI(base_url=f"{embedded.url}/v1", api_key="none") as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=MODEL, messages=CAPITAL, temperature=0, max_tokens=30
                )
                for _ in range(3)
            )
        )
        assert all("Paris" in (answer.choices[0].message.content or "") for answer in answers)
        stream = await client.chat.completions.create(
            model=MODEL, messages=CAPITAL, temperature=0, max_tokens=30, stream=True
        )
        text = ""
        async for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        assert "Paris" in text


def test_a_longer_prompt_takes_what_it_shares_from_the_cache(embedded: Daemon) -> None:
    """Within one page of the shared length."""
    start = "Once upon a time there was a king who had three daughters. " * 10
    first = ask(embedded, "/v1/completions", prompt=start, max_tokens=1)
    longer = ask(embedded, "/v1/completions", prompt=start + "The youngest", max_tokens=1)
    cached = longer["usage"]["prompt_tokens_details"]["cached_tokens"]
    # The last space may be merged with the next word, so the last token is not shared.
    assert first["usage"]["prompt_tokens"] - 1 - 16 <= cached <= first["usage"]["prompt_tokens"]


def test_a_repeated_prompt_computes_the_tokens_after_its_last_page(embedded: Daemon) -> None:
    """Exactly one where it ends on a page border."""
    for length, expected in ((100, 4), (96, 1)):
        ids = [2000 + length] + [500 + i for i in range(length - 1)]
        ask(embedded, "/v1/completions", prompt=ids, max_tokens=1)
        before = computed(embedded)
        usage = ask(embedded, "/v1/completions", prompt=ids, max_tokens=1)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == length - expected
        assert computed(embedded) - before == expected


async def test_a_burst_computes_its_prefix_once(embedded: Daemon) -> None:
    """64 requests that share 1,500 tokens: shared pages once, and each one's own tokens."""
    before = computed(embedded)
    prefix = [3000] + [600 + i % 900 for i in range(1499)]
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=embedded.url, timeout=170, limits=limits) as client:
        answers = await asyncio.gather(
            *(
                client.post(
                    "/generate",
                    json={
                        "input_ids": [*prefix, 5000 + number, 7, 8],
                        "sampling_params": {"max_new_tokens": 2, "temperature": 0},
                    },
                )
                for number in range(64)
            )
        )
    assert {answer.status_code for answer in answers} == {200}
    shared = 1500 // 16 * 16
    assert computed(embedded) - before == shared + 64 * (1503 - shared)


def test_sigterm_while_the_model_loads_ends_the_daemon() -> None:
    """There is nothing to finish: it exits at once, with 0, and leaves no worker."""
    with subprocess.Popen(
        [sys.executable, "-m", "radixd", "serve", "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any("importing torch" in line for line in process.stderr)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        process.stderr.read()
    assert children
    assert not any(_runs(int(child)) for child in children)


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()
