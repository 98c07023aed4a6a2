"""Random configurations and requests for the agreement tests, each from one seed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from octavo.core.beam_params import BeamParams
from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams

MAX_MODEL_LEN = 128
VOCABULARY = 256
"""Token ids that prompts draw from; the tiny model's special tokens lie above."""
REQUESTS = 28
ALLOCATORS = (
    ("paged", "first_fit"),
    ("paged", "first_fit"),
    ("paged", "first_fit"),
    ("reserved", "first_fit"),
    ("paged", "first_fit"),
    ("pow2", "buddy"),
    ("paged", "first_fit"),
    ("paged", "first_fit"),
    ("pow2", "first_fit"),
    ("paged", "first_fit"),
    ("reserved", "buddy"),
    ("paged", "first_fit"),
)

SUPERBLOCKS = (128, 0, 16)
"""Tokens of a superblock: more than an eighth of the pool (which is then what it is), none, and few."""


@dataclass(frozen=True)
class Case:
    """Settings, requests by the step at which they arrive, and ends from outside by the step after which they come."""

    seed: int
    cache: CacheConfig
    limits: SchedulerConfig
    arrivals: tuple[tuple[int, Request], ...]
    aborts: dict[int, tuple[str, ...]]

    def __str__(self) -> str:
        cache, limits = self.cache, self.limits
        caching = "caching" if cache.enable_prefix_caching else "no-caching"
        return (
            f"{self.seed}-{cache.allocator}-{cache.placement}-{cache.num_blocks}x{cache.block_size}-"
            f"{cache.superblock_tokens}-{caching}-"
            f"{limits.order}-{limits.queue}-{limits.preemption}-{limits.max_num_batched_tokens}"
        )


def make_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    allocator, placement = ALLOCATORS[seed % len(ALLOCATORS)]
    block_size = [1, 2, 4, 8, 16, 32][(seed + seed // 12) % 6]
    # Between one and two of the longest requests: whoever runs beside another is likely to be in its way.
    # Contiguous chunks need room for several, or nothing can lie scattered between them.
    slots = int((rng.uniform(1.1, 2.2) + (allocator != "paged")) * MAX_MODEL_LEN)
    cache = CacheConfig(
        num_blocks=-(-slots // block_size),
        block_size=block_size,
        allocator=allocator,  # type: ignore[arg-type]
        placement=placement,  # type: ignore[arg-type]
        enable_prefix_caching=allocator == "paged" and seed % 4 != 3,
        offload_blocks=_tier(seed, allocator),
        superblock_tokens=SUPERBLOCKS[seed // 2 % len(SUPERBLOCKS)],
    )
    limits = SchedulerConfig(
        max_num_seqs=int(rng.integers(3, 9)),
        max_num_batched_tokens=[6, 16, 33, 64, None][int(rng.integers(5))],
        max_model_len=MAX_MODEL_LEN,
        watermark_blocks=int(rng.choice([0, 0, 1, 3])),
        order="admission_first" if rng.random() < 0.4 else "decode_first",
        queue="priority" if rng.random() < 0.4 else "fcfs",
        preemption="restart" if rng.random() < 0.5 else "recompute",
        prefix_wait=seed % 8 < 4,
        swap_tokens_per_block=0.3 * block_size if seed % 3 else 0.0,
    )
    if seed % 5 in (1, 2):  # the draw above has nothing to do with it
        limits = replace(limits, preemption="swap")
    arrivals = _arrivals(rng, allocator)
    return Case(seed, cache, limits, arrivals, _aborts(rng, arrivals))


def _tier(seed: int, allocator: str) -> int:
    """Blocks of the second tier: none, so few that they are fought for, or enough for everybody."""
    return 0 if allocator != "paged" else (0, 5, 200, 40, 0)[seed % 5]


def _arrivals(rng: np.random.Generator, allocator: str) -> tuple[tuple[int, Request], ...]:
    several = np.random.default_rng(int(rng.integers(1 << 30)))
    prefixes = [rng.integers(0, VOCABULARY, 40, dtype=np.int32) for _ in range(2)]
    arrivals, step = [], 0
    for number in range(REQUESTS):
        step += int(rng.choice([0, 0, 1, 4, 15]))
        shared = prefixes[int(rng.integers(2))][: int(rng.choice([0, 16, 32, 40]))]
        own = rng.integers(0, VOCABULARY, int(rng.integers(1, 30)), dtype=np.int32)
        prompt = np.concatenate([shared, own])
        if number % 9 == 8:  # refused at the door
            prompt = rng.integers(0, VOCABULARY, MAX_MODEL_LEN + 1, dtype=np.int32)
        request = Request(
            f"r{number}",
            prompt,
            _several(replace(_sampling(rng), n=int(several.choice([1, 1, 1, 2, 3]))), several, allocator),
            priority=int(rng.integers(3)),
            cache_salt="other" if rng.random() < 0.1 else None,
        )
        arrivals.append((step, request))
    return tuple(arrivals)


def _sampling(rng: np.random.Generator) -> SamplingParams:
    """Lengths are forced from both sides: a declared maximum, and tokens that end an answer when they come up."""
    stops = rng.choice(VOCABULARY, 12, replace=False).tolist() if rng.random() < 0.5 else []
    sampled = rng.random() < 0.6
    return SamplingParams(
        temperature=1.5 if sampled else 0.0,
        seed=int(rng.integers(1 << 30)) if sampled else None,
        repetition_penalty=1.3 if rng.random() < 0.3 else 1.0,
        max_tokens=int(rng.integers(1, 56)),
        stop_token_ids=tuple(stops),
        ignore_eos=rng.random() < 0.5,
    )


def _several(sampling: SamplingParams, rng: np.random.Generator, allocator: str) -> SamplingParams:
    """One request in eight searches instead of sampling; no step of a case has fewer tokens than beams."""
    if allocator != "paged" or rng.random() >= 0.125:
        return sampling
    groups = int(rng.choice([1, 1, 3]))
    beam = BeamParams(
        width=3,
        length_penalty=float(rng.choice([0.0, 1.0, 2.0])),
        early_stopping=bool(rng.random() < 0.5) or "never",
        groups=groups,
        diversity_penalty=0.5 if groups > 1 else 0.0,
    )
    return SamplingParams(
        beam=beam,
        n=sampling.n,
        max_tokens=min(sampling.max_tokens or 1, 20),
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
    )


def _aborts(
    rng: np.random.Generator, arrivals: tuple[tuple[int, Request], ...]
) -> dict[int, tuple[str, ...]]:
    """After these steps somebody goes away: while queued, in the middle of a prompt, decoding, or already done."""
    found: dict[int, tuple[str, ...]] = {}
    for step, request in arrivals:
        if rng.random() < 0.25:
            after = step + 1 + int(rng.integers(12))
            choices = [choice.request_id for choice in request.choices()]
            gone = choices if rng.random() < 0.5 else choices[:1]
            found[after] = (*found.get(after, ()), *gone)
    return found
