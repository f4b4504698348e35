"""The image, built without Docker: each step of the Dockerfile is run as a command.

A virtual environment stands for the base image and a folder for its file system.  The step that
makes the user is not run, since it would make one on this machine.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

Instruction = tuple[str, str]
"""A keyword and what follows it."""


def instructions() -> list[Instruction]:
    """The lines of the Dockerfile that are no comments."""
    lines = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    steps = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return [(keyword, rest) for keyword, _, rest in steps]


def only(keyword: str) -> str:
    """What follows the one instruction of this kind."""
    (rest,) = (rest for found, rest in instructions() if found == keyword)
    return rest


class Image:
    """Runs instructions on a folder that stands for the image's file system."""

    def __init__(self, folder: Path, arguments: Mapping[str, str]) -> None:
        self.folder = folder
        self.arguments = arguments
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RADIXD_")}
        kept.pop("PYTHONPATH", None)
        path = os.pathsep.join((str(folder / "venv" / "bin"), os.defpath))
        self.environment = kept | {"PATH": path, "HOME": str(folder)}

    def build(self) -> None:
        """Take every step in order."""
        for keyword, rest in instructions():
            if keyword == "ARG":
                name, _, default = rest.partition("=")
                self.environment[name] = self.arguments.get(name, default)
            elif keyword == "ENV":
                self.environment |= dict(pair.split("=", 1) for pair in rest.split())
            elif keyword == "COPY":
                source, target = rest.split()
                assert source == "."
                copy_context(self.place(target))
            elif keyword == "RUN" and not rest.startswith("useradd "):
                self.run(["sh", "-c", rest.replace("/src", str(self.place("/src")))])

    def place(self, path: str) -> Path:
        """Where an absolute path of the image lies on this machine."""
        return self.folder / path.lstrip("/")

    def run(self, command: list[str]) -> str:
        """Run a command in the image and return what it printed."""
        result = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout


def copy_context(target: Path) -> None:
    """Copy what `.dockerignore` lets in: it refuses everything and then names exceptions."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    target.mkdir()
    for line in lines:
        source = ROOT / line.removeprefix("!")
        if line.startswith("!") and source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target / source.name, symlinks=True, ignore=ignore)
        elif line.startswith("!"):
            shutil.copy(source, target)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image without PyTorch: the steps are the same, and the download is small."""
    image = Image(tmp_path_factory.mktemp("image"), {"EXTRAS": ""})
    image.build()
    return image


def test_the_image_runs_the_command(image: Image) -> None:
    """The installed command answers, and knows the subcommand that the image starts."""
    entry: list[str] = json.loads(only("ENTRYPOINT"))
    command: list[str] = json.loads(only("CMD"))
    assert command[0] in image.run([*entry, "--help"])
    assert "--host" in image.run([*entry, *command, "--help"])


def test_the_image_holds_the_package_and_no_engine(image: Image) -> None:
    """Every room came along, under its full name only, and the light core is light."""
    script = (
        "import importlib.util as util\n"
        "import radixd.actors, radixd.api, radixd.cache, radixd.metrics, radixd.scheduling\n"
        "import radixd.text, radixd.workers, radixd.workers.pytorch, radixd.cli\n"
        "print([name for name in ('actors', 'tests', 'torch', 'transformers')\n"
        "       if util.find_spec(name)])"
    )
    assert image.run(["python", "-I", "-c", script]) == "[]\n"


def test_the_variables_of_the_image_are_settings(image: Image) -> None:
    """The daemon refuses a variable that it does not know, so the image may set no such one."""
    script = "import os; from radixd.cli import check_variables; check_variables(os.environ)"
    image.run(["python", "-I", "-c", script])
    assert image.environment["RADIXD_HOST"] == "0.0.0.0"


def test_the_image_does_not_run_as_root() -> None:
    """Its user is one that an earlier step has made."""
    user = only("USER")
    made = [rest for keyword, rest in instructions() if keyword == "RUN" and "useradd" in rest]
    assert user != "root"
    assert made[0].split(" && ")[0].endswith(f" {user}")
