"""``SamplingParams``: how the next token is chosen and when a request ends. Names are vLLM's and OpenAI's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.core.errors import RequestError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Raises RequestError, naming field and value, for a value outside its range."""

    temperature: float = 1.0
    """0 is greedy. Divides the logits."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches this, in (0, 1]."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one, in [0, 1]."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token that was generated before, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted once per earlier occurrence in the output, in [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output; above 0."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id -> number added to its logit, in [-100, 100]."""
    seed: int | None = None
    """Random numbers come from (seed, position) alone. None: the engine draws one for the request."""
    max_tokens: int | None = None
    """Most tokens to generate; None is as many as model and pool can hold."""
    min_tokens: int = 0
    """Stop tokens are masked until this many tokens were generated."""
    stop: tuple[str, ...] = ()
    """Strings that end the output; they are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output, besides the model's own."""
    ignore_eos: bool = False
    """Whether the model's own end tokens are treated as ordinary ones."""
    logprobs: int | None = None
    """Return this many most likely tokens at each output position (0: the chosen one alone)."""
    prompt_logprobs: int | None = None
    """The same for every prompt position but the first."""
    skip_special_tokens: bool = True
    """Whether special tokens are left out of the text."""

    def __post_init__(self) -> None:
        def refuse(name: str, wanted: str) -> None:
            raise RequestError(f"{name} must be {wanted}, got {getattr(self, name)!r}", param=name)

        for name in (
            "temperature",
            "top_p",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                refuse(name, "a finite number")
        if self.temperature < 0:
            refuse("temperature", "at least 0")
        if self.top_k < -1:
            refuse("top_k", "-1, 0 (all) or a positive number")
        if not 0 < self.top_p <= 1:
            refuse("top_p", "in (0, 1]")
        if not 0 <= self.min_p <= 1:
            refuse("min_p", "in [0, 1]")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                refuse(name, "in [-2, 2]")
        if self.repetition_penalty <= 0:
            refuse("repetition_penalty", "above 0")
        if self.max_tokens is not None and self.max_tokens < 1:
            refuse("max_tokens", "at least 1")
        if self.min_tokens < 0 or (self.max_tokens is not None and self.min_tokens > self.max_tokens):
            refuse("min_tokens", f"from 0 to max_tokens ({self.max_tokens})")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and value < 0:
                refuse(name, "at least 0")
        if any(not text for text in self.stop):
            refuse("stop", "non-empty strings")
        if any(not math.isfinite(bias) or not -100 <= bias <= 100 for bias in self.logit_bias.values()):
            refuse("logit_bias", "numbers in [-100, 100]")
        if any(token < 0 for token in (*self.stop_token_ids, *self.logit_bias)):
            raise RequestError("token ids must be at least 0", param="stop_token_ids or logit_bias")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0
