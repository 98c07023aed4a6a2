"""Rows of logits start on cache lines and do not compete for the same ones."""

from __future__ import annotations

import pytest

from octavo.execution.logit_memory import logit_memory


@pytest.mark.parametrize("vocab_size", [1, 15, 16, 17, 49152, 32000, 128256])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_rows_lie_an_odd_number_of_lines_apart(rows: int, vocab_size: int) -> None:
    logits = logit_memory(rows, vocab_size)
    assert logits.shape == (rows, vocab_size)
    logits[...] = 1
    assert logits.ctypes.data % 64 == 0 or rows == 0
    assert logits.strides[1] == 4
    assert logits.strides[0] % 128 == 64
    assert vocab_size * 4 <= logits.strides[0] < vocab_size * 4 + 128
