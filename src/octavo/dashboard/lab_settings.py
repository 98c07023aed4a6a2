"""``LabSettings``: the state of the lab's controls, read from a URL or from JSON, and what each control may be.

One list, ``CONTROLS``, says of every control its name, bounds and sentence; the page draws its form from it and the
server checks against it, so that the two cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NoReturn

from octavo.core.config import BLOCK_SIZES
from octavo.core.errors import ConfigError
from octavo.core.model_spec import ModelSpec
from octavo.memory import sizing
from octavo.simulation import article
from octavo.simulation.article import Allocation, ArticleSettings
from octavo.simulation.model_specs import KNOWN

POLICIES: tuple[Allocation, ...] = ("reserved", "oracle", "paged")
NONE = "none"
SLOTS_MAX = 2_000_000
"""Slots of the largest pool: more than 128 sequences of this workload can ever fill, and little enough to draw."""


@dataclass(frozen=True, slots=True)
class LabSettings:
    """Every control at its default is the article's page as it opens."""

    allocator: Allocation = "reserved"
    compare: str = "paged"
    """A second allocator, run beside the first one on the same requests; ``none`` for none."""
    max_tokens: int = 2_048
    spread: int = 70
    block_size: int = 16
    round_up: bool = True
    share: bool = False
    kernel_penalty: int = 23
    seed: int = article.SEED
    model: str = "qwen3-8b"
    pool_gib: float = 55.6512

    def __post_init__(self) -> None:
        for control in CONTROLS:
            control.check(getattr(self, control.name))
        slots, most = self.pool_slots, self.largest_request
        room = power_below(slots) if self.round_up else slots
        if slots > SLOTS_MAX:
            _complain(
                "pool_gib",
                f"a pool of {self.pool_gib:g} GiB has {slots:,} slots of {self.model}; at most",
                SLOTS_MAX,
            )
        if room < most:
            gib = math.ceil(most * self.spec.kv_bytes_per_token / sizing.GIB * 100) / 100
            rounded = f" (the largest run of a power of two is {room:,})" if self.round_up else ""
            raise ConfigError(
                f"pool_gib is {self.pool_gib:g}, which holds {slots:,} tokens of {self.model}{rounded}, but the largest"
                f" request may take {most:,}; it must be at least {gib:g}",
                param="pool_gib",
            )

    @property
    def spec(self) -> ModelSpec:
        return KNOWN[self.model]

    @property
    def pool_slots(self) -> int:
        """Token slots in ``pool_gib``, for this model."""
        return int(self.pool_gib * sizing.GIB) // self.spec.kv_bytes_per_token

    @property
    def largest_request(self) -> int:
        """Slots of the largest chunk that any request may ask for: what an empty pool must be able to give."""
        most = article.PROMPT_MAX + self.max_tokens
        return power_of_two(most) if self.round_up else most

    def run(self, policy: Allocation) -> ArticleSettings:
        """The article's run behind one policy's answer.

        Two states of the page that must give the same answer give the same settings here, so that it is computed once:
        what a policy does not look at stands at its default, and no answer exceeds ``OUTPUT_MAX`` whatever is declared.
        """
        paged, contiguous = policy == "paged", policy == "reserved"
        return ArticleSettings(
            allocator=policy,
            max_tokens=self.max_tokens if contiguous else min(self.max_tokens, article.OUTPUT_MAX),
            spread=self.spread,
            block_size=self.block_size if paged else article.DEFAULTS.block_size,
            round_up=self.round_up and not paged,
            share=self.share and paged,
            seed=self.seed,
            pool_slots=self.pool_slots,
        )

    @property
    def shown(self) -> tuple[Allocation, ...]:
        """The policies whose maps are drawn, one or two."""
        return tuple(policy for policy in (self.allocator, self.compare) if policy in POLICIES)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Control:
    """One control of the page."""

    name: str
    label: str
    help: str
    choices: tuple[str | int, ...] = ()
    least: float | None = None
    most: float | None = None
    step: float | None = None
    unit: str = ""

    def check(self, value: object) -> None:
        """Raise ConfigError, naming the field and what it may be."""
        if self.choices:
            if value not in self.choices:
                choices = ", ".join(map(str, self.choices))
                raise ConfigError(f"{self.name} is {value!r}; choose one of {choices}", param=self.name)
        elif self.least is not None and self.most is not None:
            assert isinstance(value, int | float)
            if not self.least <= value <= self.most:
                raise ConfigError(
                    f"{self.name} is {value:g}; it must be from {self.least:g} to {self.most:g}"
                    if isinstance(value, float)
                    else f"{self.name} is {value}; it must be from {self.least:.0f} to {self.most:.0f}",
                    param=self.name,
                )


CONTROLS = (
    Control("allocator", "Allocator", "The policy that hands out memory, drawn on the map.", POLICIES),
    Control(
        "compare",
        "Beside it",
        "A second policy, given the same requests at the same steps.",
        (*POLICIES, NONE),
    ),
    Control(
        "max_tokens",
        "Declared max_tokens",
        "The longest answer that every client says it may need; answers themselves do not change.",
        least=1,
        most=16_384,
        step=1,
        unit="tokens",
    ),
    Control(
        "spread",
        "Output-length spread",
        "How different the answers' lengths are: the standard deviation of their logarithm. At 0 all have 256 tokens.",
        least=0,
        most=200,
        step=1,
        unit="%",
    ),
    Control(
        "block_size",
        "Block size",
        "Token slots of a block, the unit that paging hands out.",
        BLOCK_SIZES,
        unit="slot",
    ),
    Control(
        "round_up",
        "Round chunks up to a power of two",
        "Contiguous policies take 4,096 slots for a request that may need 3,000.",
        (True, False),
    ),
    Control(
        "share",
        "Share the system prompt's blocks",
        "All prompts begin with the same 1,000 tokens; paging can store their full blocks once.",
        (True, False),
    ),
    Control(
        "kernel_penalty",
        "Paged kernel penalty",
        "How much slower attention gets by looking each block up; taken off the paged answer.",
        least=0,
        most=90,
        step=1,
        unit="%",
    ),
    Control(
        "seed",
        "Seed",
        "Draws the requests; the same seed gives the same ones.",
        least=0,
        most=2**32 - 1,
        step=1,
    ),
    Control(
        "model",
        "Model geometry",
        "Layers, key-value heads and head size decide the bytes of a token, and so the tokens that the pool holds.",
        tuple(KNOWN),
    ),
    Control(
        "pool_gib",
        "Pool",
        "Memory for keys and values.",
        least=0.1,
        most=1_000,
        step=0.0001,
        unit="GiB",
    ),
)
_KINDS: dict[str, type] = {field.name: type(field.default) for field in fields(LabSettings)}


def settings_of(given: Mapping[str, object]) -> LabSettings:
    """The controls' state from names and values, texts as they stand in a URL or JSON values; the rest are defaults.

    Raises ConfigError that names the field, its value and its bound.
    """
    for name in given:
        if name not in _KINDS:
            known = ", ".join(_KINDS)
            raise ConfigError(f"{name!r} is no setting of the lab; it has {known}", param=str(name)[:100])
    return LabSettings(**{name: _value(name, value) for name, value in given.items()})  # type: ignore[arg-type]


def _value(name: str, value: object) -> object:
    kind = _KINDS[name]
    text = str(value)[:100]
    if kind is str:
        return text
    if kind is bool:
        found = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
        if found is None:
            raise ConfigError(f"{name} is {text!r}; it must be true or false", param=name)
        return found
    what = "a whole number" if kind is int else "a number"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{name} is {text!r}; it must be {what}", param=name)
    try:
        number = float(value)
        if not math.isfinite(number) or (kind is int and number != int(number)):
            raise ValueError
    except (ValueError, OverflowError):
        raise ConfigError(f"{name} is {text!r}; it must be {what}", param=name) from None
    return int(number) if kind is int else number


def power_of_two(slots: int) -> int:
    """The smallest power of two that is not below ``slots``."""
    return 1 << (slots - 1).bit_length()


def power_below(slots: int) -> int:
    """The largest power of two that is not above ``slots``; 0 for an empty pool."""
    return 1 << (slots.bit_length() - 1) if slots else 0


def _complain(name: str, what: str, bound: int) -> NoReturn:
    raise ConfigError(f"{what} {bound:,} are drawn; lower {name}", param=name)


def described() -> dict[str, Any]:
    """What the page needs to draw its form: controls with bounds and defaults, models with the bytes of a token."""
    defaults = LabSettings().as_dict()
    return {
        "controls": [{**asdict(control), "value": defaults[control.name]} for control in CONTROLS],
        "models": {
            name: {
                "bytes_per_token": spec.kv_bytes_per_token,
                "layers": spec.num_layers,
                "kv_heads": spec.num_kv_heads,
                "head_dim": spec.head_dim,
                "dtype": spec.kv_dtype,
            }
            for name, spec in KNOWN.items()
        },
        "steps": article.STEPS,
        "warmup_steps": article.WARMUP_STEPS,
        "system_prompt": article.SYSTEM_PROMPT,
    }
