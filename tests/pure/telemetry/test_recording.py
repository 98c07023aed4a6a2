"""What a recorder writes is what a reader gives back: every array, event and count; and damage is named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.errors import ConfigError, ContextLengthError
from octavo.core.events import StepRecord
from octavo.core.plan import FinishReason, StepResult
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.memory import make_allocator
from octavo.scheduling.scheduler import Scheduler
from octavo.telemetry.recording import Recorder, open_for_writing
from octavo.telemetry.recording_reader import Added, Ended, Recording, Stepped, is_recording

CACHE = CacheConfig(num_blocks=10, block_size=4)
LIMITS = SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=12, max_model_len=40)


def sampling(number: int) -> SamplingParams:
    if number % 3:
        return SamplingParams(max_tokens=6 + number % 5)
    return SamplingParams(
        max_tokens=9,
        temperature=0.5,
        seed=number,
        stop=("END",),
        stop_token_ids=(7, 8),
        logit_bias={3: 1.5},
        ignore_eos=True,
    )


def drive(recorder: Recorder) -> Iterator[StepRecord]:
    """A run with chunks, prefix hits, preemptions, evictions, a refusal and an abort."""
    scheduler = Scheduler(LIMITS, make_allocator(CACHE, LIMITS.max_num_seqs, LIMITS.max_model_len))
    now = 0.0
    for step in range(400):
        if step < 40 and step % 2 == 0:
            length = 100 if step == 30 else 5 + step % 11
            prompt = np.arange(length, dtype=np.int32) + (step % 3) * 100
            request = Request(f"r{step}", prompt, sampling(step), step % 2, "pepper" if step == 4 else None)
            recorder.added(request, now)
            if step == 30:
                with pytest.raises(ContextLengthError):
                    scheduler.add(request)
            else:
                scheduler.add(request)
        if step == 21:
            recorder.ended("r20", FinishReason.ABORT, now)
            assert scheduler.finish("r20", FinishReason.ABORT)
        plan = scheduler.plan()
        if plan is None:
            return
        now += 0.125
        count = int(plan.samples.sum())
        tokens = (np.arange(count) * 7 + step).astype(np.int32)
        record = scheduler.apply(plan, StepResult(tokens, tokens % 11 == 0))
        recorder.emit(record, now)
        yield record


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    with open_for_writing(path) as file:
        for _ in drive(Recorder(file, CACHE, LIMITS, {"model": "tiny"})):
            pass
    return path


def assert_same(read: StepRecord, record: StepRecord) -> None:
    for name in ("rows", "computed", "scheduled", "samples", "token_ids", "copies"):
        a, b = getattr(read.plan, name), getattr(record.plan, name)
        assert a.dtype == b.dtype, name
        assert np.array_equal(a, b), name
    assert (read.plan.step, read.plan.ended) == (record.plan.step, record.plan.ended)
    for a, b in zip(read.plan.started, record.plan.started, strict=True):
        assert (a.row, a.request.request_id, a.cached_tokens) == (
            b.row,
            b.request.request_id,
            b.cached_tokens,
        )
        assert a.output_token_ids.tolist() == b.output_token_ids.tolist()
        assert a.request.prompt_token_ids.tolist() == b.request.prompt_token_ids.tolist()
        assert (a.request.sampling, a.request.priority, a.request.cache_salt) == (
            b.request.sampling,
            b.request.priority,
            b.request.cache_salt,
        )
    stops = -(-(record.plan.computed + record.plan.scheduled) // CACHE.block_size)
    for row, stop in zip(record.plan.rows, stops, strict=True):
        assert (read.plan.block_table[row, :stop] == record.plan.block_table[row, :stop]).all()
    assert read.result.token_ids.tolist() == record.result.token_ids.tolist()
    assert read.result.stopped.tolist() == record.result.stopped.tolist()
    assert read.finished.tolist() == record.finished.tolist()
    for name in ("request_ids", "events", "pool", "running", "waiting", "waste"):
        assert getattr(read, name) == getattr(record, name), name


def test_every_record_comes_back(recorded: Path) -> None:
    recording = Recording(recorded)
    assert (recording.header.cache, recording.header.scheduler) == (CACHE, LIMITS)
    assert recording.header.about == {"model": "tiny"}
    read = iter(recording.items())
    kinds: set[str] = set()
    adds = ends = 0
    for record in drive(Recorder(StringIO(), CACHE, LIMITS)):
        while not isinstance(item := next(read), Stepped):
            adds += isinstance(item, Added)
            ends += isinstance(item, Ended)
        assert_same(item.record, record)
        kinds |= {type(event).__name__ for event in record.events}
    assert next(read, None) is None
    assert (adds, ends) == (20, 1)
    assert kinds == {"Admitted", "Preempted", "Evicted", "Finished", "Refused"}


def test_times_are_kept(recorded: Path) -> None:
    items = list(Recording(recorded).items())
    assert [item.at for item in items if isinstance(item, Stepped)][:3] == [0.125, 0.25, 0.375]
    assert [item.at for item in items if isinstance(item, Added)][:3] == [0.0, 0.25, 0.5]
    (end,) = [item for item in items if isinstance(item, Ended)]
    assert (end.request_id, end.reason, end.at) == ("r20", FinishReason.ABORT, 2.625)


def test_a_steady_step_is_a_short_line(recorded: Path) -> None:
    lines = [json.loads(line) for line in recorded.read_text().splitlines()]
    steady = [line for line in lines if "step" in line and "rows" not in line and "events" not in line]
    assert steady
    for line in steady:
        assert {"rows", "computed", "scheduled", "silent", "started", "finished"} & set(line) <= {
            "scheduled",
            "silent",
        }


def test_packed_by_name(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    with open_for_writing(path) as file:
        count = len(list(drive(Recorder(file, CACHE, LIMITS))))
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert sum(isinstance(item, Stepped) for item in Recording(path).items()) == count
    assert is_recording(path)
    with pytest.raises(ConfigError, match="cannot write"):
        open_for_writing(tmp_path / "no" / "such" / "folder")


def test_other_files_are_no_recordings(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0}\n')
    assert not is_recording(path)
    with pytest.raises(ConfigError, match=r"trace.jsonl:1: the file is no recording"):
        Recording(path)


def change(path: Path, line: int, **fields: object) -> None:
    lines = path.read_text().splitlines()
    found = json.loads(lines[line - 1])
    found.update(fields)
    lines[line - 1] = json.dumps({key: value for key, value in found.items() if value is not None})
    path.write_text("\n".join(lines) + "\n")


HEADER = [
    ({"version": 2}, "has version 2"),
    ({"cache": None}, "cache is missing"),
    ({"cache": {"num_blocks": 5, "block_size": 3}}, "block size 3 is not supported"),
    ({"cache": {"num_blocks": 5, "colour": 3}}, "cache.colour is no setting"),
    ({"scheduler": {"max_num_seqs": 0}}, "--max-num-seqs is 0"),
]


@pytest.mark.parametrize(("fields", "message"), HEADER)
def test_a_wrong_header_is_named(recorded: Path, fields: dict[str, object], message: str) -> None:
    change(recorded, 1, **fields)
    with pytest.raises(ConfigError, match=message) as error:
        Recording(recorded)
    assert error.value.message.startswith(f"{recorded}:1: ")


# Line 2 adds the first request, line 3 is the first step, line 4 the second.
DAMAGE = [
    (2, {"add": None}, 2, "neither add, end, step nor abandoned"),
    (2, {"add": "other"}, 3, "'r0' starts and was not added"),
    (2, {"at": -1}, 2, "at is -1"),
    (2, {"sampling": {"temperature": -1}}, 2, "temperature"),
    (2, {"sampling": {"colour": 1}}, 2, "does not follow"),
    (3, {"rows": [0, 0]}, 3, "2 rows, but 1 computed"),
    (3, {"scheduled": [9]}, 3, "computes tokens that are not known yet"),
    (3, {"sampled": [1, 2]}, 3, "2 sampled tokens for 1 rows"),
    (3, {"pool": None}, 3, "does not follow"),
    (3, {"events": [{"kind": "Vanished"}]}, 3, "event 'Vanished' is not known"),
    (
        3,
        {"events": [{"kind": "Evicted", "blocks": [1], "colour": 1}]},
        3,
        "event Evicted has no field 'colour'",
    ),
    (3, {"events": [{"kind": "Evicted", "blocks": ["x"]}]}, 3, "Expected `int`, got `str`"),
    (3, {"events": [{"kind": "Evicted"}]}, 3, "missing required field `blocks`"),
    (3, {"step": "x"}, 3, "step is 'x'"),
    (3, {"rows": [99]}, 3, "does not follow"),
]


@pytest.mark.parametrize(("line", "fields", "named", "message"), DAMAGE)
def test_damage_is_named_with_its_line(
    recorded: Path, line: int, fields: dict[str, object], named: int, message: str
) -> None:
    change(recorded, line, **fields)
    with pytest.raises(ConfigError, match=message) as error:
        list(Recording(recorded).items())
    assert error.value.message.startswith(f"{recorded}:{named}: ")


def test_a_cut_recording_is_named(recorded: Path) -> None:
    text = recorded.read_text()
    recorded.write_text(text[: len(text) - 20])
    with pytest.raises(ConfigError, match="not JSON"):
        list(Recording(recorded).items())
    recorded.write_bytes(gzip.compress(text.encode())[:-30])
    with pytest.raises(ConfigError, match="damaged"):
        list(Recording(recorded).items())
