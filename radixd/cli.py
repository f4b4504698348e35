"""The command line: flags and ``RADIXD_*`` variables become `Settings`, and a command runs.

Each setting has one flag and one variable, made from its name and type.  What a command needs is
imported when it runs, so ``--help`` and ``--version`` are quick and need no engine.
"""

import difflib
import inspect
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, get_type_hints

import typer

from radixd import __version__
from radixd.exits import EXIT_FAILURE, EXIT_SETTINGS
from radixd.settings import DEFAULT_MODEL, Settings, SettingsError

HELP: Final = {
    "model": "Embedded model, folder, GGUF file or hub id (owner/name).",
    "served_model_name": "What the API calls the model; by default its own name.",
    "tokenizer": "A tokenizer.json to use in place of the model's.",
    "chat_template": "A Jinja template to use in place of the model's.",
    "worker": "What computes: PyTorch, or a simulated GPU that needs no model.",
    "dtype": "Number format of weights and cache.",
    "host": "Address to listen on; 0.0.0.0 opens the daemon to the network.",
    "port": "Port to listen on; 0 takes a free one.",
    "page_size": "Tokens in one page of the cache.",
    "kv_pages": "Pages of the cache; by default what the memory allows.",
    "kv_memory": "Memory of the cache, such as 2GiB or 512MiB; in place of --kv-pages.",
    "max_model_len": "Longest prompt plus answer in tokens; by default the model's own.",
    "policy": "Who runs next: the first to come, or the longest cached prefix.",
    "share_in_flight": "When a request may use a prefix that another one still computes.",
    "max_running": "Requests that compute at the same time.",
    "max_step_tokens": "Tokens of one forward pass.",
    "max_requests": "Requests at one time, waiting ones included; more are refused.",
    "disable_cache": "Compute every prompt in full.",
    "drain_timeout": "Seconds that running requests get to finish after SIGTERM.",
    "cache_dir": "Where models are kept; by default the user's cache directory.",
    "log_format": "auto is text on a terminal and JSON elsewhere.",
    "log_level": "The least severe lines to log.",
}
"""One line for each setting."""

_PREFIX: Final = "RADIXD_"
_NOT_SETTINGS: Final = frozenset({"RADIXD_DATA"})
"""Variables with our prefix that are not the daemon's: the data sets of tests and benchmarks."""

_SIZE: Final = re.compile(r"(\d+)\s*(|B|KiB|MiB|GiB|TiB)", re.IGNORECASE)
_UNITS: Final = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def parse_size(text: str) -> int:
    """Return the bytes that a size such as ``2GiB``, ``512MiB`` or ``1048576`` means."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no size; write 2GiB, 512MiB or a number of bytes")
    return int(match[1]) * _UNITS[match[2].lower()]


def variable(setting: str) -> str:
    """The environment variable of a setting."""
    return _PREFIX + setting.upper()


def flag(setting: str) -> str:
    """The command-line flag of a setting."""
    return "--" + setting.replace("_", "-")


def check_variables(environment: Mapping[str, str]) -> None:
    """Raise `SettingsError` for a variable that looks like a setting and is none."""
    known = {variable(setting) for setting in Settings.__struct_fields__}
    for name in sorted(environment):
        if name.startswith(_PREFIX) and name not in known | _NOT_SETTINGS:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingsError(name, f"this variable names no setting{hint}")


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
models = typer.Typer(help="The models that the daemon can serve.", no_args_is_help=True)
app.add_typer(models, name="models")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"radixd {__version__}")
        raise typer.Exit


@app.callback()
def radixd(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """A language-model daemon that never computes the same prefix twice."""


def serve(**values: Any) -> None:
    """Serve a model through the OpenAI API until a signal ends it.

    Each flag has a variable; a flag wins over its variable.
    """
    settings = Settings(**values)
    try:
        check_variables(os.environ)
        settings.check()
    except SettingsError as error:
        name = flag(error.setting) if error.setting in HELP else error.setting
        raise _failure(f"{name}: {error.reason}", EXIT_SETTINGS) from error
    from radixd.daemon import serve as serve_until_signalled

    raise typer.Exit(serve_until_signalled(settings))


def _parameter(setting: str) -> inspect.Parameter:
    size = setting == "kv_memory"
    option = typer.Option(
        flag(setting),
        envvar=variable(setting),
        help=HELP[setting],
        parser=parse_size if size else None,
        metavar="SIZE" if size else None,
    )
    return inspect.Parameter(
        setting,
        inspect.Parameter.KEYWORD_ONLY,
        default=getattr(Settings(), setting),
        annotation=Annotated[get_type_hints(Settings)[setting], option],
    )


# typer reads flags from a signature; one made from the settings cannot disagree with them.
serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [_parameter(setting) for setting in Settings.__struct_fields__]
)
app.command()(serve)


@models.command()
def pull(
    name: Annotated[str, typer.Argument(help="An embedded model.")] = DEFAULT_MODEL,
    cache_dir: Annotated[
        str | None,
        typer.Option(flag("cache_dir"), envvar=variable("cache_dir"), help=HELP["cache_dir"]),
    ] = None,
) -> None:
    """Fetch an embedded model, check it, and print the path of its file."""
    from radixd.workers.models import ModelError, cache_folder
    from radixd.workers.models import pull as fetch

    try:
        typer.echo(fetch(name, cache_folder(cache_dir), _say))
    except ModelError as error:
        raise _failure(str(error), EXIT_FAILURE) from error


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _failure(reason: str, code: int) -> typer.Exit:
    typer.echo(f"radixd: {reason}", err=True)
    return typer.Exit(code)
