"""Lines of a trace or recording, plain or .gz, with checked fields. Every complaint names the file and the line."""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

from octavo.core.errors import ConfigError

TOKENS_MAX = 100_000_000
"""More tokens than any model reads or writes: a length above is a mistake in the file."""
SECONDS_MAX = 10 * 366 * 86_400.0
"""Ten years: a time above is in another unit."""


def complain(path: Path, line: int, what: str) -> NoReturn:
    """Raise the ConfigError of a trace: ``file:line: what``."""
    raise ConfigError(f"{path}:{line}: {what}", param="--trace")


def open_text(path: Path) -> TextIO:
    """Open a plain or gzip-compressed text file by its first bytes. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", param="--trace") from error


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end). Raises ConfigError for a file that is damaged or not text."""
    number = 0
    try:
        with open_text(path) as file:
            for number, line in enumerate(file, start=1):
                yield number, line.rstrip("\r\n")
    except (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        complain(path, number + 1, f"the file is damaged or not text ({error})")


class Record:
    """One row of a trace: fields by name, and where it stands."""

    __slots__ = ("fields", "line", "path")

    def __init__(self, path: Path, line: int, fields: dict[str, Any]) -> None:
        self.path = path
        self.line = line
        self.fields = fields

    def complain(self, what: str) -> NoReturn:
        complain(self.path, self.line, what)

    def _field(self, name: str) -> Any:
        value = self.fields.get(name)
        if value is None or value == "":
            self.complain(f"{name} is missing")
        return value

    def tokens(self, name: str, least: int = 0) -> int:
        """A token count."""
        return self.whole(name, least, TOKENS_MAX)

    def whole(self, name: str, least: int, most: int) -> int:
        value = self._field(name)
        try:
            number = int(value)
        except (TypeError, ValueError):
            self.complain(f"{name} is {value!r}; it must be a whole number")
        if isinstance(value, bool) or (isinstance(value, float) and value != number):
            self.complain(f"{name} is {value!r}; it must be a whole number")
        if not least <= number <= most:
            self.complain(f"{name} is {number}; it must be from {least} to {most}")
        return number

    def seconds(self, name: str, unit: float = 1.0) -> float:
        """A time; the field counts units of ``unit`` seconds."""
        value = self._field(name)
        try:
            number = float(value) * unit
        except (TypeError, ValueError):
            self.complain(f"{name} is {value!r}; it must be a number")
        if isinstance(value, bool) or not math.isfinite(number) or not 0.0 <= number <= SECONDS_MAX:
            self.complain(f"{name} is {value}; it must be from 0 to {SECONDS_MAX / unit:.0f}")
        return number


def csv_records(path: Path, columns: tuple[str, ...]) -> Iterator[Record]:
    """Rows of a CSV file with a header that has these columns (and perhaps others)."""
    header: list[str] | None = None
    for line, text in numbered_lines(path):
        if header is None:
            header = [name.strip() for name in text.removeprefix("\ufeff").split(",")]
            missing = [name for name in columns if name not in header]
            if missing:
                complain(path, line, f"column {missing[0]} is missing; the file has {', '.join(header)}")
            continue
        if not text:
            complain(path, line, "the line is empty")
        values = next(csv.reader([text]))
        if len(values) != len(header):
            complain(path, line, f"the line has {len(values)} fields; the header has {len(header)}")
        yield Record(path, line, dict(zip(header, values, strict=True)))
    if header is None:
        complain(path, 1, "the file is empty")


def json_records(path: Path) -> Iterator[Record]:
    """One JSON object a line."""
    line = 0
    for line, text in numbered_lines(path):
        try:
            value = json.loads(text)
        except ValueError as error:
            complain(path, line, f"the line is not JSON ({error})")
        if not isinstance(value, dict):
            complain(path, line, "the line is not a JSON object")
        yield Record(path, line, value)
    if line == 0:
        complain(path, 1, "the file is empty")
