"""The daemon: engine and HTTP server in one process, with one failure domain and one way to end.

The server runs inside the engine's task group, so that an actor's death ends the process instead of
leaving a server that answers for nobody.  Signals are ours: the first SIGTERM or SIGINT drains, a
second one stops at once.
"""

import ipaddress
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import structlog
import uvicorn

from radixd import logs
from radixd.actors.engine import Engine
from radixd.api.app import create_app
from radixd.exits import EXIT_ADDRESS, EXIT_OK, EXIT_SETTINGS, EXIT_WORKER
from radixd.settings import Settings, SettingsError
from radixd.workers.protocol import WorkerError

log = structlog.get_logger("radixd")

FLUSH_TIMEOUT = 5
"""Seconds that connections get to take the last bytes once every request has ended."""


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals alone and says when it listens."""

    def __init__(self, config: uvicorn.Config, banner: str) -> None:
        super().__init__(config)
        self._banner = banner

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing: uvicorn would raise SIGTERM again at the end, and exit with 143."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then tell people where."""
        await super().startup(sockets=sockets)
        print(self._banner, flush=True)


def serve(settings: Settings) -> int:
    """Serve until a signal ends it; returns the exit code, and says why where it is not 0."""
    logs.configure(settings.log_format, settings.log_level)
    try:
        listener = _listen(settings)
    except OSError as error:
        return _fail(EXIT_ADDRESS, f"cannot listen on {settings.host}:{settings.port}: {error}")
    code = EXIT_OK
    with listener:
        try:
            anyio.run(_serve, settings, listener, backend_options={"use_uvloop": True})
        except* SettingsError as group:
            code = _fail(EXIT_SETTINGS, _first(group))
        except* WorkerError as group:
            code = _fail(EXIT_WORKER, _first(group))
    return code


class _Signals:
    """What the next SIGTERM or SIGINT does."""

    def __init__(self, first: Callable[[], None]) -> None:
        self.next = first

    async def listen(self) -> None:
        """Do it, for ever."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for received in signals:
                log.info("signal", name=signal.Signals(received).name)
                self.next()


async def _serve(settings: Settings, listener: socket.socket) -> None:
    _warn_if_open(settings.host)
    async with anyio.create_task_group() as group:
        # While the model loads there is nothing to finish.
        signals = _Signals(group.cancel_scope.cancel)
        group.start_soon(signals.listen)
        async with Engine(settings, say=lambda text: log.info(text)) as engine:
            config = uvicorn.Config(
                create_app(engine),
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=FLUSH_TIMEOUT,
            )
            server = Server(config, _banner(engine, listener))

            def cut_off() -> None:
                engine.cut_off()
                server.should_exit = True

            def drain() -> None:
                log.info("draining", drain_timeout=settings.drain_timeout)
                signals.next = cut_off
                engine.drain()
                group.start_soon(_exit_when_drained, engine, server, settings.drain_timeout)

            signals.next = drain
            await server.serve(sockets=[listener])
        group.cancel_scope.cancel()
    log.info("stopped")


async def _exit_when_drained(engine: Engine, server: Server, drain_timeout: float) -> None:
    with anyio.move_on_after(drain_timeout) as scope:
        await engine.drained()
    if scope.cancelled_caught:
        log.warning("requests are cut off", drain_timeout=drain_timeout)
        engine.cut_off()
    server.should_exit = True


def _listen(settings: Settings) -> socket.socket:
    """Take the address before the model is loaded, so that a taken one is said at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except OSError:
        listener.close()
        raise
    return listener


def _banner(engine: Engine, listener: socket.socket) -> str:
    model = engine.model
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "127.0.0.1" if "." in host else "::1"
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    body = f'{{"model": "{model.name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return "\n".join(
        (
            "",
            f"  radixd serves {model.name} ({model.dtype} on {model.device})",
            f"  cache    {model.capacity_tokens:,} tokens in pages of {model.page_size};"
            f" a prompt and its answer may have {model.max_model_len:,}",
            f"  listens  {url}",
            "",
            f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
            "",
        )
    )


def _warn_if_open(host: str) -> None:
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        log.warning("anyone who reaches this address can use the daemon: it has no keys", host=host)


def _first(group: BaseExceptionGroup[Exception]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


def _fail(code: int, reason: str) -> int:
    print(f"radixd: {reason}", file=sys.stderr, flush=True)
    return code
