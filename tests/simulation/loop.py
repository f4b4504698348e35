"""A deterministic asyncio event loop: time is virtual, and a seed draws the schedule.

Nothing waits: when no task can step, the clock jumps to the next timer.  When there is no timer
either, the program can never move again, and the loop says so.  The loop knows nothing outside
itself, so a scenario that waits for a thread, a socket or a child process looks deadlocked to it.
"""

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class DeadlockError(AssertionError):
    """Every task waits and no timer is pending; the message names the tasks."""


def simulate(scenario: Callable[[], Coroutine[Any, Any, T]], seed: int = 0) -> T:
    """Run the scenario to its end on a new loop whose schedule is drawn from the seed."""
    with asyncio.Runner(loop_factory=lambda: SimulationLoop(seed)) as runner:
        return runner.run(scenario())


class SimulationLoop(asyncio.SelectorEventLoop):
    """Chooses by a seed which of the ready tasks step in one turn of the loop, and in which order.

    A turn runs at least one ready step and defers the others, so any interleaving can happen, one
    that starves a task for some turns included.  Callbacks that are no task's step keep the order
    in which they were scheduled, which asyncio guarantees.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self, seed: int = 0) -> None:
        self._now = 0.0
        self._random = random.Random(seed)
        self._births: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._next_birth = count()
        super().__init__(_NeverWaits(self))

    def time(self) -> float:
        """The virtual clock in seconds; it starts at zero."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the virtual clock forward."""
        self._now += seconds

    def create_task(
        self, coro: Coroutine[Any, Any, Any] | Generator[Any, Any, Any], **kwargs: Any
    ) -> asyncio.Task[Any]:
        """Create a task and note when it was born."""
        task: asyncio.Task[Any] = super().create_task(coro, **kwargs)
        self._births[task] = next(self._next_birth)
        return task

    def _run_once(self) -> None:
        callbacks: list[asyncio.Handle] = []
        steps: list[tuple[int, asyncio.Handle]] = []
        for handle in self._ready:
            task = _task_of(handle)
            if task is None:
                callbacks.append(handle)
            else:
                steps.append((self._births[task], handle))
        # asyncio and anyio keep tasks in sets, whose order follows memory addresses; a draw from
        # the order of birth is the same in every process.
        steps.sort(key=lambda step: step[0])
        self._random.shuffle(steps)
        chosen = self._random.randint(1, len(steps)) if steps else 0
        self._ready = deque(callbacks + [handle for _, handle in steps[:chosen]])
        super()._run_once()  # type: ignore[misc]
        self._ready.extendleft(handle for _, handle in steps[chosen:])


class _NeverWaits(selectors.DefaultSelector):
    """Answers at once: it polls, and turns the time to wait into a jump of the clock."""

    def __init__(self, loop: SimulationLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            tasks = asyncio.all_tasks(self._loop)
            names = ", ".join(sorted(task.get_name() for task in tasks))
            raise DeadlockError(f"every task waits and no timer is pending: {names}")
        self._loop.advance(timeout)
        return ready


def _task_of(handle: asyncio.Handle) -> asyncio.Task[Any] | None:
    """The task that the handle steps or wakes, None for any other callback."""
    owner: object = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
    return owner if isinstance(owner, asyncio.Task) else None
