"""``CpuExecutor``: runs a step's rows through the native program and samples their next tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.core.errors import ConfigError, ModelError
from octavo.core.model_spec import ModelSpec
from octavo.core.plan import StepPlan, StepResult
from octavo.core.request import Request
from octavo.execution.loading import LoadedModel
from octavo.execution.model import describe
from octavo.execution.recorder import Recorder
from octavo.execution.sampler import Sampler


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """A step between ``submit`` and ``collect``: which tokens get logits, in the order in which those lie."""

    plan: StepPlan
    tokens: NDArray[np.int32]
    """int32 [L]: flat token indices."""
    sampled: NDArray[np.intp]
    """[S]: which of the L are sampled from."""
    prompt: tuple[tuple[int, Request, slice, NDArray[np.int32]], ...]
    """(row, request, its logits among the L, their positions: the tokens after them are in the prompt)."""


class CpuExecutor:
    """Implements ``core.ports.Executor``. ``submit`` runs the model, ``collect`` samples; both block.

    A CPU has nothing to overlap a step with: the cores that would plan the next one are the ones that run this one.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        path: str | None = None,
        threads: int = 1,
        max_model_len: int | None = None,
    ) -> None:
        """Packs the weights and takes the pool's memory. ``path`` None is the machine's best; ``max_model_len`` None is
        the model's. Raises ConfigError for a path, threads or a pool that this machine has not, ModelError for a
        damaged weight or a head size that the kernels do not run.
        """
        spec = model.spec
        self.runtime = _runtime(path, threads)
        self.kv = _storage(self.runtime, spec, num_blocks, block_size)
        recorder = Recorder(self.runtime)
        describe(model, recorder, max_model_len or spec.max_model_len)
        self.program = recorder.finish(self.kv)
        self._sampler = Sampler(spec.vocab_size, model.eos_token_ids)
        self._scoring: dict[int, Request] = {}
        """Row -> request, for the rows whose request asked for the log-probabilities of its prompt."""
        self._vocab_size = spec.vocab_size
        self._logits = np.empty((max_num_seqs, spec.vocab_size), np.float32)
        self._last: NDArray[np.float32] = self._logits[:0]

    @property
    def last_logits(self) -> NDArray[np.float32]:
        """float32 [S, vocab]: what the last step's tokens were sampled from, in the plan's order; a copy."""
        return self._last.copy()

    def submit(self, plan: StepPlan) -> _Running:
        """Hand rows over, copy blocks, run the model. The plan's table is read here and not kept."""
        for row in plan.ended:
            self._sampler.end(row)
            self._scoring.pop(row, None)
        for start in plan.started:
            self._sampler.start(start.row, start.request, start.output_token_ids)
            if start.request.sampling.prompt_logprobs is not None:
                self._scoring[start.row] = start.request
        if len(plan.copies):
            self.kv.copy_blocks(plan.copies)
        wanted = self._wanted(plan)
        if len(plan.rows):
            self.program.run(
                plan.token_ids,
                plan.computed,
                plan.scheduled,
                plan.block_table,
                plan.rows,
                wanted.tokens,
                self._room(len(wanted.tokens)),
            )
        return wanted

    def collect(self, handle: object) -> StepResult:
        """Sample from the logits that ``submit`` left behind; call it once, before the next ``submit``."""
        assert isinstance(handle, _Running), "collect takes what submit gave"
        plan, wanted = handle.plan, handle
        logits = self._room(len(wanted.tokens))
        prompt_logprobs = {
            row: self._sampler.prompt_logprobs(request, positions, logits[where])
            for row, request, where, positions in wanted.prompt
        }
        # Without scored prompts every wanted row is sampled from: no copy.
        self._last = logits if len(wanted.sampled) == len(logits) else logits[wanted.sampled]
        positions = (plan.computed + plan.scheduled)[plan.samples]
        tokens, stopped, logprobs = self._sampler.sample(plan.rows[plan.samples], positions, self._last)
        return StepResult(tokens, stopped, logprobs, prompt_logprobs)

    def _room(self, rows: int) -> NDArray[np.float32]:
        """The logits' buffer for ``rows`` rows; it grows only where prompts are scored."""
        if rows > len(self._logits):
            self._logits = np.empty((rows, self._vocab_size), np.float32)
        return self._logits[:rows]

    def _wanted(self, plan: StepPlan) -> _Running:
        ends = np.cumsum(plan.scheduled, dtype=np.int32)
        last_tokens = ends[plan.samples] - np.int32(1)
        if not self._scoring or self._scoring.keys().isdisjoint(plan.rows.tolist()):
            return _Running(plan, last_tokens, np.arange(len(last_tokens)), ())
        tokens: list[NDArray[np.int32]] = []
        sampled, prompt, count = [], [], 0
        for i, (row, end) in enumerate(zip(plan.rows.tolist(), ends.tolist(), strict=True)):
            computed, scheduled = int(plan.computed[i]), int(plan.scheduled[i])
            request = self._scoring.get(row)
            length = 0 if request is None else len(request.prompt_token_ids)
            # A token at position p predicts the one at p + 1: those that predict a prompt token, then the newest.
            scored = max(0, min(scheduled, length - 1 - computed))
            if request is not None and scored:
                positions = np.arange(computed, computed + scored, dtype=np.int32)
                prompt.append((row, request, slice(count, count + scored), positions))
                tokens.append(np.arange(end - scheduled, end - scheduled + scored, dtype=np.int32))
                count += scored
            if plan.samples[i]:
                sampled.append(count)
                tokens.append(np.array([end - 1], np.int32))
                count += 1
        flat = np.concatenate(tokens) if tokens else np.empty(0, np.int32)
        return _Running(plan, flat, np.array(sampled, np.intp), tuple(prompt))


def _runtime(path: str | None, threads: int) -> _native.Runtime:
    available = _native.available_paths()
    if path is not None and path not in available:
        raise ConfigError(
            f"path {path!r} does not run on this machine; {', '.join(available)} do", param="--cpu-path"
        )
    try:
        return _native.Runtime(path or available[0], threads)
    except ValueError as error:
        raise ConfigError(str(error), param="--threads") from error


def _storage(
    runtime: _native.Runtime, spec: ModelSpec, num_blocks: int, block_size: int
) -> _native.KVStorage:
    """The pool. Memory is taken as it is written to; only address space can run out here."""
    if spec.head_dim % 8:
        raise ModelError(
            f"{spec.name} has heads of {spec.head_dim} elements; the CPU's kernels run multiples of 8",
            param="model",
        )
    try:
        return _native.KVStorage(
            runtime, num_blocks, block_size, spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.kv_dtype
        )
    except MemoryError as error:
        needed = num_blocks * block_size * spec.kv_bytes_per_token
        raise ConfigError(
            f"a pool of {num_blocks} blocks needs {needed:,} bytes, which this machine does not give",
            param="--kv-cache-memory-bytes",
        ) from error
