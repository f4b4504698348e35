"""What the process writes to stderr, seen from outside in a process of its own."""

import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime

from radixd.logs import LogFormat, LogLevel

TWO_LINES = """
import logging, structlog, warnings
with structlog.contextvars.bound_contextvars(request_id="r-1"):
    structlog.get_logger("radixd.api").info("answered", status=200)
    logging.getLogger("uvicorn.error").warning("odd %s", "bytes")
    logging.getLogger("uvicorn.error").info("chatter")
"""
FAILURE = """
import structlog
def fail(prompt):
    raise ValueError("no\\nway")
try:
    fail("my " + "secret")
except ValueError:
    structlog.get_logger("radixd").exception("failed")
"""


def run(script: str, format: LogFormat, level: LogLevel = "info") -> list[str]:
    """Return the lines that the script logs."""
    setup = f"from radixd import logs; logs.configure({format!r}, {level!r})\n"
    result = subprocess.run(
        [sys.executable, "-c", setup + script], capture_output=True, text=True, check=True
    )
    assert result.stdout == ""
    return result.stderr.splitlines()


def run_on_terminal(script: str, format: LogFormat) -> str:
    """Return what the script writes when its stderr is a terminal."""
    setup = f"from radixd import logs; logs.configure({format!r}, 'info')\n"
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        try:
            subprocess.run([sys.executable, "-c", setup + script], stderr=theirs, check=True)
        finally:
            os.close(theirs)
        return terminal.read(65_536).decode()


def test_json_lines_carry_time_level_and_context() -> None:
    """Ours and a library's alike: one object a line, in UTC, with the request's id."""
    ours, theirs = (json.loads(line) for line in run(TWO_LINES, "json"))
    assert ours["event"] == "answered"
    assert ours["status"] == 200
    assert ours["logger"] == "radixd.api"
    assert theirs["event"] == "odd bytes"
    assert theirs["logger"] == "uvicorn.error"
    assert theirs["level"] == "warning"
    for line in (ours, theirs):
        assert line["request_id"] == "r-1"
        assert (
            datetime.fromisoformat(line["timestamp"]).utcoffset() == datetime.now(UTC).utcoffset()
        )


def test_auto_is_json_where_nobody_reads_along() -> None:
    """A pipe or a file gets what programs read."""
    assert all(json.loads(line) for line in run(TWO_LINES, "auto"))


def test_auto_is_coloured_text_on_a_terminal() -> None:
    """People get one readable line, in colour."""
    written = run_on_terminal(TWO_LINES, "auto")
    assert "answered" in written
    assert "\x1b[" in written
    assert not written.lstrip().startswith("{")


def test_text_outside_a_terminal_has_no_colours() -> None:
    """Escape codes in a file help nobody."""
    first, _ = run(TWO_LINES, "text")
    assert "answered" in first
    assert "request_id=r-1" in first
    assert "\x1b" not in first


def test_the_level_decides_what_is_heard() -> None:
    """From warning on we are quiet, and at debug the libraries talk as well."""
    assert [json.loads(line)["event"] for line in run(TWO_LINES, "json", "warning")] == [
        "odd bytes"
    ]
    assert "chatter" in "".join(run(TWO_LINES, "json", "debug"))


def test_an_exception_is_one_json_line() -> None:
    """The traceback travels inside the line."""
    (line,) = run(FAILURE, "json")
    assert "ValueError: no\nway" in json.loads(line)["exception"]


def test_a_traceback_shows_no_local_variables() -> None:
    """They hold people's prompts."""
    for format in ("json", "text"):
        written = "\n".join(run(FAILURE, format))
        assert "ValueError" in written
        assert "my secret" not in written


def test_a_python_warning_is_a_log_line() -> None:
    """Whoever reads the lines as JSON meets nothing else."""
    script = "import warnings; warnings.warn('old ways')"
    (line,) = run(script, "json")
    assert "old ways" in json.loads(line)["event"]
