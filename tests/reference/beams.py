"""The beam searches that are compared with transformers': some answers end by themselves, most by their length."""

from __future__ import annotations

from typing import Any

NAMES = (
    "capital", "colours", "sum", "sky", "haiku", "recipe", "one_word", "write_code", "json", "german", "chinese",
    "russian", "emoji", "turns",
)  # fmt: skip
"""Of ``PROMPTS``."""
MAX_TOKENS = 28
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"width": 4, "length_penalty": 1.0, "early_stopping": False},
    "short_and_early": {"width": 3, "length_penalty": -0.5, "early_stopping": True},
    "long_and_never_early": {"width": 5, "length_penalty": 1.5, "early_stopping": "never"},
    "canonical": {"width": 2, "length_penalty": 0.0, "early_stopping": "never"},
}
"""``canonical``: the search of the textbooks, as transformers says."""
