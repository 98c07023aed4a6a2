"""STYLE as a test: sizes of files and functions, and what must be documented. The exceptions may only shrink."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "octavo"
FILE_LINES_MAX = 420
FUNCTION_LINES_MAX = 60
LONG_FILES: frozenset[str] = frozenset()
LONG_FUNCTIONS: frozenset[str] = frozenset()


def code_files() -> list[Path]:
    folders = [SOURCE, ROOT / "native", ROOT / "benchmarks", ROOT / "tests"]
    return sorted(
        path for folder in folders for suffix in ("*.py", "*.cpp", "*.h") for path in folder.rglob(suffix)
    )


def long_functions(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        f"{path.relative_to(ROOT)}:{node.name}"
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]


def test_no_file_is_two_things() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in code_files()
        if len(path.read_text(encoding="utf-8").splitlines()) > FILE_LINES_MAX
    }
    assert found == LONG_FILES, "split these, or take them off the list of exceptions if they have shrunk"


def test_no_function_is_two_things() -> None:
    found = {name for path in SOURCE.rglob("*.py") for name in long_functions(path)}
    assert found == LONG_FUNCTIONS, "split these, or take them off the list of exceptions if they have shrunk"


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports those outside a package by their bare name; two of one name stop the whole run."""
    files = [
        file for file in (ROOT / "tests").rglob("test_*.py") if not (file.parent / "__init__.py").exists()
    ]
    names = Counter(file.name for file in files)
    assert len(files) > 50 and [name for name, count in names.items() if count > 1] == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCE.rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def test_only_the_executor_touches_the_native_part() -> None:
    """import-linter sees no extension modules, so this one rule is checked here."""
    users = {
        path.relative_to(SOURCE).parts[0]
        for path in SOURCE.rglob("*.py")
        if any(name.startswith("octavo._native") for name in imports_of(path))
    }
    assert users == {"execution"}


def commands() -> list[str]:
    from octavo.cli.main import LazyGroup

    return list(LazyGroup.commands_at)


@pytest.mark.parametrize("command", commands())
def test_every_flag_is_documented(command: str) -> None:
    import click

    from octavo.cli.main import octavo

    found = octavo.get_command(click.Context(octavo), command)
    assert found is not None
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    section = (
        text.split(f"## octavo {command}\n", 1)[1].split("\n## ", 1)[0]
        + text.split("## Engine flags\n", 1)[1].split("\n## ", 1)[0]
    )
    for parameter in found.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} has no help text"
            for flag in (*parameter.opts, *parameter.secondary_opts):
                assert f"`{flag}" in section, f"docs/command-line.md, octavo {command}: {flag} is missing"


def test_every_event_and_error_is_documented() -> None:
    import octavo.core.errors as errors
    import octavo.core.events as events

    text = (ROOT / "docs" / "events-and-errors.md").read_text(encoding="utf-8")
    names = [kind.__name__ for kind in events.RareEvent.__args__]
    names += [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert [name for name in names if f"`{name}`" not in text] == []
