"""Reasons for misses from runs of the real engine: nobody scripts what the model answers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tiny_models
from octavo.core.sampling_params import SamplingParams
from octavo.llm.llm import LLM
from octavo.memory.lookup import REASONS, Lookup, Miss
from octavo.scheduling.audit import audit

TWO = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
RNG = np.random.default_rng(11)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.write_llama(tmp_path_factory.mktemp("tiny"), max_model_len=256))


@pytest.fixture
def llm(folder: str) -> Iterator[LLM]:
    yield LLM(folder, dtype="f32", num_blocks=24, block_size=4, max_num_seqs=4, seed=1, threads=2)


def fresh(tokens: int) -> list[int]:
    return [int(token) for token in RNG.integers(5, 95, tokens)]


def ask(llm: LLM, prompt: list[int], sampling: SamplingParams = TWO, salt: str | None = None) -> Lookup:
    request = llm.session.prepare(prompt, sampling, cache_salt=salt)
    llm.session.run([llm.session.add(request)])
    scheduler = llm.session.engine.scheduler
    audit(scheduler)
    return scheduler.allocator.lookups.recent[request.request_id]


def fates(lookup: Lookup) -> set[Miss]:
    return {Miss(miss) for miss in lookup.misses.tolist()}


def test_the_life_of_a_prefix(llm: LLM) -> None:
    prompt = fresh(41)
    assert fates(ask(llm, prompt)) == {Miss.NEVER_SEEN}
    assert ask(llm, prompt).hits == 10
    assert fates(ask(llm, prompt, salt="mine")) == {Miss.OTHER_SALT}
    ask(llm, secret := fresh(41), salt="mine")
    assert fates(ask(llm, secret)) == {Miss.FOREIGN_SALT}
    assert ask(llm, prompt, SamplingParams(max_tokens=2, prompt_logprobs=0)).unasked == "prompt_logprobs"
    taker = ask(llm, fresh(85))
    lookup = ask(llm, prompt)
    assert Miss.EVICTED in fates(lookup) and lookup.evictions[-1].taker == taker.request_id
    assert lookup.ever == 40, "all of it was there once"
    for _ in range(60):
        ask(llm, fresh(85))
    assert fates(ask(llm, prompt)) == {Miss.UNKNOWN}
    totals = llm.session.engine.scheduler.allocator.lookups.totals
    assert totals.hits + sum(totals.misses.values()) == totals.blocks
    found = {reason for reason, count in totals.misses.items() if count}
    assert found >= set(REASONS) - {"being_computed", "behind_a_miss"}


def test_what_another_one_is_computing(folder: str) -> None:
    settings = {"dtype": "f32", "num_blocks": 60, "block_size": 4, "max_num_seqs": 4, "threads": 2}
    shared = fresh(41)
    tokens = []
    for wait in (False, True):
        llm = LLM(folder, prefix_wait=wait, **settings)  # type: ignore[arg-type]
        answers = llm.generate([[*shared, 7], [*shared, 8]], TWO, use_tqdm=False)
        tokens.append([one.outputs[0].token_ids for one in answers])
        lookups = llm.session.engine.scheduler.allocator.lookups
        first, second = lookups.recent.values()
        if wait:
            assert second.hits == 10 and lookups.totals.waits == 1
        else:
            assert fates(second) == {Miss.BEING_COMPUTED} and second.computing == first.request_id
    assert tokens[0] == tokens[1], "the same answers, for half of the work"


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"enable_prefix_caching": False}, "caching_disabled"), ({"allocator": "reserved"}, "contiguous")],
)
def test_nothing_is_looked_up(folder: str, settings: dict[str, object], why: str) -> None:
    llm = LLM(folder, dtype="f32", num_blocks=40, block_size=4, max_num_seqs=2, threads=2, **settings)  # type: ignore[arg-type]
    assert ask(llm, fresh(41)).unasked == why
    assert llm.session.engine.scheduler.allocator.lookups.totals.misses["not_looked_up"] == 10
