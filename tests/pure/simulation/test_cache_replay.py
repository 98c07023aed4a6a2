"""Hit rates at finite capacity through the real pool, against values that were computed by other means."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from octavo.core.errors import ConfigError
from octavo.simulation.cache_replay import replay
from octavo.simulation.random_numbers import stream
from octavo.simulation.traces import TraceRow, open_trace

TRACES = Path(__file__).parents[3].parent / "shared" / "traces"
CAPACITIES = [1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, None]
PUBLISHED = {
    "mooncake_conversation": [0.0445, 0.0543, 0.1118, 0.2116, 0.2878, 0.3546, 0.3637, 0.3664],
    "mooncake_synthetic": [0.0841, 0.1464, 0.2793, 0.4239, 0.5718, 0.6396, 0.6396, 0.6396],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_mooncake_at_every_capacity(name: str) -> None:
    path = TRACES / f"{name}.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"the shared traces are not at {TRACES}")
    found = replay(open_trace(path).rows(), 512, CAPACITIES)
    assert [round(hits.rate, 4) for hits in found] == PUBLISHED[name]
    assert [hits.capacity for hits in found] == CAPACITIES
    ideal = {"mooncake_conversation": (288_500, 0.3736), "mooncake_synthetic": (121_877, 0.6512)}[name]
    assert (found[-1].blocks, round(found[-1].token_rate, 4)) == ideal


def tree_of_prompts(count: int) -> list[TraceRow]:
    """Prompts whose blocks form a tree, as prefixes do."""
    rng = stream(1, "tree")
    children: dict[tuple[int, int], int] = {}
    rows = []
    for line in range(count):
        node, ids = -1, []
        for _ in range(1 + int(rng.random() * 8)):
            node = children.setdefault((node, int(rng.random() * 3)), len(children))
            ids.append(node)
        rows.append(TraceRow(line, 4 * len(ids) - 1, 1, block_ids=np.array(ids, np.int64)))
    return rows


@pytest.mark.parametrize("capacity", [8, 20, 100])
def test_the_pool_is_a_least_recently_used_cache_of_prefixes(capacity: int) -> None:
    rows = tree_of_prompts(600)
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in rows:
        assert row.block_ids is not None
        ids = row.block_ids.tolist()
        hits += next((i for i, block in enumerate(ids) if block not in cache), len(ids))
        for block in reversed(ids):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    (found,) = replay(rows, 4, [capacity])
    assert found.block_hits == hits > 0
    assert found.blocks == sum(0 if row.block_ids is None else len(row.block_ids) for row in rows)


def test_prompts_longer_than_the_cache_keep_their_head() -> None:
    rows = [TraceRow(1, 40, 1, block_ids=np.arange(10)), TraceRow(2, 40, 1, block_ids=np.arange(10))]
    tight, ideal = replay(rows, 4, [4, None])
    assert (tight.block_hits, ideal.block_hits) == (4, 10)
    assert (tight.token_hits, ideal.token_hits) == (16, 40)


def test_a_partial_last_block_counts_with_its_tokens() -> None:
    rows = [TraceRow(line, 6, 1, block_ids=np.array([1, 2])) for line in (1, 2)]
    (found,) = replay(rows, 4, [8])
    assert (found.tokens, found.token_hits, found.block_hits) == (12, 6, 2)
    assert (found.rate, found.token_rate) == (0.5, 0.5)


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ConfigError, match="no block ids"):
        replay([TraceRow(1, 5, 5)], 4, [8])
    with pytest.raises(ConfigError, match="at least 1"):
        replay([], 4, [0])
    assert replay([], 4, [3])[0].rate == 0.0
