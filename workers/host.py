"""A worker in a process of its own, so that nothing in it can stop the daemon.

Holds the daemon's end of a socket pair.  Steps are written as they come and answered in order, so
the answers need no numbers: the oldest waiting future takes the next one.  When the process ends,
however it ends, every waiting future fails.

Knows frames and processes, nothing of models: the control process imports neither torch nor
transformers.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar, assert_never

import msgspec
import structlog

from radixd.scheduling.messages import Step, StepDone
from radixd.settings import Settings
from radixd.workers import wire
from radixd.workers.models import Say
from radixd.workers.protocol import WorkerError, WorkerInfo

log = structlog.get_logger("radixd.worker")

_T = TypeVar("_T")

_EXIT_SECONDS = 5.0
"""How long a process may take to be gone after its socket closed or it was killed."""


class ProcessWorker:
    """Computes steps in a child process; see `radixd.workers.protocol.Worker`.

    *say* takes progress of loading; by default it goes to the log, as what the process prints does.
    """

    def __init__(self, settings: Settings, *, say: Say | None = None) -> None:
        self._settings = settings
        self._say: Say = say or log.info
        self._process: _Process | None = None

    @property
    def pid(self) -> int | None:
        """Number of the process that takes steps now; None if there is none."""
        return None if self._process is None else self._process.pid

    async def start(self) -> WorkerInfo:
        """Start a process and wait until its model is loaded."""
        await self.close()
        self._process = await _spawn(self._say)
        try:
            return await self._process.load(self._settings)
        except BaseException:
            await self.close()
            raise

    def run(self, step: Step) -> "asyncio.Future[StepDone]":
        """Send *step* now; the future takes what it sampled."""
        if self._process is None:
            future: asyncio.Future[StepDone] = _quiet(asyncio.get_running_loop().create_future())
            future.set_exception(WorkerError("the worker is not running"))
            return future
        return self._process.run(step)

    async def close(self) -> None:
        """End the process and what it started; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()


async def _spawn(say: Say) -> "_Process":
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "radixd.workers.child",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException as error:
            # A process that was started all the same ends with its socket.
            writer.close()
            if isinstance(error, OSError):
                raise WorkerError(f"its process could not be started: {error}") from error
            raise
    return _Process(process, reader, writer, say)


class _Process:
    """One life of a worker process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        say: Say,
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._reader = reader
        self._writer = writer
        self._say = say
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[WorkerInfo] = _quiet(loop.create_future())
        self._waiting: deque[asyncio.Future[StepDone]] = deque()
        self._lost: WorkerError | None = None
        self._failed: wire.Failed | None = None
        self._tasks = [_task(self._receive()), _task(self._print())]

    async def load(self, settings: Settings) -> WorkerInfo:
        self._writer.write(wire.frame(wire.Load(settings)))
        return await self._ready

    def run(self, step: Step) -> "asyncio.Future[StepDone]":
        future: asyncio.Future[StepDone] = _quiet(asyncio.get_running_loop().create_future())
        if self._lost is not None:
            future.set_exception(self._lost)
        else:
            self._waiting.append(future)
            self._writer.write(wire.frame(step))
        return future

    async def close(self) -> None:
        self._lose(WorkerError("the worker was closed"))
        # The process sees the end of its socket and kills its group; the second kill is for one
        # that cannot, being stopped or stuck.
        self._writer.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _EXIT_SECONDS)
        self._kill()
        await self._process.wait()
        await asyncio.gather(*self._tasks)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _receive(self) -> None:
        try:
            while True:
                (length,) = wire.HEADER.unpack(await self._reader.readexactly(wire.HEADER.size))
                self._take(wire.from_worker(await self._reader.readexactly(length)))
        except (asyncio.IncompleteReadError, OSError):
            pass  # the process has closed its end: it is gone or about to be
        except msgspec.DecodeError as error:
            self._lose(WorkerError(f"the worker process sent what is no message: {error}"))
        finally:
            # Whatever is left of it must not go on, nor hold its memory.
            self._kill()
            status = await self._process.wait()
            self._lose(WorkerError(self._story(status)))

    def _take(self, message: wire.FromWorker) -> None:
        match message:
            case StepDone():
                future = self._waiting.popleft()
                # Whoever waited may have been cancelled, and the future with it.
                if not future.done():
                    future.set_result(message)
            case wire.Say(text):
                self._say(text)
            case wire.Ready(info):
                if not self._ready.done():
                    self._ready.set_result(info)
            case wire.Failed():
                self._failed = message
                if message.traceback:
                    log.error("worker failed", traceback=message.traceback)
            case _:
                assert_never(message)

    def _story(self, status: int) -> str:
        if self._failed is not None:
            return self._failed.reason
        if status < 0:
            return f"the worker process was killed by {signal.Signals(-status).name}"
        return f"the worker process ended with exit status {status}"

    def _lose(self, error: WorkerError) -> None:
        if self._lost is None:
            self._lost = error
        if not self._ready.done():
            self._ready.set_exception(self._lost)
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(self._lost)

    async def _print(self) -> None:
        """Pass on what the process prints, line by line."""
        assert self._process.stdout is not None
        rest = b""
        while block := await self._process.stdout.read(65_536):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                _log_line(line)
        if rest:
            _log_line(rest)


def _log_line(line: bytes) -> None:
    log.info("worker printed", line=line.decode(errors="replace").rstrip())


def _task(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    return asyncio.get_running_loop().create_task(work)


def _quiet(future: "asyncio.Future[_T]") -> "asyncio.Future[_T]":
    """Let *future* fail unheard: a step that nobody awaits any more is no error of its own."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
