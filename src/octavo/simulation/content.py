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
_MIX_1 = 0xBF58476D1CE4E5B9
_PER_KEY, _STRIDE = np.uint64(_GOLDEN), np.uint64(0xD1B54A32D192ED03)
_MIXERS = np.uint64(_MIX_1), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


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
    mixed = positions.view(np.uint64) * _STRIDE
    mixed += keys * _PER_KEY
    return _tokens(mixed, vocabulary)


def _tokens(mixed: NDArray[np.uint64], vocabulary: int) -> NDArray[np.int32]:
    """From numbers that are unique to content and position; they are overwritten."""
    mixed ^= mixed >> _SHIFTS[0]
    mixed *= _MIXERS[0]
    mixed ^= mixed >> _SHIFTS[1]
    mixed *= _MIXERS[1]
    mixed ^= mixed >> _SHIFTS[2]
    if vocabulary & (vocabulary - 1):
        mixed %= np.uint64(vocabulary)
    else:  # the same, without a division each
        mixed &= np.uint64(vocabulary - 1)
    return mixed.astype(np.int32)


def content_tokens(segments: Sequence[Segment], vocabulary: int = VOCABULARY) -> NDArray[np.int32]:
    """int32 [sum of lengths]: the tokens of these segments, one behind the other."""
    if vocabulary == 1:
        return np.zeros(sum(segment.length for segment in segments), np.int32)
    lengths = np.array([segment.length for segment in segments], np.int64)
    keys = np.array([segment.key for segment in segments], np.uint64)
    starts = np.array([segment.start for segment in segments], np.int64)
    ends = lengths.cumsum()
    # What tokens_at makes of key and position, with the steps that are equal for a whole segment taken once for it.
    offsets = keys * _PER_KEY + (starts - (ends - lengths)).view(np.uint64) * _STRIDE
    mixed = np.arange(ends[-1] if len(ends) else 0, dtype=np.uint64) * _STRIDE
    mixed += np.repeat(offsets, lengths)
    return _tokens(mixed, vocabulary)
