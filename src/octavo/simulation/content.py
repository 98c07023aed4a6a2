"""Synthetic tokens with identity: the token at a position of a content is a function of (content, position) alone.

Two prompts share token ids exactly where they share content, so the real prefix cache finds what a real one would
find, and an answer's tokens are known before it is given, so that a conversation's next turn can repeat them.
(Exactly but for chance: two different contents agree at one position with probability 1 / vocabulary.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 1 << 31
"""Tokens that synthetic content draws from by default; smaller where a real model must accept them. 1 makes every token
the same one, which costs nothing: right where nobody looks at them (no prefix caching, no model)."""

MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STRIDE = 0xD1B54A32D192ED03
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


class Segment(NamedTuple):
    """``length`` tokens of a content, from position ``start`` on."""

    key: int
    length: int
    start: int = 0


def content_key(*parts: int) -> int:
    """A 64-bit name for the content that ``parts`` stand for, in this order."""
    key = 0
    for part in parts:
        key = (key ^ part & MASK64) * _GOLDEN & MASK64
        key = ((key ^ key >> 30) * _MIX_1) & MASK64
        key ^= key >> 27
    return key


def tokens_at(
    keys: NDArray[np.uint64], positions: NDArray[np.int64], vocabulary: int = VOCABULARY
) -> NDArray[np.int32]:
    """int32 [n]: the token of content ``keys[i]`` at ``positions[i]``, in [0, vocabulary)."""
    if vocabulary == 1:
        return np.zeros(len(positions), np.int32)
    mixed = keys * np.uint64(_GOLDEN) + positions.astype(np.uint64) * np.uint64(_STRIDE)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(_MIX_1)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_MIX_2)
    mixed ^= mixed >> np.uint64(31)
    return (mixed % np.uint64(vocabulary)).astype(np.int32)


def content_tokens(segments: Sequence[Segment], vocabulary: int = VOCABULARY) -> NDArray[np.int32]:
    """int32 [sum of lengths]: the tokens of these segments, one behind the other."""
    if vocabulary == 1:
        return np.zeros(sum(segment.length for segment in segments), np.int32)
    lengths = np.array([segment.length for segment in segments], np.int64)
    keys = np.array([segment.key for segment in segments], np.uint64)
    starts = np.array([segment.start for segment in segments], np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    positions = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
    return tokens_at(np.repeat(keys, lengths), positions, vocabulary)
