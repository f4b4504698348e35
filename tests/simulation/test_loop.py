"""The simulation loop itself: a seed gives one run, in any process."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from simulation.loop import DeadlockError, SimulationLoop, simulate

TESTS = Path(__file__).parents[1]
SCRIPT = "from simulation.test_loop import history; print(history(7))"


def history(seed: int) -> list[str]:
    """What six workers did, in order, when they shared one channel and one was cancelled."""
    events: list[str] = []

    async def scenario() -> None:
        send, receive = anyio.create_memory_object_stream[str](2)
        scopes: list[anyio.CancelScope] = []

        async def produce(name: str) -> None:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                for number in range(4):
                    await send.send(f"{name}{number}")
                    if number == 2:
                        await anyio.sleep(0.5)
            events.append(f"{name} cancelled" if scope.cancelled_caught else f"{name} ended")

        async def consume() -> None:
            async for item in receive:
                events.append(item)

        async with receive, anyio.create_task_group() as consumers:
            consumers.start_soon(consume)
            async with send, anyio.create_task_group() as producers:
                for name in "abcdef":
                    producers.start_soon(produce, name)
                await anyio.sleep(0.25)
                scopes[3].cancel()

    simulate(scenario, seed)
    return events


def test_a_seed_replays_in_any_process() -> None:
    """Neither hash randomisation nor memory addresses reach the schedule."""
    replays = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("0", "1", "2")
    }
    assert replays == {str(history(7))}


def test_different_seeds_take_different_paths() -> None:
    """Ten seeds give ten histories of one scenario."""
    assert len({tuple(history(seed)) for seed in range(10)}) == 10


def test_the_clock_jumps_to_the_next_timer() -> None:
    """A simulated day takes no real time, and timers fire in order at their moments."""

    async def scenario() -> list[tuple[str, float]]:
        fired: list[tuple[str, float]] = []
        clock = asyncio.get_running_loop()

        async def wait(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            fired.append((name, round(clock.time(), 6)))

        async with asyncio.TaskGroup() as group:
            group.create_task(wait("a day", 86_400))
            group.create_task(wait("a blink", 0.1))
        return fired

    started = time.perf_counter()
    assert simulate(scenario) == [("a blink", 0.1), ("a day", 86_400)]
    assert time.perf_counter() - started < 5


def test_callbacks_keep_their_order() -> None:
    """What asyncio promises of call_soon holds under every seed."""

    async def scenario() -> list[int]:
        called: list[int] = []
        for number in range(8):
            asyncio.get_running_loop().call_soon(called.append, number)
        await asyncio.sleep(1)
        return called

    for seed in range(5):
        assert simulate(scenario, seed) == list(range(8))


def test_a_deadlock_is_an_error_that_names_the_tasks() -> None:
    """Two tasks that wait for each other raise at once instead of hanging."""

    async def scenario() -> None:
        ping, pong = asyncio.Event(), asyncio.Event()

        async def answer(mine: asyncio.Event, other: asyncio.Event) -> None:
            await other.wait()
            mine.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(answer(ping, pong), name="left")
            group.create_task(answer(pong, ping), name="right")

    with pytest.raises(DeadlockError, match="left, right"):
        simulate(scenario)


async def test_an_async_test_runs_on_the_plain_loop_by_default() -> None:
    """Real time unless a test asks for another loop."""
    assert not isinstance(asyncio.get_running_loop(), SimulationLoop)
    assert type(asyncio.get_running_loop()).__module__.startswith("asyncio")


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_an_async_test_may_ask_for_virtual_time() -> None:
    """An hour passes in no time."""
    await anyio.sleep(3_600)
    assert asyncio.get_running_loop().time() == pytest.approx(3_600)


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_an_async_test_may_ask_for_the_loop_of_the_daemon() -> None:
    """The loop that serves in production serves a test too."""
    assert type(asyncio.get_running_loop()).__module__ == "uvloop"
