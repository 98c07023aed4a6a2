"""The second tier's file: found again, refused, damaged, and cut off in the middle of a write."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from octavo.core.errors import ConfigError
from octavo.execution.tier_file import ENTRY_BYTES, HEADER_BYTES, FileStore

ABOUT = {"model": "m 1", "block size (--block-size)": 16}
LAYERS, LAYER_BYTES = 3, 50
RECORD = 320
"""128 and 150 bytes, in whole lines of 64."""


def open_store(path: Path, blocks: int = 4, **about: str | int) -> FileStore:
    return FileStore(path, {**ABOUT, **about}, blocks, LAYERS, LAYER_BYTES)


def content(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (LAYERS, LAYER_BYTES), np.uint8)


def name(seed: int) -> bytes:
    return np.random.default_rng(1_000 + seed).bytes(64)


def reads(store: FileStore, block: int, seed: int) -> bool:
    into = np.full((LAYERS, LAYER_BYTES), 7, np.uint8)
    intact = store.read(block, into)
    assert np.array_equal(into, content(seed) if intact else np.zeros_like(into))
    return intact


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Blocks 0 to 2 are named, 3 is a preempted request's."""
    path = tmp_path / "tier"
    store = open_store(path)
    for block in (2, 0, 1):
        store.write(block, content(block), name(block))
    store.write(3, content(3), None)
    assert all(reads(store, block, block) for block in range(4))
    store.close()
    return path


def test_named_blocks_are_found_again_the_oldest_first(path: Path) -> None:
    store = open_store(path)
    assert list(store.contents.items()) == [(name(2), 2), (name(0), 0), (name(1), 1)]
    assert all(reads(store, block, block) for block in range(3))
    assert not reads(store, 3, 3), "whoever waited for it is gone"


def test_only_its_owner_can_read_it(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_block_written_again_is_the_newest_and_a_forgotten_one_is_gone(path: Path) -> None:
    store = open_store(path)
    store.write(2, content(9), name(9))
    store.forget(0)
    store.close()
    again = open_store(path)
    assert list(again.contents.items()) == [(name(1), 1), (name(9), 2)]
    assert reads(again, 2, 9) and not reads(again, 0, 0)


@pytest.mark.parametrize("offset", [0, 60, 100, ENTRY_BYTES, ENTRY_BYTES + 149])
def test_a_flipped_bit_is_seen(path: Path, offset: int) -> None:
    """In the stamp it costs nothing; in state, name, checksum or bytes it costs the block, and no other."""
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + RECORD + offset] ^= 4
    path.write_bytes(data)
    store = open_store(path)
    assert not reads(store, 1, 1)
    assert reads(store, 0, 0) and reads(store, 2, 2)
    store.close()
    assert 1 not in open_store(path).contents.values(), "a damaged block is not found a second time"


def test_damage_while_the_file_is_open_is_seen(path: Path) -> None:
    store = open_store(path)
    store.write(3, content(3), None)
    with path.open("r+b") as file:
        for block in (1, 3):
            file.seek(HEADER_BYTES + block * RECORD + ENTRY_BYTES + 5)
            file.write(b"damage")
    assert not reads(store, 1, 1) and not reads(store, 3, 3) and reads(store, 0, 0)


def test_another_blocks_record_does_not_pass_for_this_one(path: Path) -> None:
    store = open_store(path)
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES + RECORD)
        file.write(data[HEADER_BYTES : HEADER_BYTES + RECORD])
    assert not reads(store, 1, 1) and reads(store, 0, 0)


def test_more_or_fewer_blocks(path: Path) -> None:
    open_store(path, 9).close()
    assert path.stat().st_size == HEADER_BYTES + 9 * RECORD
    store = open_store(path, 2)
    assert sorted(store.contents.values()) == [0, 1] and reads(store, 1, 1)


@pytest.mark.parametrize(
    ("what", "value"), [("model", "m 2"), ("block size (--block-size)", 32), ("more", 1)]
)
def test_a_file_for_something_else_is_refused(path: Path, what: str, value: str | int) -> None:
    before = path.read_bytes()
    with pytest.raises(ConfigError) as caught:
        open_store(path, 1, **{what: value})
    assert caught.value.param == "--kv-offload-path"
    assert what in caught.value.message and repr(value) in caught.value.message
    assert path.read_bytes() == before, "and left alone"


def test_what_is_no_tier_is_refused_and_left_alone(tmp_path: Path, path: Path) -> None:
    other = tmp_path / "letter"
    other.write_text("dear reader")
    with pytest.raises(ConfigError, match="is no second tier"):
        open_store(other)
    assert other.read_text() == "dear reader"
    data = bytearray(path.read_bytes())
    for offset, message in ((16, "version 3"), (60, "header of .* damaged"), (30, "header of .* damaged")):
        changed = data.copy()
        changed[offset] ^= 2
        path.write_bytes(changed)
        with pytest.raises(ConfigError, match=message):
            open_store(path)
    with pytest.raises(ConfigError, match="cannot use"):
        open_store(tmp_path / "nowhere" / "tier")


def test_one_process_at_a_time(path: Path) -> None:
    store = open_store(path)
    with pytest.raises(ConfigError, match="in use by another process"):
        open_store(path)
    store.close()
    open_store(path)


WRITER = """
import sys
from pathlib import Path
import numpy as np
from octavo.execution.tier_file import FileStore
layers, layer_bytes, blocks = 4, 200_000, 6
store = FileStore(Path(sys.argv[1]), {"model": "m"}, blocks, layers, layer_bytes)
number = int(sys.argv[2])
print("open", flush=True)
while True:
    number += 1
    name = number.to_bytes(8, "little") * 8
    store.write(number % blocks, np.full((layers, layer_bytes), number % 251, np.uint8), name)
"""


def test_a_process_killed_while_it_writes_leaves_a_file_that_opens(tmp_path: Path) -> None:
    """Again and again at other moments; what is found is what was written, or is known not to be."""
    path, number, found = tmp_path / "tier", 0, 0
    for attempt in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(number)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None and process.stdout.readline() == b"open\n"
            time.sleep(0.03 + 0.0137 * attempt)
            process.send_signal(signal.SIGKILL)
        store = FileStore(path, {"model": "m"}, 6, 4, 200_000)
        assert len(store.contents) >= min(5, number), "one block at most was being written"
        into = np.empty((4, 200_000), np.uint8)
        for key, block in store.contents.items():
            written = int.from_bytes(key[:8], "little")
            assert written % 6 == block
            assert store.read(block, into) and (into == written % 251).all()
            number, found = max(number, written), found + 1
        store.close()
    assert found >= 30
