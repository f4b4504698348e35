"""How the process logs: one line an event on stderr, for people or as JSON.

structlog's lines and those of libraries that log the standard way take one path to one handler, so
both carry the time, the level and what is bound to the context, such as a request's id.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Literal

import structlog
from structlog.typing import Processor

LogFormat = Literal["auto", "text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def configure(format: LogFormat, level: LogLevel) -> None:
    """Send every log line to stderr, from *level* on; replaces what was configured before.

    ``auto`` writes text on a terminal and JSON elsewhere.  Libraries are heard from warnings on,
    and with their own chatter at ``debug``.
    """
    terminal = sys.stderr.isatty()
    threshold = logging.getLevelNamesMapping()[level.upper()]
    context: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*context, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*context, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(format, terminal),
            ],
        )
    )
    logging.basicConfig(
        handlers=[handler],
        level=threshold if level == "debug" else max(threshold, logging.WARNING),
        force=True,
    )
    logging.getLogger("radixd").setLevel(threshold)
    logging.captureWarnings(True)


def _renderers(format: LogFormat, terminal: bool) -> Sequence[Processor]:
    if format == "text" or (format == "auto" and terminal):
        # Not the formatter that it would choose itself: that one prints local variables, which
        # hold people's prompts.
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=terminal, exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
