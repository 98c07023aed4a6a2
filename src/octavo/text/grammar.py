"""Constraints from JSON schemas, grammars, regular expressions and choices: token masks by llguidance.

A constraint is written by a client, so it is a program by a stranger: its size is limited here, its work by
llguidance's own counters (which end in an error, not in a hang), and the server compiles it in a worker thread under
a deadline.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import RequestError
from octavo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_SOURCE_CHARS = 1 << 18
"""Longest schema or grammar."""
MAX_LEXER_STATES = 20_000
"""Of one constraint; each takes a kilobyte or two."""

Kind = Literal["json_schema", "regex", "choice", "lark"]


class _Vocabulary:
    """Octavo's tokenizer in the shape that llguidance asks for."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        eos = tokenizer.eos_token_id
        if eos is None:
            raise RequestError(
                "the model has no end token, so no answer can be constrained", param="response_format"
            )
        self.eos_token_id: int = eos
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(index) for index in range(vocab_size)]
        self.special_token_ids = sorted(index for index in tokenizer.special_token_ids if index < vocab_size)
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text, add_special_tokens=False) if text else []


class GrammarCompiler:
    """Makes constraints for one model. Safe to use from several threads; llguidance is loaded at first use."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """``vocab_size``: columns of the model's logits."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._backend: LLTokenizer | None = None

    def compile(self, kind: Kind, source: Any, *, param: str) -> GrammarConstraint:
        """``source``: a schema (JSON value), a pattern, a list of strings, or Lark text, which came in field ``param``.

        Raises RequestError where it is no valid constraint, or a too large one.
        """
        import llguidance  # not at the top: most servers never see a constraint, and the library takes time to load

        try:
            text = source if isinstance(source, str) and kind != "json_schema" else json.dumps(source)
            if len(text) > MAX_SOURCE_CHARS:
                raise RequestError(
                    f"{param} has {len(text):,} characters; {MAX_SOURCE_CHARS:,} are allowed", param=param
                )
            grammar = llguidance.grammar_from(kind, text)
        except (ValueError, TypeError, RecursionError) as error:
            raise RequestError(f"{param} is not valid: {error}", param=param) from error
        backend = self._get_backend()
        limits = llguidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES)
        matcher = llguidance.LLMatcher(backend, grammar, log_level=0, limits=limits)
        problem = matcher.get_error() or _first_step(matcher, self._vocab_size)
        if problem:
            raise RequestError(f"{param} is not valid: {_first_line(problem)}", param=param)
        return GrammarConstraint(matcher, backend.eos_token, self._vocab_size)

    def _get_backend(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        with self._lock:
            if self._backend is None:
                vocabulary = _Vocabulary(self._tokenizer, self._vocab_size)
                self._backend = LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=self._vocab_size)
            return self._backend


class GrammarConstraint:
    """Implements ``core.constraint.Constraint``."""

    def __init__(self, matcher: LLMatcher, eos_token_id: int, vocab_size: int) -> None:
        self.failed = False
        """Whether the matcher of some answer gave up."""
        self._matcher = matcher
        self._eos_token_id = eos_token_id
        self._vocab_size = vocab_size

    def start(self, output_token_ids: NDArray[np.int32]) -> GrammarMask:
        mask = GrammarMask(self, self._matcher.deep_copy(), self._eos_token_id, self._vocab_size)
        for token in output_token_ids.tolist():
            mask.advance(token)
        return mask

    def gave_up(self, output_token_ids: NDArray[np.int32]) -> bool:
        if not self.failed:
            return False
        trial = self._matcher.deep_copy()
        for token in output_token_ids.tolist():
            trial.compute_bitmask()  # where the limits on work are found out
            if trial.is_error() or not trial.consume_token(token):
                return True
        return bool(trial.is_error())


class GrammarMask:
    """Implements ``core.constraint.TokenMask``.

    Where nothing more can follow, or the matcher gave up (its limits on work per token), only the end token is allowed:
    the request ends, and everyone else's goes on.
    """

    def __init__(
        self, constraint: GrammarConstraint, matcher: LLMatcher, eos_token_id: int, vocab_size: int
    ) -> None:
        self._constraint = constraint
        self._matcher = matcher
        self._eos_token_id = eos_token_id
        self._vocab_size = vocab_size

    def apply(self, logits: NDArray[np.float32]) -> None:
        if not self._matcher.is_stopped():
            allowed = _allowed(self._matcher, self._vocab_size)
            if not self._matcher.is_error() and allowed.any():
                logits[~allowed] = -np.inf
                return
        self._constraint.failed |= bool(self._matcher.is_error())
        end = logits[self._eos_token_id]
        logits.fill(-np.inf)
        logits[self._eos_token_id] = end

    def advance(self, token_id: int) -> None:
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token_id)


def _allowed(matcher: LLMatcher, vocab_size: int) -> NDArray[np.bool_]:
    """bool [V]: tokens that may follow."""
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return np.unpackbits(bits, bitorder="little")[:vocab_size].view(np.bool_)


def _first_step(matcher: LLMatcher, vocab_size: int) -> str:
    """What goes wrong at the first token; empty if nothing does. ``matcher`` stays at its start.

    The first mask is the dear one (a second for a hostile pattern) and may find that the limits do not suffice: better
    here, in a worker thread and as a refusal, than in the engine's step. Copies of the matcher share what it computed.
    """
    first = np.flatnonzero(_allowed(matcher, vocab_size))
    trial = matcher.deep_copy()
    if first.size:
        trial.consume_token(int(first[0]))
    return str(trial.get_error())


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "unknown error"
