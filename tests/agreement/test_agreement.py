"""Rule 6: the real executor and the simulated one, the same requests by step number, and every decision is the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agreement_cases import MAX_MODEL_LEN, Case, make_case
from drive import Watched, answers_of, run_real, run_simulated

import tiny_models
from octavo.core.config import CacheConfig
from octavo.core.events import (
    Admitted,
    BeamsDecided,
    Blocked,
    Copied,
    Evicted,
    Finished,
    Forked,
    Preempted,
    Refused,
    Spilled,
)
from octavo.core.plan import FinishReason
from octavo.execution.cpu_executor import CpuExecutor
from octavo.execution.loading import LoadedModel, load_model
from octavo.execution.tier import AnonymousStore
from octavo.memory.sizing import block_bytes
from octavo.memory.superblocks import superblock_blocks
from octavo.simulation.replay import recorded_requests, replay_recording
from octavo.telemetry.recording import open_for_writing

CASES = [make_case(seed) for seed in range(36)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tiny_models.write_llama(tmp_path_factory.mktemp("tiny"), max_model_len=MAX_MODEL_LEN)
    return load_model(folder, "f32")


class Runs:
    """Each case's real run, made once for all tests, and its recording."""

    def __init__(self, model: LoadedModel, folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._made: dict[int, Watched] = {}

    def recording(self, seed: int) -> Path:
        return self._folder / f"{seed}.jsonl.gz" if seed % 2 else self._folder / f"{seed}.jsonl"

    def real(self, seed: int) -> Watched:
        if seed not in self._made:
            self._made[seed] = self._run(seed)
        return self._made[seed]

    def _run(self, seed: int) -> Watched:
        case = CASES[seed]
        tier, spec = case.cache.offload_blocks, self._model.spec
        layer_bytes = block_bytes(spec, case.cache.block_size) // spec.num_layers
        executor = CpuExecutor(
            self._model,
            store=AnonymousStore(tier, spec.num_layers, layer_bytes) if tier else None,
            num_blocks=case.cache.num_blocks,
            block_size=case.cache.block_size,
            max_num_seqs=case.limits.max_num_seqs,
            max_model_len=MAX_MODEL_LEN,
        )
        with open_for_writing(self.recording(seed)) as file:
            return run_real(case, executor, file)


@pytest.fixture(scope="module")
def runs(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    yield Runs(model, tmp_path_factory.mktemp("recordings"))


def first_difference(real: Watched, simulated: Watched) -> str | None:
    for ours, theirs in zip(real.steps, simulated.steps, strict=False):
        for name, value in ours.items():
            if theirs[name] != value:
                return f"step {ours['step']}: {name} is {value} in the engine and {theirs[name]} in the simulator"
    if len(real.steps) != len(simulated.steps):
        return f"{len(real.steps)} steps in the engine and {len(simulated.steps)} in the simulator"
    return None


@pytest.mark.parametrize("seed", range(len(CASES)), ids=[str(case) for case in CASES])
def test_the_simulator_decides_as_the_engine_does(runs: Runs, seed: int) -> None:
    real = runs.real(seed)
    simulated = run_simulated(CASES[seed], *answers_of(real))
    assert first_difference(real, simulated) is None
    ends = [event for record in real.records for event in record.events if isinstance(event, Finished)]
    refused = {
        event.request_id for record in real.records for event in record.events if isinstance(event, Refused)
    }
    answers = [
        run.request_id
        for _, request in CASES[seed].arrivals
        for run in request.runs()
        if request.request_id not in refused
    ]
    assert sorted(event.request_id for event in ends) == sorted(answers), "every answer ends"


def counts(case: Case, real: Watched) -> Counter[str]:
    """How often a run did what the agreement is about."""
    found: Counter[str] = Counter()
    searches = {request.request_id for _, request in case.arrivals if request.sampling.beam is not None}
    for record in real.records:
        plan = record.plan
        found["prompts in chunks"] += int((~plan.samples).sum())
        found["budgets shared by prompt and decode"] += bool(
            plan.samples.any() and (plan.scheduled > 1).any()
        )
        for event in record.events:
            if isinstance(event, Preempted):
                found[f"preempted, {case.limits.preemption}"] += 1
                found["swapped out"] += event.tokens_swapped > 0
                found["tokens discarded"] += event.tokens_discarded
                found["preempted searches"] += event.request_id in searches
            elif isinstance(event, Admitted):
                found["swapped in"] += event.resumed and event.loaded_tokens > 0
                found["found in the tier"] += not event.resumed and event.loaded_tokens > 0
                found["prefix hits"] += not event.resumed and event.cached_tokens > 0
                found["resumed with a hit"] += event.resumed and event.cached_tokens > 0
            elif isinstance(event, Evicted):
                found["evicted blocks"] += len(event.blocks)
            elif isinstance(event, Finished):
                found[f"ended by {event.reason.name}"] += 1
                found["aborted in the queue"] += event.reason == FinishReason.ABORT and event.blocks == 0
            elif isinstance(event, BeamsDecided):
                found["beam searches"] += 1
                found["beams that ended"] += sum(answer.stopped for answer in event.answers)
            elif isinstance(event, Spilled):
                found["spilled blocks"] += len(event.blocks)
            elif isinstance(event, Copied):
                found["copied blocks"] += len(event.copies)
            elif isinstance(event, (Refused, Blocked, Forked)):
                found[type(event).__name__] += 1
    found[f"allocator {case.cache.allocator}, {case.cache.placement}"] += 1
    found[f"block size {case.cache.block_size}"] += 1
    found[_superblocks(case.cache)] += 1
    found[f"order {case.limits.order}"] += 1
    found[f"queue {case.limits.queue}"] += 1
    found["watermark"] += case.limits.watermark_blocks > 0
    found["unlimited budget"] += case.limits.max_num_batched_tokens is None
    return found


def _superblocks(cache: CacheConfig) -> str:
    blocks = superblock_blocks(cache.superblock_tokens, cache.block_size, cache.num_blocks)
    if cache.allocator != "paged" or blocks == 1:
        return "no superblocks"
    return "superblocks of 2 and 4" if blocks <= 4 else "superblocks of 8 and more"


WANTED = {
    "preempted, recompute": 20,
    "preempted, restart": 20,
    "tokens discarded": 20,
    "preempted, swap": 20,
    "swapped out": 20,
    "swapped in": 15,
    "found in the tier": 5,
    "spilled blocks": 100,
    "evicted blocks": 100,
    "prefix hits": 50,
    "resumed with a hit": 10,
    "ended by ABORT": 40,
    "aborted in the queue": 5,
    "ended by STOP": 20,
    "ended by LENGTH": 100,
    "prompts in chunks": 100,
    "budgets shared by prompt and decode": 100,
    "Refused": 20,
    "Blocked": 5,
    "Forked": 200,
    "copied blocks": 100,
    "beam searches": 30,
    "beams that ended": 3,
    "preempted searches": 5,
    "watermark": 5,
    "unlimited budget": 3,
    "queue priority": 8,
    "queue fcfs": 8,
    "order admission_first": 8,
    "order decode_first": 8,
    "no superblocks": 8,
    "superblocks of 2 and 4": 4,
    "superblocks of 8 and more": 4,
    "allocator paged, first_fit": 20,
    "allocator reserved, first_fit": 2,
    "allocator reserved, buddy": 2,
    "allocator pow2, first_fit": 2,
    "allocator pow2, buddy": 2,
    **{f"block size {size}": 2 for size in (1, 2, 4, 8, 16, 32)},
}


def test_the_cases_exercise_what_they_are_for(runs: Runs) -> None:
    found: Counter[str] = Counter()
    for seed, case in enumerate(CASES):
        found += counts(case, runs.real(seed))
    assert {name: found[name] for name, least in WANTED.items() if found[name] < least} == {}


@pytest.mark.parametrize("seed", range(0, len(CASES), 3))
def test_a_recorded_run_replays_without_a_difference(runs: Runs, seed: int) -> None:
    real = runs.real(seed)
    assert replay_recording(runs.recording(seed)) == (len(real.steps), [])


def test_a_recording_is_a_workload_with_the_true_lengths(runs: Runs) -> None:
    real = runs.real(0)
    ends = {
        event.request_id: event.output_tokens
        for record in real.records
        for event in record.events
        if isinstance(event, Finished)
    }
    made = list(recorded_requests(runs.recording(0)))
    assert [one.request_id for one in made] == [request.request_id for _, request in CASES[0].arrivals]
    for one in made:
        told = {request_id: tokens for request_id, tokens, _ in one.scripts()}
        assert told == {request_id: max(ends.get(request_id, 1), 1) for request_id in told}


@pytest.mark.parametrize("what", ["blocks", "pool", "events"])
def test_a_tampered_recording_shows_the_differing_decision(runs: Runs, tmp_path: Path, what: str) -> None:
    runs.real(0)
    lines = runs.recording(0).read_text(encoding="utf-8").splitlines()
    number, line = next(
        (i, found)
        for i, found in enumerate(map(json.loads, lines))
        if found.get("step", 0) > 20 and found.get(what)
    )
    if what == "blocks":
        line["blocks"][0][-1] = (line["blocks"][0][-1] + 1) % CASES[0].cache.num_blocks
    elif what == "pool":
        line["pool"] = [line["pool"][0] + 1, *line["pool"][1:]]
    else:
        line["events"] = line["events"][1:]
    lines[number] = json.dumps(line)
    path = tmp_path / "tampered.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    agreed, differences = replay_recording(path)
    assert agreed == line["step"]
    assert [difference.what for difference in differences] == [what]
    assert str(differences[0]).startswith(f"step {agreed}: {what} was ")


def test_an_executor_that_answers_otherwise_is_seen(runs: Runs) -> None:
    """The comparison itself: a different token, and a request that ends one token later, are differences."""
    answers, scripts, beams = answers_of(runs.real(0))
    name = next(name for name, tokens in answers.items() if len(tokens) > 3)
    changed = {**answers, name: [tokens + 1 for tokens in answers[name]]}
    found = first_difference(runs.real(0), run_simulated(CASES[0], changed, scripts, beams))
    assert found is not None and "sampled" in found
    name = next(iter(scripts))
    later = {**answers, name: [*answers[name], 5]}
    found = first_difference(
        runs.real(0), run_simulated(CASES[0], later, {**scripts, name: scripts[name] + 1}, beams)
    )
    assert found is not None and ("finished" in found or "steps" in found)


def test_other_settings_are_a_difference(runs: Runs) -> None:
    case = replace(CASES[0], limits=replace(CASES[0].limits, max_num_seqs=2))
    answers, scripts, beams = answers_of(runs.real(0))
    longer = {name: [*tokens, *[0] * MAX_MODEL_LEN] for name, tokens in answers.items()}
    longer |= {
        request.request_id: [0] * MAX_MODEL_LEN
        for _, request in case.arrivals
        if request.request_id not in longer
    }
    assert first_difference(runs.real(0), run_simulated(case, longer, scripts, beams)) is not None
