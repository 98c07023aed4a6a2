"""``Lookup``: what was found of one prompt and why not more, and ``LookupTotals``: the counts of many."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray


class Miss(IntEnum):
    """Why a block was not found. The order is that of certainty: a later reason explains a block that has two."""

    NEVER_SEEN = 0
    """Nobody has computed it."""
    UNKNOWN = 1
    """Nobody has, or it was evicted longer ago than is remembered."""
    OTHER_SALT = 2
    """Not under this salt, but it is in the pool under none, where anyone could find it."""
    FOREIGN_SALT = 3
    """The same under somebody else's salt: for the operator's counters, not for whoever asks."""
    EVICTED = 4
    """It was there, and somebody needed the room."""
    BEING_COMPUTED = 5
    """A running request will have computed it in a moment."""
    BEHIND_A_MISS = 6
    """It is there, but a block in front of it is not, and blocks are found from the front."""


EVICTED = np.uint8(Miss.EVICTED)
BEING_COMPUTED = np.uint8(Miss.BEING_COMPUTED)
BEHIND_A_MISS = np.uint8(Miss.BEHIND_A_MISS)
"""As an array of reasons has them. To compare one with a member of the enumeration takes NumPy six times as long."""

Unasked = Literal["prompt_logprobs", "caching_disabled", "contiguous"]
"""Why nothing was looked up: every position of the prompt must be computed, or nothing is ever shared."""

REASONS = (
    "never_seen",
    "unknown",
    "other_salt",
    "evicted",
    "being_computed",
    "behind_a_miss",
    "not_looked_up",
)
"""Reasons as they are counted. A foreign salt counts as other_salt."""
COUNTED_AS = (0, 1, 2, 2, 3, 4, 5)
"""Place in REASONS of each Miss."""


@dataclass(slots=True, eq=False)  # not frozen: that makes an admission a microsecond slower
class Lookup:
    """What was found of one prompt, at its first admission. Never changes."""

    request_id: str
    root: bytes
    """Root of its chain: the salt, hashed; empty without one."""
    step: int
    prompt_tokens: int
    block_size: int
    hits: int
    """Leading full blocks that were found."""
    misses: NDArray[np.uint8]
    """uint8 [M]: ``Miss`` of each full block behind them."""
    evictions: tuple[Eviction, ...] = ()
    """Of the evicted ones among these, in their order."""
    computing: str | None = None
    """Request that is computing the first of those that are being computed."""
    unasked: Unasked | None = None
    """Why nothing was looked up; None if it was."""
    ever: int = 0
    """Leading tokens that a cache of this block size which forgets nothing would have found, as far as is known."""
    ever_by_token: int = 0
    """The same of a cache with blocks of one token."""
    loaded: int = 0
    """The last of the hits: those that come from the second tier."""

    @property
    def blocks(self) -> int:
        """Full blocks that were looked up, or would have been."""
        return (self.prompt_tokens - 1) // self.block_size

    @property
    def tokens_below_block(self) -> int:
        """Tokens behind the last of them: 1 to block_size."""
        return self.prompt_tokens - self.blocks * self.block_size


@dataclass(frozen=True, slots=True)
class Eviction:
    """How a block was lost."""

    step: int
    idle_steps: int
    """Steps that it had lain in the pool without an owner."""
    taker: str | None
    """The request that took the block; None if the cache was reset, or it was too long ago to say."""
    taker_root: bytes = b""
    """Root of that one's chain: who has another may not be told of it."""


@dataclass(slots=True)
class LookupTotals:
    """Counts since the start, over first admissions. hits + sum of misses = blocks."""

    blocks: int = 0
    hits: int = 0
    misses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    """Full blocks by reason."""
    tokens: int = 0
    """Of the prompts that were looked up; those of the others are in no figure below."""
    tokens_hit: int = 0
    tokens_hit_ever: int = 0
    """With a cache of this block size that forgets nothing; at least, because memory of the past is bounded."""
    tokens_hit_ever_by_token: int = 0
    """With such a cache and blocks of one token; at least."""
    waits: int = 0
    """Requests that were held back until a running one had computed their prefix."""
    tokens_below_block: int = 0
    """Behind the last full block that was looked up."""

    def rates(self) -> tuple[float, float, float]:
        """Shares of the prompt tokens: (achieved, forgetting nothing, forgetting nothing with blocks of one token)."""
        tokens = max(1, self.tokens)
        return self.tokens_hit / tokens, self.tokens_hit_ever / tokens, self.tokens_hit_ever_by_token / tokens
