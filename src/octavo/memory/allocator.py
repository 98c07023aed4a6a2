"""``Allocator``: the policy that turns tokens into slots, and the words in which the scheduler asks for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.core.events import PoolState, Waste
from octavo.memory.block_table import BlockTable
from octavo.memory.lookups import Lookups
from octavo.memory.offload import Offload, Swapped
from octavo.memory.prefix_cache import HashChain

NO_COPIES: NDArray[np.int32] = np.zeros((0, 2), np.int32)
NO_COPIES.setflags(write=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a request brings to the door."""

    request_id: str
    token_ids: NDArray[np.int32]
    """int32 [K]: tokens known so far, the prompt and any output that was kept."""
    limit: int
    """Tokens it may reach: prompt + max_tokens, or the longest sequence if it named none."""
    chain: HashChain
    """Names of its full blocks."""
    lookup: bool = True
    """Whether blocks computed by others may stand in for its own."""
    resumed: bool = False
    """Whether it had been admitted before. Only the first time is explained and counted."""
    swapped: Swapped | None = None
    """What it has in the second tier."""


@dataclass(frozen=True, slots=True)
class Blockage:
    """Enough slots are free, but in the wrong places: external fragmentation."""

    slots_needed: int
    slots_free: int
    runs_free: int
    largest_run: int


class Allocator(Protocol):
    """Owns the pool and the block table. Rows are the scheduler's; each is empty, or was admitted and not released.

    Nothing here raises for lack of memory: ``admit`` and ``grow`` say that it does not fit now.
    """

    name: str
    block_size: int
    num_blocks: int
    """Blocks in the pool."""
    pool_len: int
    """Tokens of the longest sequence that an empty pool can hold."""
    max_len: int
    """The same, but no longer than the model's context."""
    table: BlockTable
    caching: bool
    """Whether full blocks are published and found again."""
    grows: bool
    """Whether rows take memory as they grow; where not, they have all of it from the start."""
    can_fork: bool
    """Whether rows can share blocks; where not, several answers to a prompt are sequences like any others."""
    blocked: Blockage | None
    """Why the latest ``admit`` answered None, if it was external fragmentation."""
    lookups: Lookups
    """What was found of each prompt, and why not more."""
    offload: Offload
    """The second tier. Of no blocks where there is none."""

    def state(self) -> PoolState: ...

    def admit(self, row: int, claim: Claim, headroom: int, budget: int) -> int | None:
        """Take a sequence into an empty row if all its known tokens will fit beside what others were promised.

        ``headroom``: blocks that must stay available afterwards. Returns the leading tokens that are already
        computed (prefix hits; the row holds their blocks), or None: it does not fit now, and nothing changed.
        A paged allocator also takes the blocks of the next ``budget`` tokens, promises the rest and hands it out in
        ``grow``; a contiguous one takes its whole chunk.
        """

    def grow(self, rows: NDArray[np.intp], starts: NDArray[np.intp], stops: NDArray[np.intp]) -> int:
        """Make tokens ``starts[i]`` to ``stops[i]`` writable in distinct ``rows[i]``, in this order while they fit.

        All intp [k]. Returns how many leading rows were served; the others are untouched.
        """

    def grow_by_block(self, rows: NDArray[np.intp]) -> int:
        """One more block for each of these distinct rows, in this order while they last; none of them is unclean.

        The same as ``grow`` to the next token past the last block: what a steady decode needs. Returns how many
        leading rows were served.
        """

    @property
    def unclean(self) -> Collection[int]:
        """Rows whose next write may fall into a block that others see: ``grow`` must be asked before it."""

    def park(self) -> None:
        """Copy what is cached to the second tier, as far as it has room, and keep it: this process is about to end."""

    def reset_cache(self) -> int:
        """Let nothing that was computed until now be found again. Returns how many cached blocks became free."""

    def take_copies(self) -> NDArray[np.int32]:
        """int32 [C, 2]: (source, destination) of the copies since the last call, to be made in this order."""

    def take_evicted(self) -> tuple[int, ...]:
        """Blocks that lost their cached content since the last call. Called once a step, at the end of planning."""

    def publish(
        self,
        rows: NDArray[np.intp],
        firsts: NDArray[np.intp],
        lasts: NDArray[np.intp],
        chains: Sequence[HashChain],
        tokens: NDArray[np.int32],
    ) -> None:
        """Let blocks ``firsts[i]`` to ``lasts[i]`` - 1 of ``rows[i]`` be found: they are computed and full.

        At least one block each. ``tokens``: int32 [rows, blocks, block_size], the tokens of every row.
        """

    def fork(self, parent: int, child: int) -> None:
        """Let an empty row share every block of another, the partial one too. Copies come with the first write.

        The parent must have written into each of its blocks: between steps, with its prompt computed.
        """

    def swap_out(self, row: int, tokens: int, claim: Claim, tokens_per_block: float) -> Swapped | None:
        """Copy the blocks of a row's first ``tokens`` tokens to the second tier, before the row is released.

        None where that would take longer than to recompute what will not be found again (``tokens_per_block`` as
        in ``SchedulerConfig.swap_tokens_per_block``), or where the tier has no room.
        """

    def truncate(self, row: int, tokens: int) -> None:
        """Keep a row's first ``tokens`` tokens and release the blocks behind them."""

    def release(self, row: int) -> int:
        """Empty a row. Returns how many blocks it held."""

    def waste(self, rows: NDArray[np.intp], written: NDArray[np.intp], total: int, external: int) -> Waste:
        """Where the held slots go. ``written``: tokens written in each occupied row, intp [n]; ``total``: their sum.

        ``external``: free slots that the head of the queue could not use.
        """
