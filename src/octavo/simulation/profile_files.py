"""Profiles as JSON files: the ones that come along, and the ones that people measure."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from octavo.core.errors import ConfigError
from octavo.simulation.cost_model import FittedProfile, Profile, RooflineProfile

FORMAT, VERSION = "octavo-profile", 1
FOLDER = Path(__file__).parent / "profiles"
_KINDS: dict[str, type[RooflineProfile] | type[FittedProfile]] = {
    "roofline": RooflineProfile,
    "fitted": FittedProfile,
}
_NUMBERS = (
    "memory_bytes",
    "memory_bytes_per_s",
    "memory_efficiency",
    "compute_efficiency",
    "step_overhead_s",
)
_TABLES = ("flops_per_s", "coefficients")


def bundled_profiles() -> list[str]:
    """Names of the profiles that come with Octavo."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load_profile(name: str) -> Profile:
    """A bundled profile by name, or a file by its path. Raises ConfigError."""
    bundled = bundled_profiles()
    path = FOLDER / f"{name}.json" if name in bundled else Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"profile {name!r} is neither a readable file nor one of {', '.join(bundled)}", param="--profile"
        ) from error
    try:
        fields = json.loads(text)
    except ValueError as error:
        _complain(path, f"it is not JSON ({error})")
    return parse_profile(path, fields)


def _complain(path: Path, what: str) -> NoReturn:
    raise ConfigError(f"profile {path}: {what}", param="--profile")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def parse_profile(path: Path, fields: Any) -> Profile:
    """Check what JSON cannot say for itself; the classes check the values."""
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        _complain(path, f'it has no "format": "{FORMAT}"')
    if fields.get("version") != VERSION:
        _complain(path, f"its version is {fields.get('version')!r}; this Octavo reads version {VERSION}")
    kind = _KINDS.get(str(fields.get("kind")))
    if kind is None:
        _complain(path, f"its kind is {fields.get('kind')!r}; known are {', '.join(_KINDS)}")
    given = {key: value for key, value in fields.items() if key not in ("format", "version", "kind")}
    allowed = set(kind.__slots__)
    for key, value in given.items():
        if key not in allowed:
            _complain(path, f"field {key!r} is not known; known are {', '.join(sorted(allowed))}")
        if key in _NUMBERS and not _is_number(value):
            _complain(path, f"{key} is {value!r}; it must be a number")
        if key in _TABLES and not (isinstance(value, dict) and all(map(_is_number, value.values()))):
            _complain(path, f"{key} is not an object of numbers")
    if "knots" in given:
        if not (isinstance(given["knots"], list) and all(type(knot) is int for knot in given["knots"])):
            _complain(path, "knots is not a list of whole numbers")
        given["knots"] = tuple(given["knots"])
    try:
        return kind(**given)
    except TypeError as error:
        _complain(path, f"a field is missing ({error})")


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile so that ``load_profile`` reads it back."""
    kind = "roofline" if isinstance(profile, RooflineProfile) else "fitted"
    fields = {"format": FORMAT, "version": VERSION, "kind": kind, **asdict(profile)}
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
