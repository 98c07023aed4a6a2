"""The native part (native/, bound by native/bindings.cpp). Only ``octavo.execution`` imports it.

Arrays are C-contiguous NumPy arrays unless said otherwise. bf16 arrays travel as uint16 bit patterns. All activations
are float32 *registers* of a Program: a register has ``width`` columns and one row a token (or one a logit row).
"""

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

def available_paths(variants: bool = False) -> list[str]:
    """Instruction paths this machine can run, best first, out of avx512_amx, avx512_bf16, avx2, portable.

    ``variants`` adds names for tests and measurements: avx512_bf16_dot and avx512_bf16_widened are the two kernels for
    bf16 weights of which avx512_bf16 takes the one that suits the processor (AMD, Intel); avx2_maddubs and avx2_vnni
    the two for quantised weights of which avx2 takes the one that is there. avx512_amx is avx512_bf16 but for linear
    layers of bf16 weights.
    """

class NotFiniteError(ValueError):
    """A weight is NaN or infinite; ``args`` are its row, its column and what it is."""

class EncodedMatrix:
    """Rows of a matrix as they lie in a model's file; refers to their memory."""

    def __init__(self, parts: tuple[tuple[str, NDArray[np.uint8]], ...], columns: int) -> None:
        """``parts`` lie one below another, each a GGUF name of an encoding (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1,
        Q8_0, Q4_K, Q5_K, Q6_K) and uint8 [rows, bytes of a row]."""
    def decode(self, dtype: str, threads: int = 1) -> NDArray[Any]:
        """[rows, columns], float32 or uint16 (bf16, rounded to nearest even). Raises NotFiniteError."""

class Runtime:
    """An instruction path and one private thread pool."""

    def __init__(self, path: str, threads: int) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def threads(self) -> int: ...

def probe_bandwidth(runtime: Runtime) -> float:
    """GB/s of all threads reading 256 MiB in sequence: the limit of few rows."""

def probe_flops(runtime: Runtime, dtype: str) -> float:
    """GFLOP/s of the path's multiply-add on registers alone, the limit of many rows: f32, bf16, int8 (of
    bytes) or int4 (of bytes with codes of four bits)."""

class Weight:
    """A linear layer packed for a path. Holds its own memory; the source array may be dropped."""

    @overload
    def __init__(
        self, runtime: Runtime, matrix: NDArray[Any], bias: NDArray[np.float32] | None = None
    ) -> None:
        """``matrix`` [N, K], float32 (stays f32) or uint16 (bf16). Any N >= 1 and K >= 1."""
    @overload
    def __init__(
        self, runtime: Runtime, matrix: EncodedMatrix, format: str, bias: NDArray[np.float32] | None = None
    ) -> None:
        """``format`` is f32, bf16, int8 (a scale an output), or q4_0, q4_1, q8_0 for a matrix stored so throughout.
        Raises NotFiniteError; not for numbers that are stored as f32 or bf16 and kept so, which are not looked at."""
    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...
    @property
    def format(self) -> str:
        """f32, bf16, int8, q4_0, q4_1 or q8_0."""
    @property
    def nbytes(self) -> int: ...

class KVStorage:
    """The pool's memory: num_blocks blocks of all layers. Layout: native/kv_layout.h.

    ``dtype`` is f32, bf16, fp8 (e4m3) or int8; the last two have a float32 scale for each key and each value of a head.
    """

    def __init__(
        self,
        runtime: Runtime,
        num_blocks: int,
        block_size: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: str,
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def memory(self) -> NDArray[np.uint8]:
        """uint8 [num_layers, num_blocks, bytes of a block in one layer]: the memory itself, not a copy."""
    def copy_blocks(self, pairs: NDArray[np.int32]) -> None:
        """[C, 2] of (source, destination), in order."""
    def fill(self, value: float) -> None:
        """For tests: poison every slot (NaN) to show that unwritten ones are never read."""
    def read(self, layer: int, block: int, slot: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """For tests: keys and values [num_kv_heads, head_dim] of one slot."""

class Program:
    """A model recorded as a list of operators, replayed for each step's rows by one call without the GIL.

    Registers are named by the ints that ``register`` returns. A *view* is (register, first column, width) and lets one
    packed linear write q, k and v side by side. Recording order is execution order.
    """

    def __init__(self, runtime: Runtime, kv: KVStorage) -> None: ...
    def register(self, width: int) -> int:
        """A float32 register with one row a token; after ``gather_rows`` into it, one a logit row."""
    @overload
    def embed(self, out: int, table: NDArray[Any]) -> None:
        """out[t] = table[token_ids[t]]; table [vocab, width] float32 or bf16, referenced (kept alive), not copied."""
    @overload
    def embed(self, out: int, table: EncodedMatrix, dtype: str) -> None:
        """Rows are decoded, and rounded to ``dtype``, when they are wanted. Raises NotFiniteError now."""
    def rms_norm(
        self, out: int, source: int, weight: NDArray[np.float32], eps: float, column: int = 0, groups: int = 1
    ) -> None:
        """RMSNorm over ``groups`` consecutive groups of len(weight) columns from ``column`` on; groups = heads for
        qk-norm. ``out`` may be ``source``; other columns of out are left alone."""
    def linear(self, out: int, source: int, weight: Weight) -> None:
        """out = source @ weight.T + bias. Every output is accumulated over the whole K in one order that depends on
        neither the number of rows nor the threads."""
    def rope(
        self,
        register: int,
        column: int,
        heads: int,
        head_dim: int,
        cos: NDArray[np.float32],
        sin: NDArray[np.float32],
    ) -> None:
        """In place, rotate-half (Hugging Face) order over ``heads`` heads from ``column`` on; cos, sin
        [max_len, rotary/2], indexed by each token's position; only the first ``rotary`` columns of a head turn.
        Includes any attention scaling."""
    def store_kv(self, layer: int, source: int, key_column: int, value_column: int) -> None:
        """Write each token's keys and values into its slot (from position and block table)."""
    def paged_attention(
        self, out: int, source: int, query_column: int, heads: int, layer: int, scale: float
    ) -> None:
        """Causal attention of each token over positions 0..its own of its row, through the block table."""
    def silu_mul(self, out: int, source: int) -> None:
        """source [T, 2F] = gate | up; out [T, F] = silu(gate) * up."""
    def add(self, out: int, source: int) -> None:
        """out += source."""
    def gather_rows(self, out: int, source: int) -> None:
        """out[s] = source[logit_rows[s]]."""
    def run(
        self,
        token_ids: NDArray[np.int32],
        computed: NDArray[np.int32],
        scheduled: NDArray[np.int32],
        block_table: NDArray[np.int32],
        rows: NDArray[np.int32],
        logit_rows: NDArray[np.int32],
        logits: NDArray[np.float32],
    ) -> None:
        """One step. token_ids [T]; computed, scheduled, rows [R] as in StepPlan; block_table 2-D int32 with contiguous
        rows; logit_rows [S] flat token indices; logits [S, vocab], whose rows may lie
        apart, is filled from the last register written."""
    def expect_runs(self, blocks: int) -> None:
        """Rows take the pool's blocks in aligned runs of so many; 1, which is none, until this is called.

        Only the memory that the pool takes in the background, ahead of the rows of the latest step, depends on it.
        """
    def enable_profile(self, on: bool) -> None:
        """Time every operator from now on (off by default)."""
    def profile(self) -> list[tuple[str, float]]:
        """(operator, seconds) summed since ``enable_profile(True)``, in recording order."""

class RowSampler:
    """Takes the next tokens from logits: steps 4 to 6 of ``execution/sampler.py``, a row a thread."""

    def __init__(self, runtime: Runtime) -> None: ...
    def choose(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float64],
        top_k: NDArray[np.int32],
        top_p: NDArray[np.float64],
        min_p: NDArray[np.float64],
        uniform: NDArray[np.float64],
    ) -> tuple[list[int], list[float]]:
        """Tokens and highest logits of [S, V] logits, whose rows may lie apart; the other arrays are [S]. Temperature 0
        is greedy, top_k 0 keeps all. A token is meaningless where the highest logit is NaN, or infinite and not greedy.
        """
    def candidates(
        self, logits: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float
    ) -> list[int]:
        """For tests: ids that min_p, then top_k, then top_p leave of [V] logits, rising."""
