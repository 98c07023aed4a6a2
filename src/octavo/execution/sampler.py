"""``Sampler``: logits in, the next token of each row out.

A row's answer depends on its own logits, its request and its position, and on nothing else: every row is computed
alone, in one order of operations, and its random number is a hash of (request seed, position). So neither batching,
nor the order of rows, nor a preemption changes a seeded answer.

Order of operations, on the logits of one row (float32, as they come; sums of probabilities in float64):

1. add ``logit_bias``;
2. while fewer than ``min_tokens`` tokens were generated, set the logits of end tokens to -inf;
3. repetition penalty over prompt and output, then frequency and presence penalties over the output; then a
   request's constraint, if it has one, sets the logits of forbidden tokens to -inf;
4. ``temperature`` 0: take the highest logit, of equal ones the lowest token id. Else divide by the temperature;
5. ``min_p``, then ``top_k``, then ``top_p`` each narrow what the one before left; ``top_p`` counts shares of that;
6. of the candidates in order of token id, take the first at which the running sum of probabilities exceeds u x their
   sum. (In order of falling probability they would first have to be sorted.)

Steps 4 to 6 are native, a row a thread (``native/row_sampler.cpp``): with ``top_p`` they cost a quarter of a step of 64
rows when NumPy did them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.core.errors import ModelError
from octavo.core.plan import Candidates, TokenLogprobs
from octavo.core.request import Request
from octavo.execution.logit_memory import logit_memory
from octavo.execution.sampler_logprobs import candidates, token_logprobs
from octavo.execution.sampler_penalties import PenaltyTable
from octavo.execution.sampler_random import uniform

Logits = NDArray[np.float32]

TEMPERATURE_MIN, TEMPERATURE_MAX = 1e-20, 1e20
"""Beyond these a temperature would be 0 or infinite in float32; the answers are those of the limits anyway."""


class Sampler:
    """Holds what sampling needs to know of each running row: its request, and how often each token occurred."""

    def __init__(
        self, vocab_size: int, eos_token_ids: tuple[int, ...], runtime: _native.Runtime | None = None
    ) -> None:
        """``vocab_size``: columns of the logits. ``eos_token_ids``: tokens with which the model itself ends.
        ``runtime``: whose threads choose; None is the machine's best path and the caller's thread."""
        self._chooser = _native.RowSampler(runtime or _native.Runtime(_native.available_paths()[0], 1))
        self._vocab_size = vocab_size
        self._copies = logit_memory(0, vocab_size)
        """Working memory for logits that requests change; grows."""
        self._eos_token_ids = tuple(index for index in eos_token_ids if 0 <= index < vocab_size)
        self._rows: dict[int, _Row] = {}
        self._batch: _Batch | None = None
        """The rows of the latest step; most steps have the same ones. None once one of them has changed."""
        self.searches = 0
        """Rows that belong to beam searches."""

    def start(self, row: int, request: Request, output_token_ids: NDArray[np.int32]) -> None:
        """``request`` takes ``row``. ``output_token_ids`` int32 [O]: what it generated before and kept."""
        assert row not in self._rows, f"row {row} has a request already"
        self._rows[row] = _Row(request, output_token_ids, self._vocab_size, self._eos_token_ids)
        self._batch = None
        self.searches += self._rows[row].beam_width > 0

    def end(self, row: int) -> None:
        """The request of ``row`` left it. A row is unknown if the step that would have started it failed before."""
        state = self._rows.pop(row, None)
        self._batch = None
        self.searches -= state is not None and state.beam_width > 0

    def sample(
        self, rows: NDArray[np.int32], positions: NDArray[np.int32], logits: Logits
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_], dict[int, TokenLogprobs]]:
        """The next token of each row.

        ``rows`` int32 [S]; ``positions`` int32 [S]: index in its sequence of the token to be sampled; ``logits``
        float32 [S, V], not changed. Returns token ids int32 [S]; whether each ends its request, bool [S]; and, for rows
        whose requests asked, row -> log-probabilities. Raises ModelError where logits are not numbers.
        """
        assert logits.shape == (len(rows), self._vocab_size), f"logits {logits.shape} for {len(rows)} rows"
        numbers = rows.tolist()
        batch = self._batch
        if batch is None or batch.rows != numbers:
            batch = self._batch = _Batch(numbers, self._rows)
        tokens = self._choose(batch, positions.tolist(), logits)
        ids = tokens.tolist()
        stopped = np.array(
            [token in state.ends for token, state in zip(ids, batch.states, strict=True)], np.bool_
        )
        logprobs: dict[int, TokenLogprobs] = {}
        for index in batch.followed:
            row, state, token = numbers[index], batch.states[index], ids[index]
            if state.logprobs is not None:
                logprobs[row] = token_logprobs(logits[index], token, state.logprobs)
            if state.penalties is not None:
                state.penalties.add_output(token)
            if state.mask is not None:
                state.mask.advance(token)
        return tokens, stopped, logprobs

    def _choose(self, batch: _Batch, positions: list[int], logits: Logits) -> NDArray[np.int32]:
        """Tokens of the rows, int32 [S]. Logits that a request changes are copied first."""
        if not batch.changed:
            return self._choose_from(batch.all, positions, logits)
        changed, others = batch.changed, batch.unchanged
        tokens = np.empty(len(batch.states), np.int32)
        if len(self._copies) < len(changed):
            self._copies = logit_memory(len(changed), self._vocab_size)
        copies = self._copies[: len(changed)]
        for copy, index in zip(copies, changed, strict=True):
            copy[...] = logits[index]
            batch.states[index].adjust(copy, positions[index])
        for chosen, part, source in (
            (changed, batch.of_changed, copies),
            (others, batch.of_unchanged, logits[others]),
        ):
            if chosen:
                tokens[chosen] = self._choose_from(part, [positions[index] for index in chosen], source)
        return tokens

    def _choose_from(self, part: _Columns, positions: list[int], logits: Logits) -> NDArray[np.int32]:
        tokens, highest = self._chooser.choose(
            logits, part.temperature, part.top_k, part.top_p, part.min_p, part.uniforms(positions)
        )
        # Infinite logits would make inf - inf where they are divided by a temperature; a NaN is never right.
        if not all(map(math.isfinite, highest)):
            for value, heat in zip(highest, part.temperature.tolist(), strict=True):
                if math.isnan(value) or (heat > 0 and math.isinf(value)):
                    raise ModelError(
                        f"the model's highest logit is {value}: its weights are damaged", param="model"
                    )
        return np.array(tokens, np.int32)

    def candidates(
        self, rows: NDArray[np.int32], positions: NDArray[np.int32], logits: Logits
    ) -> dict[int, Candidates]:
        """What beam searches choose from, for those of the rows that belong to one. Arguments as for ``sample``."""
        found: dict[int, Candidates] = {}
        for index, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            state = self._rows[row]
            if state.beam_width:
                found[row] = state.candidates(logits[index], position)
        return found

    def prompt_logprobs(
        self, request: Request, positions: NDArray[np.int32], logits: Logits
    ) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of the prompt tokens that ``logits`` predict.

        ``positions`` int32 [n] with ``logits`` float32 [n, V]: the logits at position p are those of prompt token
        p + 1; a position whose next token is not in the prompt is passed over.
        """
        count = request.sampling.prompt_logprobs
        assert count is not None, f"request {request.request_id} asked for no prompt_logprobs"
        prompt = request.prompt_token_ids
        return tuple(
            token_logprobs(logits[index], int(prompt[position + 1]), count)
            for index, position in enumerate(positions.tolist())
            if position + 1 < len(prompt)
        )


class _Columns:
    """The settings of several rows, as the native part takes them: one array a setting."""

    def __init__(self, states: list[_Row]) -> None:
        settings = np.array([state.settings for state in states], np.float64).reshape(-1, 4).T.copy()
        self.temperature, self.top_p, self.min_p = settings[0], settings[2], settings[3]
        self.top_k = settings[1].astype(np.int32)
        self._states = states
        self._none = None if np.count_nonzero(self.temperature) else np.zeros(len(states))
        """What takes the place of random numbers where nobody draws."""

    def uniforms(self, positions: list[int]) -> NDArray[np.float64]:
        """The random number of each row's token, at these positions."""
        if self._none is not None:
            return self._none
        return np.array(
            [state.uniform(at) for state, at in zip(self._states, positions, strict=True)], np.float64
        )


class _Batch:
    """The rows of a step, and what of them stays the same until one starts or ends.

    Gathered anew in every step it took longer than choosing the tokens: little work, but spread over memory that the
    model's weights have pushed out of the caches.
    """

    def __init__(self, rows: list[int], known: Mapping[int, _Row]) -> None:
        self.rows = rows
        self.states = states = [known[row] for row in rows]
        self.changed = [index for index, state in enumerate(states) if state.changes_logits]
        """Indices of those whose requests change the logits."""
        self.unchanged = [index for index, state in enumerate(states) if not state.changes_logits]
        self.followed = [index for index, state in enumerate(states) if state.follows_tokens]
        self.all = _Columns(states)
        self.of_changed = _Columns([states[index] for index in self.changed])
        self.of_unchanged = self.all if not self.changed else _Columns([states[i] for i in self.unchanged])


class _Row:
    """One running request, as far as sampling is concerned."""

    def __init__(
        self,
        request: Request,
        output_token_ids: NDArray[np.int32],
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        params = request.sampling
        assert params.greedy or params.beam or params.seed is not None, (
            "the edge draws a seed for a request that names none"
        )
        params.check_vocab_size(vocab_size)
        self._params = params
        self._seed = 0 if params.seed is None else params.seed
        self._prompt_tokens = len(request.prompt_token_ids)
        self.logprobs = params.logprobs
        ends = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        )
        self.beam_width = 0 if params.beam is None else params.beam.width
        self._beam_ends = ends
        self.ends = frozenset() if self.beam_width else ends
        """Tokens with which the executor ends the request; a search ends its beams itself."""
        # Where every token is an end token there is nothing to put in their place.
        self._masked = np.array(sorted(self.ends) if len(self.ends) < vocab_size else [], np.int64)
        self._bias_ids = np.array(list(params.logit_bias), np.int64)
        self._bias = np.array(list(params.logit_bias.values()), np.float32)
        self.penalties = PenaltyTable.for_request(request, output_token_ids)
        self.mask = None if request.constraint is None else request.constraint.start(output_token_ids)
        self.changes_logits = not self.beam_width and (
            self.penalties is not None
            or len(self._bias) > 0
            or params.min_tokens > 0
            or self.mask is not None
        )
        self.follows_tokens = self.logprobs is not None or self.penalties is not None or self.mask is not None
        """Whether a sampled token is more than an answer's next one."""
        greedy = params.greedy or self.beam_width > 0
        heat = 0.0 if greedy else min(max(params.temperature, TEMPERATURE_MIN), TEMPERATURE_MAX)
        self.settings = (heat, min(max(params.top_k, 0), vocab_size), params.top_p, params.min_p)
        """Temperature, top_k, top_p, min_p, as the native part takes them."""

    def uniform(self, position: int) -> float:
        """The random number of the token at ``position``."""
        return uniform(self._seed, position) if self.settings[0] else 0.0

    def candidates(self, logits: Logits, position: int) -> Candidates:
        """For a row of a beam search."""
        ends = self._beam_ends
        allowed = position - self._prompt_tokens >= self._params.min_tokens
        return candidates(logits, Candidates.count(self.beam_width, len(ends)), ends, allowed)

    def adjust(self, logits: Logits, position: int) -> None:
        """Steps 1 to 3, in place. ``logits`` float32 [V]."""
        if len(self._bias):
            logits[self._bias_ids] += self._bias
        if len(self._masked) and position - self._prompt_tokens < self._params.min_tokens:
            logits[self._masked] = -np.inf
        if self.penalties is not None:
            self.penalties.apply(logits)
        if self.mask is not None:
            self.mask.apply(logits)
