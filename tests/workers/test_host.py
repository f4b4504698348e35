"""A worker in a process of its own: how it starts, computes, dies and is closed."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import structlog.testing

from radixd.cache.messages import RequestId
from radixd.cache.tokens import pack
from radixd.scheduling.messages import Row, SamplingParams, Seat, Step
from radixd.settings import Settings
from radixd.workers.host import ProcessWorker
from radixd.workers.protocol import WorkerError

REQUEST = RequestId(1)
PROMPT = [5, 6, 7, 8, 9]


def first(number: int) -> Step:
    """A step that seats a request and computes its whole prompt."""
    seat = Seat(REQUEST, pack(range(1, 40)), SamplingParams(temperature=0.0), ())
    return Step(number, (), (seat,), (), (Row(REQUEST, 0, pack(PROMPT), sample=True),))


def following(number: int, position: int) -> Step:
    """A step that decodes one token at *position*."""
    return Step(number, (), (), (), (Row(REQUEST, position, b"", sample=True),))


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet collected does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def settings(tiny_folder: Path, tmp_path: Path) -> Settings:
    """Settings for the tiny model."""
    return Settings(model=str(tiny_folder), dtype="float32", kv_pages=64, cache_dir=str(tmp_path))


@pytest.fixture
async def worker(settings: Settings) -> AsyncIterator[ProcessWorker]:
    """A worker that has not been started; it is closed in the end."""
    worker = ProcessWorker(settings)
    yield worker
    await worker.close()


@pytest.mark.asyncio(loop_factories=["plain", "uvloop"])
async def test_a_worker_starts_computes_dies_and_starts_again(worker: ProcessWorker) -> None:
    """A killed process fails every queued step with the signal; a fresh one has an empty memory."""
    info = await worker.start()
    assert (info.kv_pages, info.vocabulary) == (64, 128)
    done = await worker.run(first(1))
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    queued = [worker.run(following(2, 5)), worker.run(following(3, 6))]
    os.kill(pid, signal.SIGKILL)

    failures = await asyncio.gather(*queued, return_exceptions=True)
    assert [str(failure) for failure in failures] == [
        "the worker process was killed by SIGKILL"
    ] * 2
    assert all(isinstance(failure, WorkerError) for failure in failures)
    with pytest.raises(WorkerError, match="SIGKILL"):
        await worker.run(following(4, 7))
    await worker.start()
    assert not is_alive(pid)
    assert (await worker.run(first(1))).tokens == done.tokens


async def test_two_steps_may_be_queued_and_answers_come_in_order(worker: ProcessWorker) -> None:
    """The second step takes as input what the first has not yet told the daemon."""
    await worker.start()
    steps = [first(1), following(2, 5), following(3, 6)]
    together = await asyncio.gather(*map(worker.run, steps))
    await worker.start()
    one_by_one = [await worker.run(step) for step in steps]

    assert [done.number for done in together] == [1, 2, 3]
    assert [done.tokens for done in together] == [done.tokens for done in one_by_one]


async def test_a_step_whose_waiter_was_cancelled_does_not_disturb_the_next(
    worker: ProcessWorker,
) -> None:
    """Answers keep to their steps when nobody waits for one of them."""
    await worker.start()
    worker.run(first(1)).cancel()

    assert (await worker.run(following(2, 5))).number == 2


async def test_closing_leaves_no_process_and_may_be_repeated(worker: ProcessWorker) -> None:
    """Even a process that is stopped is gone; what was queued fails."""
    await worker.start()
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    queued = worker.run(first(1))
    await worker.close()
    await worker.close()

    assert not is_alive(pid)
    with pytest.raises(WorkerError, match="closed"):
        await queued


async def test_a_worker_that_was_never_started_fails_when_awaited(worker: ProcessWorker) -> None:
    """Queueing itself never raises."""
    future = worker.run(first(1))

    with pytest.raises(WorkerError, match="not running"):
        await future


async def test_a_start_that_is_cancelled_leaves_no_process(settings: Settings) -> None:
    """Shutting down while a model loads does not wait for it."""
    heard = asyncio.Event()
    worker = ProcessWorker(settings, say=lambda text: heard.set())
    starting = asyncio.ensure_future(worker.start())
    await heard.wait()
    pid = worker.pid
    assert pid is not None
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting

    assert not is_alive(pid)


async def test_progress_is_said_in_words(settings: Settings) -> None:
    """Loading tells what it loads and how much KV memory it made."""
    said: list[str] = []
    worker = ProcessWorker(settings, say=said.append)
    await worker.start()
    await worker.close()

    assert any("loading" in text for text in said)
    assert any("1,024 tokens in 64 pages of 16" in text for text in said)


async def test_what_cannot_be_loaded_is_refused_with_its_reason(tmp_path: Path) -> None:
    """The reason is for people: no traceback, and the setting is named."""
    worker = ProcessWorker(Settings(model=str(tmp_path), cache_dir=str(tmp_path)))
    with pytest.raises(WorkerError, match=r"holds no config\.json") as caught:
        await worker.start()

    assert "Traceback" not in str(caught.value)
    assert worker.pid is None


async def test_a_broken_step_ends_the_process_and_logs_the_traceback(
    worker: ProcessWorker,
) -> None:
    """An error in the child is a lost worker, and the log holds its story."""
    await worker.start()
    with structlog.testing.capture_logs() as logs, pytest.raises(WorkerError, match="KeyError"):
        await worker.run(following(1, 5))

    assert any("Traceback" in entry.get("traceback", "") for entry in logs)


async def test_a_worker_does_not_outlive_its_daemon(settings: Settings) -> None:
    """A daemon that is killed takes its worker with it."""
    program = (
        "import asyncio, sys, msgspec, os, signal\n"
        "from radixd.settings import Settings\n"
        "from radixd.workers.host import ProcessWorker\n"
        "async def main():\n"
        "    settings = msgspec.json.decode(sys.argv[1], type=Settings)\n"
        "    worker = ProcessWorker(settings, say=lambda text: None)\n"
        "    await worker.start()\n"
        "    print(worker.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    daemon = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, msgspec.json.encode(settings).decode()),
        stdout=subprocess.PIPE,
    )
    out, _ = await daemon.communicate()
    # A pidfd turns readable when its process ends, so there is nothing to poll.
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(int(out))
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, ended.set)
        await asyncio.wait_for(ended.wait(), 30)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)

    assert not is_alive(int(out))


def test_the_control_process_imports_no_numerics() -> None:
    """Host and model store load without torch, transformers and numpy."""
    program = (
        "import sys, radixd.workers.host, radixd.workers.models\n"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ran.stdout.strip() == "[]"
