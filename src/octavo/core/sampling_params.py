"""``SamplingParams``: how the next token is chosen and when a request ends. Names are vLLM's and OpenAI's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from octavo.core.beam_params import BeamParams
from octavo.core.errors import RequestError

MAX_LOGPROBS = 20
"""Most likely tokens that one position may return (OpenAI's limit for ``top_logprobs``)."""

_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_INTEGERS = ("n", "top_k", "min_tokens")
_OPTIONAL_INTEGERS = ("seed", "max_tokens", "logprobs", "prompt_logprobs")
_NOT_FOR_BEAMS: dict[str, object] = {
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "stop": (),
    "logprobs": None,
    "prompt_logprobs": None,
}
"""Fields that a beam search does not look at, and the values that ask for nothing."""


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Raises RequestError, naming field and value, for a value outside its range."""

    n: int = 1
    """Answers to the one prompt, which is computed once. Answer i has seed + i."""
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
    """Any integer, taken modulo 2**64. Random numbers come from (seed, position) alone. None: the engine draws one."""
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
    beam: BeamParams | None = None
    """Search for the n likeliest answers instead of sampling them."""

    def __post_init__(self) -> None:
        self._normalize_sequences()
        self._check_types()
        self._check_ranges()

    def check_vocab_size(self, vocab_size: int) -> None:
        """Raise RequestError for a token id that the model does not have. Whoever knows the model calls this."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise RequestError(
                        f"{name} names token {token}, but the model's tokens are 0 to {vocab_size - 1}",
                        param=name,
                    )

    def _refuse(self, name: str, wanted: str) -> NoReturn:
        value = getattr(self, name)
        shown = list(value) if isinstance(value, tuple) else value
        raise RequestError(f"{name} must be {wanted}, got {shown!r}", param=name)

    def _normalize_sequences(self) -> None:
        """A single stop string and lists are what callers write; stored as tuples, so that the object stays a value."""
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            value = getattr(self, name)
            if not isinstance(value, (list, tuple)):
                self._refuse(name, "a list of strings" if name == "stop" else "a list of token ids")
            object.__setattr__(self, name, tuple(value))

    def _check_types(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                self._refuse(name, "a finite number")
        for name in (*_INTEGERS, *_OPTIONAL_INTEGERS):
            value = getattr(self, name)
            if not (_is_integer(value) or (value is None and name in _OPTIONAL_INTEGERS)):
                self._refuse(name, "an integer")
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                self._refuse(name, "true or false")
        if not all(isinstance(text, str) and text for text in self.stop):
            self._refuse("stop", "non-empty strings")
        if not all(_is_integer(token) and token >= 0 for token in self.stop_token_ids):
            self._refuse("stop_token_ids", "token ids (integers of at least 0)")
        if not isinstance(self.logit_bias, Mapping):
            self._refuse("logit_bias", "a map from token ids to numbers")
        for token, bias in self.logit_bias.items():
            if not (_is_integer(token) and token >= 0):
                self._refuse("logit_bias", "a map from token ids (integers of at least 0)")
            if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -100 <= bias <= 100:
                self._refuse("logit_bias", "a map to numbers in [-100, 100]")

    def _check_ranges(self) -> None:
        if self.n < 1:
            self._refuse("n", "at least 1")
        if self.temperature < 0:
            self._refuse("temperature", "at least 0")
        if self.top_k < -1:
            self._refuse("top_k", "-1, 0 (all) or a positive number")
        if not 0 < self.top_p <= 1:
            self._refuse("top_p", "in (0, 1]")
        if not 0 <= self.min_p <= 1:
            self._refuse("min_p", "in [0, 1]")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                self._refuse(name, "in [-2, 2]")
        if self.repetition_penalty <= 0:
            self._refuse("repetition_penalty", "above 0")
        if self.max_tokens is not None and self.max_tokens < 1:
            self._refuse("max_tokens", "at least 1")
        if self.min_tokens < 0 or (self.max_tokens is not None and self.min_tokens > self.max_tokens):
            most = "" if self.max_tokens is None else f" and at most max_tokens ({self.max_tokens})"
            self._refuse("min_tokens", f"at least 0{most}")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_LOGPROBS:
                self._refuse(name, f"from 0 to {MAX_LOGPROBS}")
        if self.beam is not None:
            self._check_beam(self.beam)

    def _check_beam(self, beam: BeamParams) -> None:
        """A search takes the model's own log-probabilities, and its answers are known at the end alone."""
        if self.n > beam.width:
            self._refuse("n", f"at most the beam width, {beam.width}")
        if self.temperature not in (0, 1):
            self._refuse("temperature", "left out in a beam search, which draws nothing")
        for name, neutral in _NOT_FOR_BEAMS.items():
            if getattr(self, name) != neutral:
                self._refuse(name, "left out in a beam search")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0
