"""``Running``: the state of the running sequences, as dense arrays in the order of their admission.

Position 0 is the oldest. Arrays move only when somebody leaves, so that a steady step touches each array once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.scheduling.sequence import Sequence

ROW, COMPUTED, KNOWN, LIMIT, SLOTS, SCHEDULED, NEWEST = range(7)


class Chosen(NamedTuple):
    """The running sequences of one step, as its plan has them."""

    rows: NDArray[np.int32]
    request_ids: tuple[str, ...]
    computed: NDArray[np.int32]
    scheduled: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    samples: NDArray[np.bool_]
    sampling: slice | NDArray[np.intp]
    """Positions of those that sample."""


class Running:
    """``[:count]`` of every array is valid. All are intp: rows index others, and NumPy takes its own index type several
    times as fast as int32."""

    def __init__(self, capacity: int) -> None:
        self.count = 0
        self.backlog = 0
        """Sum of known - computed; equals ``count`` when everyone decodes."""
        self.written = 0
        """Sum of computed."""
        self._fields = np.zeros((7, capacity), np.intp)
        self.row = self._fields[ROW]
        """Block-table row of each sequence."""
        self.computed = self._fields[COMPUTED]
        """Tokens with keys and values in the pool."""
        self.known = self._fields[KNOWN]
        """Prompt and generated tokens."""
        self.limit = self._fields[LIMIT]
        """Known tokens at which it ends by length."""
        self.slots = self._fields[SLOTS]
        """Slots that its blocks hold."""
        self.scheduled = self._fields[SCHEDULED]
        """Tokens in the step that is being planned or run."""
        self.newest = self._fields[NEWEST]
        """The last known token."""
        self._ones = np.ones(capacity, np.int32)
        self._trues = np.ones(capacity, np.bool_)
        self._ones.setflags(write=False)
        self._trues.setflags(write=False)
        self.sequences: list[Sequence] = []
        self.ids: list[str] = []
        self._rows_view: NDArray[np.int32] | None = None
        self._ids_view: tuple[str, ...] | None = None

    def rows(self) -> NDArray[np.int32]:
        """int32 [count]: a frozen copy of ``row``, the same object until the membership changes."""
        if self._rows_view is None:
            self._rows_view = self.row[: self.count].astype(np.int32)
            self._rows_view.setflags(write=False)
        return self._rows_view

    def request_ids(self) -> tuple[str, ...]:
        """The same for the request ids."""
        if self._ids_view is None:
            self._ids_view = tuple(self.ids)
        return self._ids_view

    def all_decoding(self) -> Chosen:
        """Every sequence, each with its newest token alone."""
        n = self.count
        computed, token_ids = self.computed[:n].astype(np.int32), self.newest[:n].astype(np.int32)
        everyone = slice(0, n)
        ids = self.request_ids()
        return Chosen(self.rows(), ids, computed, self._ones[:n], token_ids, self._trues[:n], everyone)

    def scheduled_ones(self, tokens: NDArray[np.int32], *, forking: bool = False) -> Chosen:
        """The sequences with tokens in this step. ``tokens``: the known ones of each row. ``forking``: whether some are
        here that have all they know computed, by another: they are in the step, too."""
        n = self.count
        who: slice | NDArray[np.intp] = slice(0, n)
        rows, ids = self.rows(), self.request_ids()
        scheduled = self.scheduled[:n]
        positions = (scheduled | (self.computed[:n] == self.known[:n]) if forking else scheduled).nonzero()[0]
        if len(positions) < n:
            who, rows, ids = positions, rows[positions], tuple(self.ids[i] for i in positions.tolist())
        computed, scheduled = self.computed[who], self.scheduled[who]
        samples = computed + scheduled == self.known[who]
        sampling = who if np.count_nonzero(samples) == len(rows) else positions[samples]
        running = (self.row[who], computed, scheduled, self.newest[who], samples)
        if forking:
            running = tuple(column[scheduled > 0] for column in running)
        token_ids = gather(tokens, *running)
        return Chosen(
            rows, ids, computed.astype(np.int32), scheduled.astype(np.int32), token_ids, samples, sampling
        )

    def append(
        self, sequence: Sequence, row: int, computed: int, known: int, slots: int, scheduled: int
    ) -> None:
        n = self.count
        newest = sequence.token_ids[-1]
        self._fields[:, n] = (row, computed, known, sequence.limit, slots, scheduled, newest)
        self.sequences.append(sequence)
        self.ids.append(sequence.request_id)
        self.count = n + 1
        self.backlog += known - computed
        self.written += computed
        self._rows_view = self._ids_view = None

    def insert(
        self, position: int, sequence: Sequence, row: int, computed: int, known: int, slots: int
    ) -> None:
        """A sequence that is not scheduled, in front of the one that is at ``position`` now."""
        n = self.count
        self._fields[:, position + 1 : n + 1] = self._fields[:, position:n].copy()
        newest = sequence.token_ids[-1]
        self._fields[:, position] = (row, computed, known, sequence.limit, slots, 0, newest)
        self.sequences.insert(position, sequence)
        self.ids.insert(position, sequence.request_id)
        self.count = n + 1
        self.backlog += known - computed
        self.written += computed
        self._rows_view = self._ids_view = None

    def remove(self, positions: list[int]) -> None:
        """Close the gaps that these distinct positions leave; the others keep their order."""
        n = self.count
        if len(positions) == 1:
            gap = positions[0]
            computed, known = int(self.computed[gap]), int(self.known[gap])
            self._fields[:, gap : n - 1] = self._fields[:, gap + 1 : n]
        else:
            computed, known = int(self.computed[positions].sum()), int(self.known[positions].sum())
            stay = np.ones(n, np.bool_)
            stay[positions] = False
            self._fields[:, : n - len(positions)] = self._fields[:, :n][:, stay]
        for position in sorted(positions, reverse=True):
            del self.sequences[position], self.ids[position]
        self.count = n - len(positions)
        self.backlog -= known - computed
        self.written -= computed
        self._rows_view = self._ids_view = None


def gather(
    tokens: NDArray[np.int32],
    rows: NDArray[np.intp],
    computed: NDArray[np.intp],
    scheduled: NDArray[np.intp],
    newest: NDArray[np.intp],
    samples: NDArray[np.bool_],
) -> NDArray[np.int32]:
    """Input tokens of a step, row after row: ``scheduled[i]`` tokens from ``tokens[rows[i], computed[i]]`` on.

    ``newest``: the last known token of each row, which is all the input of a row that decodes.
    """
    stops = scheduled.cumsum()
    token_ids = np.empty(int(stops[-1]) if len(stops) else 0, np.int32)
    token_ids[stops - scheduled] = (
        newest  # right for most; to read the tokens' matrix misses a cache for each row
    )
    for i in ((scheduled > 1) | ~samples).nonzero()[0].tolist():
        length, stop, first = int(scheduled[i]), int(stops[i]), int(computed[i])
        token_ids[stop - length : stop] = tokens[rows[i], first : first + length]
    return token_ids
