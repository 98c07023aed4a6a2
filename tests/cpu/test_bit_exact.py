"""Rule 1: a request's tokens and logits are the same bits, whatever runs beside it and wherever its blocks lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tiny_models
from octavo import _native
from octavo.core.events import Preempted, StepRecord
from octavo.core.sampling_params import SamplingParams
from octavo.llm.build import build_session
from octavo.llm.options import EngineOptions
from octavo.llm.session import Session

PROMPT_TOKENS = 150
OUTPUT_TOKENS = 40
GREEDY = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, seed=7, max_tokens=OUTPUT_TOKENS, ignore_eos=True)


@dataclass
class Watch:
    """Keeps every sampled row's logits and the preemptions of one request."""

    request_id: str
    logits: list[NDArray[np.float32]] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    """For each of ``logits``, how many tokens had been generated before it."""
    preemptions: int = 0


def run(session: Session, requests: list[Any], watched: int) -> tuple[list[int], NDArray[np.float32], Watch]:
    """Run the requests together; the watched one's tokens and the logits each of them was sampled from."""
    watch = Watch(requests[watched].request_id)
    inner = session.engine.sink

    class Spy:
        def emit(self, record: StepRecord, now: float) -> None:
            inner.emit(record, now)
            sampling = [
                name for name, sample in zip(record.request_ids, record.plan.samples, strict=True) if sample
            ]
            if watch.request_id in sampling:
                logits = session.engine.executor.last_logits  # type: ignore[attr-defined]
                watch.logits.append(logits[sampling.index(watch.request_id)].copy())
                where = record.request_ids.index(watch.request_id)
                length = record.plan.computed[where] + record.plan.scheduled[where]
                watch.outputs.append(int(length) - len(requests[watched].prompt_token_ids))
            watch.preemptions += sum(
                isinstance(event, Preempted) and event.request_id == watch.request_id
                for event in record.events
            )

    session.engine.sink = Spy()
    completions = [session.add(request) for request in requests]
    session.run(completions)
    session.engine.drain()
    assert session.engine.scheduler.pool_state.live == 0
    session.engine.sink = inner
    return completions[watched].token_ids, np.stack(watch.logits), watch


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with grouped heads: 2 layers, 6 query heads on 2 kv heads."""
    return tiny_models.write_llama(
        tmp_path_factory.mktemp("tiny"), num_heads=6, num_kv_heads=2, max_model_len=512
    )


def options(model: Path, dtype: str, **changes: Any) -> EngineOptions:
    """``dtype`` bf16, f32, int8 (weights of bytes), or fp8_kv and int8_kv: keys and values of bytes."""
    base = EngineOptions(model=str(model), num_blocks=400, max_num_seqs=64, seed=0, threads=2)
    kept = {
        "int8": {"quantization": "int8"},
        "fp8_kv": {"kv_cache_dtype": "fp8"},
        "int8_kv": {"kv_cache_dtype": "int8"},
    }.get(dtype, {"dtype": dtype})
    return replace(base, **kept, **changes)  # type: ignore[arg-type]


def prompt(seed: int, tokens: int = PROMPT_TOKENS) -> list[int]:
    return np.random.default_rng(seed).integers(3, 200, tokens).tolist()


@pytest.fixture(scope="module", params=["bf16", "f32", "int8", "fp8_kv", "int8_kv"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[GREEDY, SAMPLED], ids=["greedy", "sampled"])
def sampling(request: pytest.FixtureRequest) -> SamplingParams:
    found = request.param
    assert isinstance(found, SamplingParams)
    return found


@pytest.fixture(scope="module")
def alone(
    model: Path, dtype: str, sampling: SamplingParams
) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
    """The answer that every other way of running the request must repeat."""
    session = build_session(options(model, dtype))
    tokens, logits, _ = run(session, [session.prepare(prompt(1), sampling)], 0)
    assert len(tokens) == OUTPUT_TOKENS
    assert logits.shape[0] == OUTPUT_TOKENS
    assert len(set(tokens)) > 3, "a model that repeats one token shows nothing"
    yield tokens, logits


Alone = tuple[list[int], NDArray[np.float32]]


def check(found: tuple[list[int], NDArray[np.float32], Watch], alone: Alone) -> None:
    assert found[0] == alone[0]
    assert found[1].tobytes() == alone[1].tobytes(), "the logits differ in their bits"


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 64},
        {"max_num_batched_tokens": None},
        {"block_size": 1, "num_blocks": 6400},
        {"block_size": 8, "num_blocks": 800},
        {"block_size": 128, "num_blocks": 50},
        {"block_size": 256, "num_blocks": 25},
        {"allocator": "reserved", "enable_prefix_caching": False},
        {"allocator": "pow2", "enable_prefix_caching": False},
        {"allocator": "pow2", "placement": "buddy", "enable_prefix_caching": False},
        {"threads": 1},
    ],
    ids=lambda changes: ",".join(f"{name}={value}" for name, value in changes.items()),
)
def test_settings_change_nothing(
    model: Path, dtype: str, sampling: SamplingParams, alone: Alone, changes: dict[str, Any]
) -> None:
    session = build_session(options(model, dtype, **changes))
    check(run(session, [session.prepare(prompt(1), sampling)], 0), alone)


@pytest.mark.parametrize("budget", [2048, 48])
def test_a_batch_of_33_changes_nothing(
    model: Path, dtype: str, sampling: SamplingParams, alone: Alone, budget: int
) -> None:
    session = build_session(options(model, dtype, num_blocks=1000, max_num_batched_tokens=budget))
    lengths = np.random.default_rng(3).integers(1, 200, 33)
    requests = [
        session.prepare(prompt(100 + i, int(n)), replace(GREEDY, seed=i)) for i, n in enumerate(lengths)
    ]
    requests[20] = session.prepare(prompt(1), sampling)
    check(run(session, requests, 20), alone)


def test_a_prefix_hit_changes_nothing(
    model: Path, dtype: str, sampling: SamplingParams, alone: Alone
) -> None:
    session = build_session(options(model, dtype))
    first = run(session, [session.prepare(prompt(1), sampling)], 0)
    check(first, alone)
    again = session.prepare(prompt(1), sampling)
    completion = session.add(again)
    session.run([completion])
    assert completion.cached_tokens == (PROMPT_TOKENS - 1) // 16 * 16
    assert completion.token_ids == alone[0]
    check(run(session, [session.prepare(prompt(1), sampling)], 0), alone)


@pytest.mark.parametrize("preemption", ["recompute", "restart", "swap"])
@pytest.mark.parametrize("caching", [True, False])
def test_preemption_changes_nothing(
    model: Path, dtype: str, sampling: SamplingParams, alone: Alone, preemption: str, caching: bool
) -> None:
    # 22 blocks hold both prompts (10 each) but not both answers (12 each): the second is preempted.
    session = build_session(
        options(
            model,
            dtype,
            num_blocks=22,
            preemption=preemption,
            enable_prefix_caching=caching,
            max_model_len=256,
        )
    )
    requests = [session.prepare(prompt(2), GREEDY), session.prepare(prompt(1), sampling)]
    tokens, logits, watch = run(session, requests, 1)
    assert watch.preemptions >= 1
    assert tokens == alone[0]
    if preemption == "swap":
        totals = session.engine.scheduler.allocator.offload.totals
        assert totals.swapped_out >= 10 and totals.swapped_in > 0
    if preemption != "restart":
        check((tokens, logits, watch), alone)
    else:  # a restart samples its first tokens again, from the same bits
        assert len(watch.outputs) > OUTPUT_TOKENS
        assert logits.tobytes() == alone[1][watch.outputs].tobytes()


def test_a_prompt_found_in_the_second_tier_changes_nothing(
    model: Path, dtype: str, sampling: SamplingParams, alone: Alone
) -> None:
    """Others take all of a small pool in between, so that nothing of it is left there."""
    tier = {"num_blocks": 13, "kv_offload_bytes": 1 << 20, "max_model_len": 200}
    session = build_session(options(model, dtype, **tier))
    check(run(session, [session.prepare(prompt(1), sampling)], 0), alone)
    run(session, [session.prepare(prompt(seed, 160), GREEDY) for seed in (2, 3)], 0)
    completion = session.add(session.prepare(prompt(1), sampling))
    session.run([completion])
    found = (PROMPT_TOKENS - 1) // 16
    assert completion.cached_tokens == found * 16 and completion.token_ids == alone[0]
    assert session.engine.scheduler.allocator.offload.totals.found == found
    run(session, [session.prepare(prompt(4, 160), GREEDY)], 0)
    check(run(session, [session.prepare(prompt(1), sampling)], 0), alone)
    assert session.engine.scheduler.allocator.offload.totals.found == 2 * found


SEVERAL = 5


@pytest.fixture(scope="module")
def each_alone(model: Path, dtype: str) -> list[list[int]]:
    """What the requests with seed + i answer, each in an engine of its own."""
    answers = []
    for i in range(SEVERAL):
        session = build_session(options(model, dtype, enable_prefix_caching=False))
        sampled = replace(SAMPLED, seed=7 + i)
        answers.append(run(session, [session.prepare(prompt(1), sampled)], 0)[0])
    assert len(set(map(tuple, answers))) == SEVERAL, "seeds that agree show nothing"
    return answers


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("preemption", ["recompute", "restart", "swap"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_batched_tokens": 7},
        {"block_size": 1, "num_blocks": 6400},
        # Together the answers hold 9 blocks of the prompt and 3 of their own each: 24.
        {"num_blocks": 16, "max_model_len": 256},
        {"allocator": "reserved", "enable_prefix_caching": False},
    ],
    ids=lambda changes: ",".join(f"{name}={value}" for name, value in changes.items()),
)
def test_answers_to_one_prompt_are_those_of_requests_of_their_own(
    model: Path,
    dtype: str,
    each_alone: list[list[int]],
    changes: dict[str, Any],
    preemption: str,
    caching: bool,
) -> None:
    found = options(model, dtype, enable_prefix_caching=caching, preemption=preemption)
    session = build_session(replace(found, **changes))
    beside = [session.add(session.prepare(prompt(9, 30), GREEDY))]
    answers = session.add_choices(session.prepare(prompt(1), replace(SAMPLED, n=SEVERAL)))
    session.run([*beside, *answers])
    assert [answer.token_ids for answer in answers] == each_alone
    preemptions = sum(answer.preemptions for answer in answers)
    assert (preemptions > 0) == ("num_blocks" in changes and "block_size" not in changes)
    session.engine.drain()
    assert session.engine.scheduler.pool_state.live == 0


def test_first_tokens_come_from_one_row_of_logits(model: Path, dtype: str) -> None:
    session = build_session(options(model, dtype))
    request = session.prepare(prompt(1), replace(SAMPLED, n=4, max_tokens=1, logprobs=3))
    answers = session.add_choices(request)
    session.run(answers)
    tops = [answer.logprobs[0].top_logprobs.tobytes() for answer in answers]
    assert len(set(tops)) == 1 and len({answer.token_ids[0] for answer in answers}) > 1


@pytest.mark.parametrize("path", _native.available_paths())
def test_every_instruction_path_is_exact_in_itself(model: Path, dtype: str, path: str) -> None:
    answers = []
    for changes in ({}, {"block_size": 8, "num_blocks": 800, "max_num_batched_tokens": 7, "threads": 1}):
        session = build_session(options(model, dtype, path=path, **changes))
        requests = [session.prepare(prompt(1), GREEDY), session.prepare(prompt(5, 33), GREEDY)]
        answers.append(run(session, requests, 0))
    check(answers[0], answers[1][:2])
