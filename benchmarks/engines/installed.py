"""What an installation weighs: the bytes of distributions and of all that they need, each file once.

Bytecode counts, as far as it is there: that of the running interpreter, beside every source file. (Lists of files name
it or not, depending on who installed; and a folder of sources may hold that of other interpreters.)

Runs in the peers' own environments, so it needs nothing but the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path


def installed_bytes(
    roots: Sequence[str], *, folders: Mapping[str, Path] | None = None
) -> dict[str, tuple[int, int]]:
    """Distribution -> (bytes, those of them that are bytecode), of ``roots`` and of what they need here, largest first.

    ``folders``: where a distribution's sources lie, for one whose own list may not name them: an editable installation.
    Names that are not installed are left out. Extras are not needed, and the interpreter is everybody's.
    """
    seen: set[Path] = set()
    sizes = {}
    for name in _needed(roots):
        files = [Path(str(file.locate())) for file in metadata.files(name) or ()]
        if folders is not None and name in folders:
            files += sorted(folders[name].rglob("*"))
        sizes[name] = _bytes(files, seen)
    return dict(sorted(sizes.items(), key=lambda item: -item[1][0]))


def total_bytes(*roots: str, folders: Mapping[str, Path] | None = None) -> int:
    """The sum of ``installed_bytes``."""
    return sum(size for size, _ in installed_bytes(roots, folders=folders).values())


def _needed(roots: Iterable[str]) -> list[str]:
    """Normal names of the distributions, in the order in which they are met."""
    found: list[str] = []
    todo = [*roots]
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop(0)).lower()
        if name in found:
            continue
        try:
            requirements = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:  # needed on other systems or Pythons only
            continue
        found.append(name)
        todo += [re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in requirements if "extra ==" not in one]
    return found


def _bytes(files: Iterable[Path], seen: set[Path]) -> tuple[int, int]:
    """Of the files and their bytecode; ``seen`` grows by those that count."""
    total = bytecode = 0
    for file in files:
        if file.suffix == ".pyc":
            continue
        total += _size(file, seen)
        if file.suffix == ".py":
            bytecode += _size(Path(cache_from_source(str(file))), seen)
    return total + bytecode, bytecode


def _size(file: Path, seen: set[Path]) -> int:
    """0 for what is no file, and for one that was counted before, under whatever name."""
    if not file.is_file() or (real := file.resolve()) in seen:
        return 0
    seen.add(real)
    return real.stat().st_size
