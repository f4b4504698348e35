"""The daemon over the simulated worker: memory, endings, and refusals."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from harness.daemon import Daemon, daemon
from radixd.exits import EXIT_ADDRESS


def body(text: str, **changes: object) -> dict[str, object]:
    """Return a request to complete *text* that goes on to its limit."""
    return {
        "model": "smollm2-135m-instruct",
        "prompt": text,
        "temperature": 0,
        "ignore_eos": True,
        **changes,
    }


def test_it_needs_no_model_and_no_other_process() -> None:
    """Neither torch nor transformers is loaded anywhere."""
    with daemon("--worker", "simulated") as running:
        assert httpx.get(f"{running.url}/ready").status_code == 200
        children = f"/proc/{running.process.pid}/task/{running.process.pid}/children"
        assert Path(children).read_text() == ""


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
async def test_a_burst_computes_its_prefix_once(policy: str) -> None:
    """64 requests that share 1,500 tokens, over HTTP, under either order."""
    with daemon("--worker", "simulated", "--policy", policy) as running:
        async with httpx.AsyncClient(
            base_url=running.url, timeout=60, limits=httpx.Limits(max_connections=64)
        ) as client:
            answers = await asyncio.gather(
                *(
                    client.post("/v1/completions", json=body("p" * 1500 + f"{n:04d}", max_tokens=4))
                    for n in range(64)
                )
            )
            assert {answer.status_code for answer in answers} == {200}
            page = (await client.get("/metrics")).text
        shared = 1500 // 16 * 16
        expected = float(shared + 64 * (1504 - shared))
        assert f'radixd_prompt_tokens_total{{source="computed"}} {expected}' in page


async def test_memory_stays_small_and_does_not_grow(simulated: Daemon) -> None:
    """Under 150 MB, and not 5 MB more after 10,000 requests."""

    async def requests(count: int) -> None:
        async with httpx.AsyncClient(base_url=simulated.url, timeout=60) as client:

            async def work(numbers: "list[int]") -> None:
                for number in numbers:
                    answer = await client.post(
                        "/v1/completions", json=body(f"request {number % 500}", max_tokens=2)
                    )
                    assert answer.status_code == 200

            await asyncio.gather(*(work(list(range(start, count, 16))) for start in range(16)))

    # Enough to fill what grows to a fixed size: allocator arenas, connection pools, the tree.
    await requests(2_000)
    before = simulated.memory()
    await requests(10_000)
    after = simulated.memory()
    assert after < 150_000_000
    assert after - before < 5_000_000


async def test_sigterm_lets_requests_finish_and_refuses_new_ones() -> None:
    """The stream that runs gets its end, a new request gets 503, the exit code is 0."""
    with daemon("--worker", "simulated") as running:
        async with (
            httpx.AsyncClient(base_url=running.url, timeout=60) as client,
            client.stream(
                "POST", "/v1/completions", json=body("run", max_tokens=200, stream=True)
            ) as stream,
        ):
            lines = stream.aiter_lines()
            await anext(lines)
            running.terminate()
            refused = await client.post("/v1/completions", json=body("late"))
            while refused.status_code == 200:  # The signal may arrive after the request.
                refused = await client.post("/v1/completions", json=body("late"))
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) >= 1
            assert (await client.get("/ready")).status_code == 503
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        text = "".join(
            choice["text"] for line in rest[:-1] for choice in json.loads(line[6:])["choices"]
        )
        assert 190 <= len(text) <= 200
        assert running.wait() == 0


async def test_a_second_signal_stops_at_once() -> None:
    """Nobody has to wait for a long answer."""
    with daemon("--worker", "simulated") as running:
        async with (
            httpx.AsyncClient(base_url=running.url, timeout=60) as client,
            client.stream(
                "POST", "/v1/completions", json=body("long", max_tokens=30_000, stream=True)
            ) as stream,
        ):
            lines = stream.aiter_lines()
            await anext(lines)
            running.terminate()
            while (await client.get("/ready")).status_code == 200:
                pass
            running.process.send_signal(signal.SIGINT)
            rest = [line async for line in lines if line]
            assert '"aborted"' in rest[-2]
        assert running.wait() == 0


def test_a_taken_port_is_said_at_once() -> None:
    """One line, and an exit code of its own."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-m", "radixd", "serve", "--worker", "simulated", "--port", port],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ended.returncode == EXIT_ADDRESS
    assert re.fullmatch(rf"radixd: cannot listen on 127\.0\.0\.1:{port}: .*\n", ended.stderr)


def test_the_control_process_imports_no_engine() -> None:
    """Neither torch nor transformers nor numpy, with either worker."""
    script = (
        "import sys, radixd.daemon, radixd.workers.host\n"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"
