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
from octavo.execution.logit_memory import logit_memory
from octavo.execution.logit_rows import LogitRows, logit_rows
from octavo.execution.model import describe
from octavo.execution.recorder import Recorder
from octavo.execution.sampler import Sampler
from octavo.execution.tier import Store, Tier


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """A step between ``submit`` and ``collect``."""

    plan: StepPlan
    wanted: LogitRows
    logits: NDArray[np.float32]
    """float32 [L, vocab]; mostly a view of the executor's buffer, which the next ``submit`` writes over."""
    damaged: tuple[int, ...] = ()
    """Transfers whose source was."""


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
        store: Store | None = None,
        superblock: int = 1,
    ) -> None:
        """Packs the weights and takes the pool's memory. ``path`` None is the machine's best; ``max_model_len`` None is
        the model's; ``store`` keeps the second tier's bytes, where there is one; ``superblock`` is how many blocks lie
        ahead of a row that takes the first of them. Raises ConfigError for a path, threads or a pool that this machine
        has not, ModelError for a damaged weight or a head size that the kernels do not run.
        """
        spec = model.spec
        self.runtime = _runtime(path, threads)
        self.kv = _storage(self.runtime, spec, num_blocks, block_size)
        recorder = Recorder(self.runtime)
        # No position beyond the pool is ever computed: a model made for a million tokens needs no tables for them.
        describe(model, recorder, min(max_model_len or spec.max_model_len, num_blocks * block_size))
        self.program = recorder.finish(self.kv)
        self.program.expect_runs(superblock)
        self.linear_layers = tuple(recorder.linear_layers)
        self.kv_bytes_per_token = spec.kv_bytes_per_token
        self._sampler = Sampler(spec.vocab_size, model.eos_token_ids, self.runtime)
        self._scoring: dict[int, Request] = {}
        """Row -> request, for the rows whose request asked for the log-probabilities of its prompt."""
        self._tier = None if store is None else Tier(self.kv.memory, store)
        self._logits = logit_memory(max_num_seqs, spec.vocab_size)
        self._last: NDArray[np.float32] = self._logits[:0]

    @property
    def last_logits(self) -> NDArray[np.float32]:
        """float32 [S, vocab]: what the last step's tokens were sampled from, in the plan's order; a copy."""
        return self._last.copy()

    def submit(self, plan: StepPlan) -> _Running:
        """Move and copy blocks, hand rows over, run the model. The plan's table is read here and not kept."""
        damaged: tuple[int, ...] = ()
        if len(plan.transfers):  # first, so that nothing that fails later leaves them undone
            assert self._tier is not None, "a plan with transfers needs a second tier"
            damaged = self._tier.transfer(plan.transfers, plan.transfer_names)
        for row in plan.ended:
            self._sampler.end(row)
            self._scoring.pop(row, None)
        for start in plan.started:
            self._sampler.start(start.row, start.request, start.output_token_ids)
            if start.request.sampling.prompt_logprobs is not None:
                self._scoring[start.row] = start.request
        if len(plan.copies):
            self.kv.copy_blocks(plan.copies)
        wanted = logit_rows(plan, self._scoring)
        logits = self._room(len(wanted.tokens))
        computed, scheduled, rows = plan.computed, plan.scheduled, plan.rows
        if len(plan.forks):  # they compute nothing
            computing = scheduled > 0
            computed, scheduled, rows = computed[computing], scheduled[computing], rows[computing]
        if len(rows):
            self.program.run(
                plan.token_ids, computed, scheduled, plan.block_table, rows, wanted.tokens, logits
            )
        return _Running(plan, wanted, logits, damaged)

    def collect(self, handle: object) -> StepResult:
        """Sample from the logits that ``submit`` left behind; call it once, before the next ``submit``."""
        assert isinstance(handle, _Running), "collect takes what submit gave"
        plan, wanted, logits = handle.plan, handle.wanted, handle.logits
        prompt_logprobs = {
            prompt.row: self._sampler.prompt_logprobs(prompt.request, prompt.positions, logits[prompt.rows])
            for prompt in wanted.prompts
        }
        # Without scored prompts and forks every row of the logits is sampled from, once: no copy.
        self._last = logits[wanted.sampled] if wanted.prompts or len(plan.forks) else logits
        positions = (plan.computed + plan.scheduled)[plan.samples]
        rows = plan.rows[plan.samples]
        tokens, stopped, logprobs = self._sampler.sample(rows, positions, self._last)
        searched = self._sampler.candidates(rows, positions, self._last) if self._sampler.searches else {}
        return StepResult(tokens, stopped, logprobs, prompt_logprobs, searched, handle.damaged)

    def _room(self, rows: int) -> NDArray[np.float32]:
        """Room for ``rows`` rows of logits: the buffer, or, for a long prompt that is scored, memory for this step."""
        if rows <= len(self._logits):
            return self._logits[:rows]
        return logit_memory(rows, self._logits.shape[1])


def instruction_path(path: str | None) -> str:
    """The one that ``path`` comes to: None is the machine's best."""
    return path or _native.available_paths()[0]


def _runtime(path: str | None, threads: int) -> _native.Runtime:
    available = _native.available_paths()
    if path is not None and path not in available:
        raise ConfigError(
            f"path {path!r} does not run on this machine; {', '.join(available)} do", param="--cpu-path"
        )
    try:
        return _native.Runtime(instruction_path(path), threads)
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
