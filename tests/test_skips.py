"""The rule about skips, seen by running pytest on small modules."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def run_pytest(folder: Path, source: str, *, ci: str) -> "subprocess.CompletedProcess[str]":
    """Run one test module with the plugin alone and return what pytest said."""
    (folder / "test_sample.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "harness.skips", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)],
        cwd=folder,
        env=os.environ | {"CI": ci, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )


SKIPPED_TEST = "import pytest\ndef test_it(): pytest.skip({reason!r})\n"
SKIPPED_MODULE = "import pytest\npytest.skip({reason!r}, allow_module_level=True)\n"


@pytest.mark.parametrize("source", [SKIPPED_TEST, SKIPPED_MODULE], ids=["test", "module"])
def test_a_skip_fails_in_ci(tmp_path: Path, source: str) -> None:
    """A reason that is no excuse turns the skip of a test or of a module into a failure."""
    result = run_pytest(tmp_path, source.format(reason="not today"), ci="true")
    assert result.returncode != 0
    assert "skipped in CI: 'not today'" in result.stdout


@pytest.mark.parametrize("reason", ["needs a GPU", "needs data: azure", "optional peer: promtool"])
def test_an_excused_skip_passes_in_ci(tmp_path: Path, reason: str) -> None:
    """What a machine may lack excuses a skip."""
    result = run_pytest(tmp_path, SKIPPED_TEST.format(reason=reason), ci="true")
    assert result.returncode == 0
    assert "1 skipped" in result.stdout


def test_any_skip_passes_elsewhere(tmp_path: Path) -> None:
    """A person at a terminal may skip what they like."""
    result = run_pytest(tmp_path, SKIPPED_TEST.format(reason="not today"), ci="")
    assert result.returncode == 0


def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    """An xfail says that a bug is known, not that a test did not run."""
    source = "import pytest\n@pytest.mark.xfail\ndef test_it(): assert False\n"
    result = run_pytest(tmp_path, source, ci="true")
    assert result.returncode == 0
    assert "1 xfailed" in result.stdout
