"""``Fields``: typed look-ups in a model's settings, with errors that name file, field and value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo.core.errors import ModelError
from octavo.execution.loading.problems import model_error

Number = int | float


class Fields:
    """Settings from config.json or GGUF metadata. ``prefix`` goes before every name (GGUF: ``llama.``)."""

    def __init__(self, source: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self.source = source
        self._values = values
        self._prefix = prefix

    def get(self, name: str) -> Any:
        """The raw value; None where it is absent or null."""
        return self._values.get(self._prefix + name)

    def error(self, name: str, wanted: str) -> ModelError:
        value = self.get(name)
        found = "is missing" if value is None else f"is {value!r}"
        return model_error(f"{self.source}: {self._prefix}{name} {found}; it must be {wanted}")

    def integer(self, name: str, default: int | None = None, *, at_least: int = 1) -> int:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]  # GGUF may give one number a layer
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise self.error(name, f"a whole number, at least {at_least}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, Number) or not math.isfinite(value) or value <= 0:
            raise self.error(name, "a positive number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.error(name, "a text")
        return value

    def inner(self, name: str) -> Fields | None:
        """The settings below ``name``, or None where there are none."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return Fields(f"{self.source}: {self._prefix}{name}", value)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One token id or a list of them; () where the field is absent."""
        value = self.get(name)
        found = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in found):
            raise self.error(name, "a token id, or a list of them")
        return tuple(found)
