"""The process of a worker: loads a model, then computes one step after the other.

Started by `radixd.workers.host` as ``python -m radixd.workers.child FD`` with one end of a socket
pair.  A thread of its own reads the socket, for two reasons: the next step is there when one ends,
and when the daemon closes its end or dies, this process and what it started end at once, even in
the middle of loading.
"""

import os
import queue
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import BinaryIO

from radixd.scheduling.messages import Step
from radixd.settings import Settings
from radixd.workers import wire
from radixd.workers.models import ModelError

SPIN_COUNT = 4_000
"""How long a thread of OpenMP spins before it sleeps.  By default it spins for milliseconds, and
on few cores keeps the one that it waits for from running: beside two busy processes on two cores a
decode step took 570 ms so, and 76 ms with this.  Sleeping at once costs a decode step on a quiet
machine 37 ms instead of 23."""


def main(descriptor: int) -> None:
    """Serve the daemon at the other end of *descriptor* until it closes."""
    # Ctrl-C reaches the daemon, which decides when its worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as connection:
        frames: queue.SimpleQueue[wire.ToWorker] = queue.SimpleQueue()
        stream = connection.makefile("rb")
        threading.Thread(target=_receive, args=(stream, frames), daemon=True).start()
        try:
            order = frames.get()
            assert isinstance(order, wire.Load)
            _serve(order.settings, frames, connection)
        except ModelError as error:
            _send(connection, wire.Failed(str(error), ""))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            _send(connection, wire.Failed(reason, traceback.format_exc()))


def _serve(
    settings: Settings, frames: "queue.SimpleQueue[wire.ToWorker]", connection: socket.socket
) -> None:
    _send(connection, wire.Say("importing torch"))
    # Progress is said in whole lines, not drawn into the log.
    os.environ["TQDM_DISABLE"] = "1"
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
    # Only here, so that the daemon hears of progress before seconds of imports.
    import torch

    from radixd.workers.pytorch.loading import load

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cores())
    runner, info = load(settings, lambda text: _send(connection, wire.Say(text)))
    _send(connection, wire.Ready(info))
    while True:
        step = frames.get()
        assert isinstance(step, Step)
        _send(connection, runner.run(step))


def _receive(stream: BinaryIO, frames: "queue.SimpleQueue[wire.ToWorker]") -> None:
    try:
        while (body := wire.read_frame(stream)) is not None:
            frames.put(wire.to_worker(body))
    finally:
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _send(connection: socket.socket, message: wire.FromWorker) -> None:
    connection.sendall(wire.frame(message))


def cores() -> int:
    """Return how many CPUs this process may keep busy, by affinity and by its cgroup's quota."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        allowed = min(allowed, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no cgroup, or no quota in it, which reads "max"
    return allowed


if __name__ == "__main__":
    main(int(sys.argv[1]))
