"""The description recorded into the native program, every family on every path, against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from native_helpers import every_dtype, every_path, runtime
from numpy_operators import float64_logits
from octavo import _native
from octavo.execution.loading import load_model
from octavo.execution.model import describe
from octavo.execution.recorder import Recorder
from tiny_models import TINY_MODELS, VOCAB_SIZE, write_gguf, write_hf

BLOCKS, BLOCK_SIZE = 14, 8
LENGTH = 100
CHUNKS = (33, 1, 1)

TOLERANCE = {"f32": 5e-5, "bf16": 0.12}
"""Of logits of order 1. bf16 rounds keys, values and, on one path, activations to 8 bits in each of two layers."""


@every_path
@every_dtype
@pytest.mark.parametrize("name", TINY_MODELS)
def test_every_family_agrees_with_float64(name: str, dtype: str, path: str, tmp_path: Path) -> None:
    """In chunks, over scattered blocks whose unwritten slots are poisoned."""
    model = load_model(write_hf(TINY_MODELS[name], tmp_path / name), dtype)  # type: ignore[arg-type]
    spec, length = model.spec, min(LENGTH, model.spec.max_model_len)
    kv = _native.KVStorage(
        runtime(path), BLOCKS, BLOCK_SIZE, spec.num_layers, spec.num_kv_heads, spec.head_dim, dtype
    )
    kv.fill(float("nan"))
    recorder = Recorder(runtime(path))
    describe(model, recorder, spec.max_model_len)
    program = recorder.finish(kv)
    tokens = ((np.arange(length) * 37 + 11) % 256).astype(np.int32)
    table = np.random.default_rng(1).permutation(BLOCKS).astype(np.int32)[None]
    logits, done = np.full((length, VOCAB_SIZE), np.nan, np.float32), 0
    for chunk in (*CHUNKS, length - sum(CHUNKS)):
        part = slice(done, done + chunk)
        program.run(
            tokens[part],
            np.array([done], np.int32),
            np.array([chunk], np.int32),
            table,
            np.zeros(1, np.int32),
            np.arange(chunk, dtype=np.int32),
            logits[part],
        )
        done += chunk
    expected = float64_logits(model, tokens)
    np.testing.assert_allclose(logits, expected, atol=TOLERANCE[dtype], rtol=0)
    assert np.abs(logits - expected).mean() < TOLERANCE[dtype] / 8


@pytest.mark.parametrize("encoding", ["Q8_0", "Q4_1", "Q6_K"])
def test_a_quantised_model_agrees_with_float64(encoding: str, tmp_path: Path) -> None:
    model = load_model(write_gguf(TINY_MODELS["llama-wide"], tmp_path / "m.gguf", encoding), "f32")
    spec, path = model.spec, _native.available_paths()[0]
    kv = _native.KVStorage(runtime(path), 2, 32, spec.num_layers, spec.num_kv_heads, spec.head_dim, "f32")
    recorder = Recorder(runtime(path))
    describe(model, recorder, 64)
    tokens, logits = np.arange(40, dtype=np.int32), np.empty((40, VOCAB_SIZE), np.float32)
    recorder.finish(kv).run(
        tokens,
        np.zeros(1, np.int32),
        np.full(1, 40, np.int32),
        np.array([[1, 0]], np.int32),
        np.zeros(1, np.int32),
        tokens,
        logits,
    )
    np.testing.assert_allclose(logits, float64_logits(model, tokens), atol=TOLERANCE["f32"], rtol=0)


def test_registers_are_taken_over(tmp_path: Path) -> None:
    """A deeper model needs no more registers: the values of a layer die with it."""

    class Counting(_native.Program):
        registers = 0

        def register(self, width: int) -> int:
            self.registers += 1
            return super().register(width)

    counts = []
    for layers in (1, 6):
        folder = tmp_path / str(layers)
        write_hf(
            TINY_MODELS["llama"].__class__(**{**TINY_MODELS["llama"].__dict__, "layers": layers}), folder
        )
        model = load_model(folder, "f32")
        recorder = Recorder(runtime("portable"))
        describe(model, recorder, 8)
        kv = _native.KVStorage(runtime("portable"), 1, 8, layers, 2, 16, "f32")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_native, "Program", Counting)
            program = recorder.finish(kv)
        counts.append(program.registers)  # type: ignore[attr-defined]
    assert counts[0] == counts[1] <= 9
