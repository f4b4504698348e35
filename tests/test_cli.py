"""The command line: what it reads, what it refuses, and how it says so."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner, Result

from radixd import __version__
from radixd.cli import app, check_variables, flag, parse_size, variable
from radixd.settings import Settings, SettingsError


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in Settings.__struct_fields__:
        monkeypatch.delenv(variable(setting), raising=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that the command handed to the daemon, which ends at once with code 7."""
    calls: list[Settings] = []

    def serve(settings: Settings) -> int:
        calls.append(settings)
        return 7

    monkeypatch.setattr("radixd.daemon.serve", serve)
    return calls


def run(*arguments: str, **environment: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, arguments, env=environment)


def test_the_defaults_are_those_of_the_settings(served: list[Settings]) -> None:
    """Without a flag the daemon gets exactly the documented defaults, and its code is ours."""
    assert run("serve").exit_code == 7
    assert served == [Settings()]


def test_every_setting_has_a_flag_and_a_variable() -> None:
    """A setting that could not be set from outside would be missing from the help."""
    help_text = run("serve", "--help").stdout
    for setting in Settings.__struct_fields__:
        assert f"  {flag(setting)} " in help_text
        assert variable(setting) in help_text


def test_flags_and_variables_reach_the_daemon(served: list[Settings]) -> None:
    """A value is converted to its type, and a flag wins over its variable."""
    run(
        *("serve", "--worker", "simulated", "--page-size", "4", "--disable-cache"),
        RADIXD_PAGE_SIZE="8",
        RADIXD_KV_MEMORY="512MiB",
        RADIXD_DRAIN_TIMEOUT="1.5",
        RADIXD_SHARE_IN_FLIGHT="next-step",
    )
    assert served == [
        Settings(
            worker="simulated",
            page_size=4,
            disable_cache=True,
            kv_memory=512 << 20,
            drain_timeout=1.5,
            share_in_flight="next-step",
        )
    ]


def test_an_impossible_setting_is_refused_with_its_reason(served: list[Settings]) -> None:
    """What the settings refuse comes out on stderr under the name of the flag, with code 2."""
    result = run("serve", "--page-size", "0")
    assert result.exit_code == 2
    assert result.stderr == "radixd: --page-size: 0 is not within 1 to 1024\n"
    assert not served


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--worker", "gpu"], {}),
        (["--port", "many"], {}),
        (["--kv-memory", "3 apples"], {}),
        ([], {"RADIXD_POLICY": "random"}),
        (["--pagesize", "4"], {}),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(
    served: list[Settings], arguments: list[str], environment: dict[str, str]
) -> None:
    """Whether by flag or variable, and so is a flag that does not exist."""
    result = run("serve", *arguments, **environment)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert not served


def test_an_unknown_variable_is_refused_by_name(served: list[Settings]) -> None:
    """A misspelt variable would otherwise leave a default in place without a word."""
    result = run("serve", RADIXD_PAGE_SIZ="4")
    assert result.exit_code == 2
    assert "RADIXD_PAGE_SIZ: this variable names no setting" in result.stderr
    assert "did you mean RADIXD_PAGE_SIZE?" in result.stderr
    assert not served


def test_variables_of_others_are_left_alone() -> None:
    """Only our prefix is ours, and the folder of test data belongs to the tests."""
    check_variables({"PATH": "/bin", "RADIXD_DATA": "/data", "RADIXD_CACHE_DIR": "/cache"})
    with pytest.raises(SettingsError, match="RADIXD_DATUM"):
        check_variables({"RADIXD_DATUM": ""})


@pytest.mark.parametrize(
    ("text", "size"),
    [("1048576", 1 << 20), ("512MiB", 512 << 20), ("2GiB", 2 << 30), ("4 kib", 4096), ("7B", 7)],
)
def test_sizes_are_read_in_binary_units(text: str, size: int) -> None:
    """A number is bytes; KiB to TiB multiply it."""
    assert parse_size(text) == size


def test_an_unknown_model_cannot_be_pulled() -> None:
    """The reason names what could be pulled."""
    result = run("models", "pull", "no-such-model")
    assert result.exit_code == 1
    assert result.stderr.startswith("radixd: no-such-model is not an embedded model")


def test_the_command_answers_without_an_engine() -> None:
    """The version comes without the imports that serving needs."""
    script = (
        "import sys; from radixd.__main__ import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'starlette', 'radixd.daemon'} & sys.modules.keys()"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"radixd {__version__}\n"
