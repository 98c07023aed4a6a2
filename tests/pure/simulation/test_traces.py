"""Every trace format is read; everything wrong in a file is named with file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from octavo.core.errors import ConfigError
from octavo.simulation.traces import open_trace, read_rate_curve, spread

TRACES = Path(__file__).parents[3].parent / "shared" / "traces"
AZURE = "arrival_s,prompt_tokens,output_tokens\n0.0,374,44\n4.314579,396,109\n"
ORIGINAL = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
LENGTHS = "instruction_tokens,prompt_tokens,output_tokens\n14,39,1\n6,12,0\n"
TURNS = "conv,turn,prompt_tokens,new_prompt_tokens,output_tokens\n0,0,33,33,256\n0,1,324,35,329\n7,0,5,5,1\n"
MOONCAKE = "\n".join(
    json.dumps({"timestamp": t, "input_length": n, "output_length": 9, "hash_ids": ids})
    for t, n, ids in [(0, 600, [0, 1]), (0, 512, [0]), (3000, 1025, [0, 1, 5])]
)
CODING = "\n".join(
    json.dumps({"c": c, "a": a, "t": t, "in": n, "out": 5, "api": None, "think": think, "runs": runs})
    for c, a, t, n, think, runs in [
        (1, 0, 0.0, 200, 0.0, [[1, 3]]),
        (1, 1, 0.0, 130, None, [[1, 1], [9, 1]]),
        (1, 0, 19.0, 64, 12.5, [[1, 1]]),
        (2, 0, 0.0, 63, 0.0, []),
    ]
)
FILES = {
    "azure": AZURE,
    "azure-original": ORIGINAL,
    "lengths": LENGTHS,
    "conversations": TURNS,
    "mooncake": MOONCAKE,
    "coding-agent": CODING,
}


def write(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


@pytest.mark.parametrize("kind", FILES)
def test_formats_are_told_apart_plain_and_packed(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, FILES[kind])
    packed = tmp_path / "packed"  # told by its content, not by its name
    packed.write_bytes(gzip.compress(FILES[kind].encode()))
    for file in (path, packed):
        trace = open_trace(file)
        assert trace.kind.name == kind
        assert len(list(trace.rows())) == len(FILES[kind].splitlines()) - (
            kind not in ("mooncake", "coding-agent")
        )


@pytest.mark.parametrize("kind", ["azure", "azure-original"])
def test_azure_rows(tmp_path: Path, kind: str) -> None:
    rows = list(open_trace(write(tmp_path, FILES[kind])).rows())
    assert [(row.line, row.prompt_tokens, row.output_tokens) for row in rows] == [(2, 374, 44), (3, 396, 109)]
    assert rows[1].arrival_s == pytest.approx(4.314579)


def test_other_rows(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, LENGTHS))
    assert trace.lengths().tolist() == [[39, 1], [12, 1]]
    assert [row.output_tokens for row in trace.rows()] == [1, 0]
    turns = list(open_trace(write(tmp_path, TURNS)).rows())
    assert [(row.conversation, row.prompt_tokens, row.new_tokens) for row in turns] == [
        (0, 33, 33),
        (0, 324, 35),
        (7, 5, 5),
    ]
    mooncake = list(open_trace(write(tmp_path, MOONCAKE)).rows())
    assert [row.arrival_s for row in mooncake] == [0.0, 0.0, 3.0]
    assert [[] if row.block_ids is None else row.block_ids.tolist() for row in mooncake] == [
        [0, 1],
        [0],
        [0, 1, 5],
    ]


def test_coding_agent_ids_are_local_to_a_conversation(tmp_path: Path) -> None:
    rows = list(open_trace(write(tmp_path, CODING)).rows())
    one = 1 << 32
    assert [[] if row.block_ids is None else row.block_ids.tolist() for row in rows] == [
        [one + 1, one + 2, one + 3],
        [one + 1, one + 9],
        [one + 1],
        [],
    ]
    assert [row.think_s for row in rows] == [0.0, None, 12.5, 0.0]


def test_equal_times_are_spread_over_the_clocks_quantum(tmp_path: Path) -> None:
    rows = open_trace(write(tmp_path, MOONCAKE)).rows()
    assert [row.arrival_s for row in spread(rows, 3.0)] == [0.0, 1.5, 3.0]
    rows = open_trace(write(tmp_path, MOONCAKE)).rows()
    assert [row.arrival_s for row in spread(rows, 100.0)] == [0.0, 1.5, 3.0], "never past the next time"


BAD = [
    ("arrival_s,prompt_tokens\n0,1\n", 1, "has the fields|output_tokens"),
    ("", 1, "empty"),
    ("arrival_s,prompt_tokens,output_tokens\n0,-5,3\n", 2, "prompt_tokens is -5"),
    ("arrival_s,prompt_tokens,output_tokens\n0,5,3\n0,5,999999999999\n", 3, "output_tokens is 999999999999"),
    ("arrival_s,prompt_tokens,output_tokens\n0,5.5,3\n", 2, "prompt_tokens is '5.5'"),
    ("arrival_s,prompt_tokens,output_tokens\n0,,3\n", 2, "prompt_tokens is missing"),
    ("arrival_s,prompt_tokens,output_tokens\n0,5\n", 2, "2 fields; the header has 3"),
    ("arrival_s,prompt_tokens,output_tokens\n0,5,3\n\n", 3, "the line is empty"),
    ("arrival_s,prompt_tokens,output_tokens\n5,5,3\n4.5,5,3\n", 3, "arrives at 4.5 s, before"),
    ("arrival_s,prompt_tokens,output_tokens\nnan,5,3\n", 2, "arrival_s is nan"),
    ("arrival_s,prompt_tokens,output_tokens\n-1,5,3\n", 2, "arrival_s is -1"),
    ("arrival_s,prompt_tokens,output_tokens\n1e300,5,3\n", 2, "arrival_s is 1e300"),
    (ORIGINAL + "yesterday,1,1\n", 4, "TIMESTAMP is 'yesterday'"),
    (ORIGINAL + "2023-11-16 18:15:47,1,1\n", 4, "before the request above it"),
    (ORIGINAL + "2022-11-16 18:15:47,1,1\n", 4, "sort the trace"),
    (MOONCAKE + "\n{", 4, "not JSON"),
    (MOONCAKE + "\n[]", 4, "not a JSON object"),
    (MOONCAKE.replace("[0, 1, 5]", "[0, 1]"), 3, "2 hash_ids for input_length 1025; 3 blocks"),
    (MOONCAKE.replace("[0, 1, 5]", "[0, 1, -5]"), 3, "hash_ids is missing or not"),
    (MOONCAKE.replace("3000", '"x"'), 3, "timestamp is 'x'"),
    (MOONCAKE.replace("3000", "true"), 3, "timestamp is True"),
    (MOONCAKE.replace('"output_length": 9', '"output_length": 9.5'), 1, "output_length is 9.5"),
    (CODING.replace("[[1, 3]]", "[[1, 2]]"), 1, "runs name 2 blocks; 3 full blocks"),
    (CODING.replace("[[1, 3]]", "[[1, 2, 3]]"), 1, "runs is missing or not"),
    (CODING.replace('"t": 19.0', '"t": -1'), 3, "t is -1"),
    (CODING + CODING[: CODING.index("\n")].join(["\n", ""]), 5, "conversation 1 goes on"),
    (TURNS + "0,2,400,1,1\n", 5, "conv 0 goes on after another one began"),
    (TURNS + "7,2,400,1,1\n", 5, "turn is 2; conv 7 had turn 0"),
    (TURNS + "7,1,4,5,1\n", 5, "new_prompt_tokens is 5, more than prompt_tokens 4"),
    ("hello\n", 1, "no trace format has the fields hello"),
]


@pytest.mark.parametrize(("text", "line", "message"), BAD)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as error:
        list(open_trace(path).rows())
    assert error.value.message.startswith(f"{path}:{line}: ")
    assert error.value.param == "--trace"


def test_rate_curves(tmp_path: Path) -> None:
    path = write(tmp_path, "time_s,a_rps,b_rps\n0,1.5,2\n600,0,3\n1200,2.5,\n")
    assert read_rate_curve(path, "a_rps") == ([1.5, 0.0, 2.5], 600.0)
    assert read_rate_curve(path, "b_rps") == ([2.0, 3.0], 600.0)
    with pytest.raises(ConfigError, match=r"trace:1: column c_rps is missing"):
        read_rate_curve(path, "c_rps")
    with pytest.raises(ConfigError, match=r"trace:4: time_s is 1300; every window must be 600 s long"):
        read_rate_curve(write(tmp_path, "time_s,a\n0,1\n600,1\n1300,1\n"), "a")
    with pytest.raises(ConfigError, match=r"trace:3: a is -1"):
        read_rate_curve(write(tmp_path, "time_s,a\n0,1\n600,-1\n"), "a")
    with pytest.raises(ConfigError, match="two windows"):
        read_rate_curve(write(tmp_path, "time_s,a\n0,1\n"), "a")


SHARED = {
    "azure2023_code.csv.gz": ("azure", 8_819, 2047.85, 27.88),
    "azure2023_conv.csv.gz": ("azure", 19_366, 1154.70, 211.13),
    "mooncake_conversation.jsonl.gz": ("mooncake", 12_031, 12035.06, 342.62),
    "mooncake_synthetic.jsonl.gz": ("mooncake", 3_993, 15325.48, 149.12),
    "sharegpt_single_turn.csv": ("lengths", 9_812, 110.45, 300.79),
    "sharegpt_multi_turn.csv": ("conversations", 60_354, 6362.64, 307.37),
    "sharegpt_8k_llama2_lengths.csv.gz": ("lengths", 30_731, 2340.03, 438.71),
    "alpaca_5k_lengths.csv": ("lengths", 5_000, 18.00, 58.09),
    "coding_agent_rle.jsonl.gz": ("coding-agent", 49_334, 122379.0, 440.06),
}


@pytest.mark.parametrize("name", SHARED)
def test_the_shared_traces_have_their_published_counts_and_means(name: str) -> None:
    path = TRACES / name
    if not path.is_file():
        pytest.skip(f"the shared traces are not at {TRACES}")
    kind, rows, prompt, output = SHARED[name]
    trace = open_trace(path)
    found = [(row.prompt_tokens, row.output_tokens) for row in trace.rows()]
    assert (trace.kind.name, len(found)) == (kind, rows)
    assert sum(pair[0] for pair in found) / rows == pytest.approx(prompt, abs=0.5 if prompt > 1e5 else 0.005)
    assert sum(pair[1] for pair in found) / rows == pytest.approx(output, abs=0.005)


def test_missing_columns_of_a_named_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trace:1: column arrival_s is missing"):
        list(open_trace(write(tmp_path, LENGTHS), "azure").rows())
    with pytest.raises(ConfigError, match="'burst' is not known") as error:
        open_trace(write(tmp_path, LENGTHS), "burst")
    assert error.value.param == "--trace-kind"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        open_trace(tmp_path / "absent")
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(AZURE.encode() * 50)[:60])
    with pytest.raises(ConfigError, match="damaged"):
        list(open_trace(cut, "azure").rows())
    binary = tmp_path / "binary"
    binary.write_bytes(b"arrival_s,prompt_tokens,output_tokens\n\xff\xfe\n")
    with pytest.raises(ConfigError, match="damaged or not text"):
        list(open_trace(binary).rows())
