from __future__ import annotations

import pytest

from octavo.core.errors import ConfigError
from octavo.core.model_spec import ModelSpec
from octavo.memory import sizing


def spec(layers: int, kv_heads: int, head_dim: int, kv_dtype: str = "bf16") -> ModelSpec:
    return ModelSpec("tiny", layers, 8, kv_heads, head_dim, 64, 128, 1_000, 2_048, kv_dtype)


QWEN3_4B = spec(36, 8, 128)
"""147,456 bytes a token: the article's model."""


def test_the_articles_pool() -> None:
    assert sizing.block_bytes(QWEN3_4B, 1) == 147_456
    assert sizing.block_bytes(QWEN3_4B, 16) == 2 * 36 * 16 * 8 * 128 * 2 == 2_359_296
    pool = 405_239 * 147_456
    assert sizing.blocks_in(pool, QWEN3_4B, 1) == 405_239
    assert sizing.blocks_in(pool, QWEN3_4B, 16) == 25_327
    assert sizing.pool_bytes(25_327, QWEN3_4B, 16) <= pool < sizing.pool_bytes(25_328, QWEN3_4B, 16)
    assert pool / sizing.GIB == pytest.approx(55.65, abs=0.005)
    assert sizing.max_concurrency(25_327, 16, 40_960) == pytest.approx(9.89, abs=0.005)
    assert sizing.tokens_per_gib(QWEN3_4B) == 7_281


def test_the_blocks_of_a_second_tier() -> None:
    block = sizing.block_bytes(QWEN3_4B, 16)
    assert sizing.offload_blocks_in(3 * block + 7, QWEN3_4B, 16, "paged") == 3
    for size, allocator in ((block - 1, "paged"), (0, "paged"), (10 * block, "reserved")):
        with pytest.raises(ConfigError) as caught:
            sizing.offload_blocks_in(size, QWEN3_4B, 16, allocator)
        assert caught.value.param == "--kv-offload-bytes"


def test_what_keeps_more_requests_from_running() -> None:
    assert sizing.concurrency(10, 95, 16) == sizing.Concurrency(9, 9, "pool")
    assert sizing.concurrency(10, 160, 16) == sizing.Concurrency(16, 16, "max_num_seqs")
    assert sizing.concurrency(1, 95, 16) == sizing.Concurrency(95, 16, "max_num_seqs")
    assert sizing.concurrency(96, 95, 16).running == 0


def test_the_articles_block_table() -> None:
    assert sizing.table_bytes(128, 40_960, 16) == 1.25 * sizing.MIB
    assert sizing.table_bytes(128, 40_960, 1) == 20 * sizing.MIB


def test_element_size_counts() -> None:
    assert sizing.block_bytes(spec(2, 1, 4, "f32"), 8) == 2 * 2 * 8 * 1 * 4 * 4


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8"])
def test_bytes_count_with_their_scales(kv_dtype: str) -> None:
    assert sizing.block_bytes(spec(2, 1, 8, kv_dtype), 8) == 2 * 2 * 8 * 1 * (8 + 4)
    article = spec(36, 8, 128, kv_dtype)
    assert article.kv_bytes_per_token == 2 * 36 * 8 * (128 + 4) == 76_032
    assert sizing.tokens_per_gib(article) == 14_122  # beside 7,281 of bf16: 1.94 times
    pool = sizing.pool_bytes(25_327, QWEN3_4B, 16)
    assert sizing.blocks_in(pool, article, 16) == 49_119


def test_partial_blocks_count_whole() -> None:
    assert [sizing.blocks_for(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
    assert sizing.max_concurrency(10, 16, 17) == 5.0


def test_a_pool_without_a_block_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"2,359,295 bytes.*2,359,296 bytes") as caught:
        sizing.blocks_in(2_359_295, QWEN3_4B, 16)
    assert caught.value.param == "--kv-cache-memory-bytes"
    with pytest.raises(ConfigError):
        sizing.blocks_in(-5, QWEN3_4B, 16)


def test_an_unsupported_block_size_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match="24 is not supported; choose one of 1, 2, 4") as caught:
        sizing.block_bytes(QWEN3_4B, 24)
    assert caught.value.param == "--block-size"


def test_a_request_without_tokens_has_no_concurrency() -> None:
    with pytest.raises(ConfigError):
        sizing.max_concurrency(10, 16, 0)
