from __future__ import annotations

from hashlib import blake2b

import numpy as np

from octavo.memory.prefix_cache import HashChain, PrefixCache


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def chain_of(tokens: np.ndarray, salt: str | None = None) -> HashChain:
    chain = HashChain(salt)
    chain.extend(tokens, 2)
    return chain


def cache_with(tokens: np.ndarray, blocks: list[int], salt: str | None = None) -> PrefixCache:
    cache = PrefixCache(10, 2)
    chain = chain_of(tokens, salt)
    cache.publish(np.array(blocks, np.int32), [0], [len(blocks)], [chain], tokens.reshape(-1, 2))
    return cache


def test_names_are_chained_and_only_full_blocks_have_one() -> None:
    chain = chain_of(ids(1, 2, 3, 4, 5))
    first = blake2b(ids(1, 2).tobytes()).digest()
    second = blake2b(first + ids(3, 4).tobytes()).digest()
    assert chain.digests == [first, second]
    assert chain_of(ids(9, 2, 3, 4)).digests[1] != second


def test_extending_piece_by_piece_names_the_same() -> None:
    chain = HashChain()
    for start in range(0, 8, 2):
        chain.extend(np.arange(start, start + 2, dtype=np.int32), 2)
    assert chain.digests == chain_of(np.arange(8, dtype=np.int32)).digests


def test_the_longest_leading_run_is_found() -> None:
    cache = cache_with(ids(1, 2, 3, 4, 5, 6), [7, 3, 5])
    wanted = ids(1, 2, 3, 4, 9, 9, 5, 6)
    assert cache.match(HashChain(), wanted, 4).tolist() == [7, 3]
    assert cache.match(HashChain(), wanted, 1).tolist() == [7]
    assert cache.match(HashChain(), ids(2, 2, 3, 4), 2).tolist() == []


def test_how_many_could_be_found_is_told_by_the_last_of_them() -> None:
    cache = cache_with(ids(1, 2, 3, 4, 5, 6), [7, 3, 5])
    wanted = ids(1, 2, 3, 4, 9, 9, 5, 6)
    assert [cache.may_find(HashChain(), wanted, blocks, 4) for blocks in (1, 2, 3, 4)] == [
        True,
        True,
        False,
        False,
    ]
    assert not cache.may_find(HashChain(), wanted, 2, most=1)


def test_a_hole_ends_the_run() -> None:
    cache = cache_with(ids(1, 2, 3, 4, 5, 6), [7, 3, 5])
    cache.forget([3])
    assert cache.match(HashChain(), ids(1, 2, 3, 4, 5, 6), 3).tolist() == [7]


def test_a_salt_separates() -> None:
    cache = cache_with(ids(1, 2), [4], salt="a")
    assert cache.match(HashChain("a"), ids(1, 2), 1).tolist() == [4]
    assert cache.match(HashChain("b"), ids(1, 2), 1).tolist() == []
    assert cache.match(HashChain(), ids(1, 2), 1).tolist() == []
    assert cache.match(HashChain(""), ids(1, 2), 1).tolist() == []


def test_tokens_are_compared_so_that_a_collision_is_no_hit() -> None:
    cache = cache_with(ids(1, 2, 3, 4), [7, 3])
    forged = chain_of(ids(1, 2, 3, 4))
    assert cache.match(forged, ids(1, 2, 3, 5), 2).tolist() == [7]
    assert cache.match(forged, ids(9, 2, 3, 4), 2).tolist() == []


def test_the_first_writer_keeps_the_name() -> None:
    cache = cache_with(ids(1, 2, 3, 4), [7, 3])
    chain = HashChain()
    tokens = ids(1, 2, 3, 4, 5, 6).reshape(-1, 2)
    assert cache.publish(ids(0, 1, 2), [0], [3], [chain], tokens).tolist() == [2]
    assert cache.match(HashChain(), ids(1, 2, 3, 4, 5, 6), 3).tolist() == [7, 3, 2]
    assert 0 not in cache.names and cache.tokens_of(2).tolist() == [5, 6]


def test_the_same_block_of_two_rows_in_one_step_is_named_once() -> None:
    cache = PrefixCache(10, 2)
    chains = [HashChain(), HashChain(), chain_of(ids(1, 2))]
    tokens = ids(1, 2, 3, 4, 1, 2, 7, 7).reshape(-1, 2)
    assert cache.publish(ids(5, 6, 8, 9), [0, 0, 1], [2, 1, 2], chains, tokens).tolist() == [5, 6, 9]
    assert cache.match(HashChain(), ids(1, 2, 7, 7), 2).tolist() == [5, 9]
    assert 8 not in cache.names


def test_publishing_names_what_is_not_named_yet() -> None:
    cache, chain = PrefixCache(10, 2), HashChain()
    cache.publish(ids(4), [0], [1], [chain], ids(1, 2).reshape(1, 2))
    cache.publish(ids(6), [1], [2], [chain], ids(3, 4).reshape(1, 2))
    assert chain.digests == chain_of(ids(1, 2, 3, 4)).digests
    assert cache.match(HashChain(), ids(1, 2, 3, 4), 2).tolist() == [4, 6]


def test_a_truncated_chain_is_named_anew() -> None:
    chain = chain_of(ids(1, 2, 3, 4))
    chain.truncate(1)
    chain.extend(ids(5, 6), 2)
    assert chain.digests == chain_of(ids(1, 2, 5, 6)).digests


def test_a_prompt_that_begins_like_the_latest_is_named_as_if_it_stood_alone() -> None:
    first = ids(1, 2, 3, 4, 5, 6, 7, 8)
    for second in (
        first,
        first[:4],
        ids(1, 2, 3, 9, 5, 6, 7, 8),
        ids(1, 2, 3, 4, 5, 6, 7, 8, 9, 9),
        ids(9, 9),
    ):
        for salt in (None, "a"):
            for named in range(len(second) // 2):
                cache, chain = PrefixCache(10, 2), HashChain(salt)
                cache.match(HashChain(), first, 4)
                chain.extend(second[: 2 * named], 2)
                cache.match(chain, second, len(second) // 2)
                assert chain.digests == chain_of(second, salt).digests
