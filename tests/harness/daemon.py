"""`radixd serve` as its users run it: a child process, a free port, real signals."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT = 170
"""Seconds for a first start, which fetches and converts the model."""


class Daemon:
    """A running daemon."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url

    def terminate(self) -> None:
        """Send SIGTERM; does not wait."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for the exit code."""
        return self.process.wait(timeout=60)

    def memory(self) -> int:
        """Return the resident bytes of the daemon's own process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024


@contextmanager
def daemon(*flags: str) -> Iterator[Daemon]:
    """Run ``radixd serve`` with *flags* until the block ends."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RADIXD_")}
    if "RADIXD_CACHE_DIR" in os.environ:
        environment["RADIXD_CACHE_DIR"] = os.environ["RADIXD_CACHE_DIR"]
    process = subprocess.Popen(
        [sys.executable, "-m", "radixd", "serve", "--port", "0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    log: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=log.extend, args=(process.stderr,), daemon=True)
    reader.start()
    # A start that hangs ends here and not at the limit of the whole run.
    watchdog = threading.Timer(START_TIMEOUT, process.kill)
    watchdog.start()
    try:
        url = _url(process)
        watchdog.cancel()
        if url is None:
            reader.join(timeout=5)
            raise AssertionError("the daemon did not start:\n" + "".join(log))
        yield Daemon(process, url)
    finally:
        watchdog.cancel()
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()
        process.stderr.close()


def _url(process: "subprocess.Popen[str]") -> str | None:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"listens\s+(http://\S+)", line)
        if found:
            return found[1]
    return None
