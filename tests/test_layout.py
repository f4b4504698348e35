"""The rooms at the root, the links in the spine, the build table and the import rules agree."""

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SPINE = ROOT / "radixd"

ROOMS = {path.name for path in SPINE.iterdir() if path.is_symlink()}
PACKAGES = {init.parent for room in ROOMS for init in (ROOT / room).rglob("__init__.py")}


def project() -> dict[str, Any]:
    """The project file."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_room_has_its_link() -> None:
    """A folder with an `__init__.py` at the root is a room, and the spine links to it."""
    assert {init.parent.name for init in ROOT.glob("*/__init__.py")} - {"radixd"} == ROOMS
    for room in ROOMS:
        link = SPINE / room
        assert link.readlink() == Path("..", room)


def test_the_build_table_names_every_package_and_its_folder() -> None:
    """A package that is missing there would be missing from the wheel, and nothing would say so."""
    folders = {"radixd": "radixd"} | {
        ".".join(("radixd", *package.relative_to(ROOT).parts)): str(package.relative_to(ROOT))
        for package in PACKAGES
    }
    table = project()["tool"]["setuptools"]
    assert set(table["packages"]) == set(folders)
    assert table["package-dir"] == folders


def test_every_folder_of_modules_is_a_package() -> None:
    """Python would import one without `__init__.py`; the build would leave it out."""
    folders = {module.parent for room in ROOMS for module in (ROOT / room).rglob("*.py")}
    assert folders == PACKAGES


def test_a_room_is_imported_by_its_full_name_alone() -> None:
    """`import cache` would be a second copy of `radixd.cache`; the linter refuses it."""
    ruff = project()["tool"]["ruff"]
    assert set(ruff["lint"]["flake8-tidy-imports"]["banned-api"]) == ROOMS
    assert set(ruff["extend-exclude"]) == {f"radixd/{room}" for room in ROOMS}


def test_every_room_has_its_place_among_the_layers() -> None:
    """What may import what is said for all of them."""
    layers = project()["tool"]["importlinter"]["contracts"][0]["layers"]
    assert {name for layer in layers for name in layer.split(" | ")} >= ROOMS


def test_the_image_gets_every_room() -> None:
    """The build context is a list of what may enter; a room that is missing there is left out."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} >= ROOMS | {"radixd"}


def test_every_dependency_is_pinned() -> None:
    """Two people who install one commit get the same versions, each from the index they use."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    assert all("+" not in version for _, version in pins)
    pinned = {_normal(name) for name, _ in pins}
    groups = project()["dependency-groups"].values()
    extras = project()["project"]["optional-dependencies"].values()
    wanted = [*project()["project"]["dependencies"], *(line for extra in extras for line in extra)]
    wanted += [line for group in groups for line in group if isinstance(line, str)]
    assert {_normal(re.split("[<>=;]", line)[0]) for line in wanted} <= pinned


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-")
