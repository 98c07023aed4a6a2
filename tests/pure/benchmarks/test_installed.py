"""The count of an installation's bytes, on an installation that was made up."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "engines" / "installed.py"
Install = Callable[..., Path]


@pytest.fixture(scope="module")
def counting() -> ModuleType:
    spec = importlib.util.spec_from_file_location("installed", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Writes a distribution's files and its own list of them. Names starting with ! are written and not listed."""
    place = tmp_path / "site-packages"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))

    def write(name: str, files: dict[str, int], needs: tuple[str, ...] = ()) -> Path:
        info = place / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        for path, size in files.items():
            file = place / path.removeprefix("!")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bytes(size))
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {one}" for one in needs), ""]))
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in files if not path.startswith("!")))
        return place

    return write


def cached(module: str, tag: str = sys.implementation.cache_tag) -> str:
    folder, _, name = module.rpartition("/")
    return f"{folder}/__pycache__/{name}.{tag}.pyc"


def test_a_distribution_and_all_that_it_needs(counting: ModuleType, install: Install) -> None:
    install(
        "root-thing", {"root/a.py": 100}, ("Middle_Thing>=2", "absent-thing", 'extra-thing; extra == "x"')
    )
    install("middle-thing", {"middle/lib.so": 1000}, ('leaf.thing (>=1); python_version > "3"', "root-thing"))
    install("leaf-thing", {"leaf/data.bin": 20})
    install("extra-thing", {"extra/a.py": 5000})
    found = counting.installed_bytes(["root-thing"])
    assert found == {"middle-thing": (1000, 0), "root-thing": (100, 0), "leaf-thing": (20, 0)}
    assert list(found) == ["middle-thing", "root-thing", "leaf-thing"], "largest first"
    assert counting.total_bytes("root-thing", "leaf-thing") == 1120


def test_bytecode_counts_once_listed_or_not(counting: ModuleType, install: Install) -> None:
    files = {
        "listed/a.py": 100,
        cached("listed/a"): 50,
        "listed/b.py": 10,
        "!" + cached("listed/b"): 5,
        "!" + cached("listed/b", "cpython-27"): 7000,
    }
    install("listed", files)
    assert counting.installed_bytes(["listed"]) == {"listed": (165, 55)}


def test_an_editable_installation_counts_its_sources_once(counting: ModuleType, install: Install) -> None:
    place = install(
        "edited", {"edited/native.so": 300, "edited.pth": 4, "!edited/a.py": 20, "!edited/page/x.js": 6}
    )
    assert counting.installed_bytes(["edited"]) == {"edited": (304, 0)}
    assert counting.total_bytes("edited", folders={"edited": place / "edited"}) == 330


def test_a_file_under_two_names_and_a_missing_one(counting: ModuleType, install: Install) -> None:
    place = install("one", {"shared/lib.so": 900})
    (place / "shared/lib.so.1").symlink_to(place / "shared/lib.so")
    install("two", {"!two/ignored.bin": 1})
    record = place / "two-1.0.dist-info" / "RECORD"
    record.write_text("shared/lib.so,,\nshared/lib.so.1,,\nshared/gone.so,,\nshared,,\n")
    assert counting.installed_bytes(["one", "two"]) == {"one": (900, 0), "two": (0, 0)}
    assert counting.installed_bytes(["two"]) == {"two": (900, 0)}


def test_octavo_itself_is_whole(counting: ModuleType) -> None:
    """Its own folder is counted wherever it lies, and what it needs beside it."""
    octavo = pytest.importorskip("octavo")
    folder = Path(octavo.__file__).parent
    sizes = counting.installed_bytes(["octavo"], folders={"octavo": folder})
    sources = sum(file.stat().st_size for file in folder.rglob("*.py"))
    size, bytecode = sizes["octavo"]
    assert size - bytecode > sources and {"numpy", "tokenizers"} <= sizes.keys()
