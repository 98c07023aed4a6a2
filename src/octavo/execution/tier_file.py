"""``FileStore``: the second tier in a file that is mapped into memory, and that a later process can go on with.

    header    4,096 bytes: magic, version, length and checksum of a JSON object that says for what the file was written
    records   one a block: state, stamp, name, checksum, and the block's bytes

A block is written in this order: its state becomes 0, its bytes are copied, its stamp, name and checksum are written,
its state becomes 1. Whoever kills the process in between leaves a record of state 0, or one whose checksum is wrong.
(The system keeps the stores of a killed process in their order. It does not when the power fails; then the checksum
tells.) The checksum is over what the file was written for, the name and the bytes, so that no other block, and no block
of another file, can pass for this one; it is verified when the block is read, not when the file is opened, which takes
no longer for a large file.

Names of blocks stand for all tokens up to their end (``memory.prefix_cache``), and the salt of a request is in them.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import weakref
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ConfigError
from octavo.execution.tier import Content

MAGIC, VERSION = b"octavo kv tier\0\0", 1
HEADER_BYTES = 4096
PREFIX = struct.Struct("<16sII32s")
"""Magic, version, bytes of the JSON object, its checksum."""
NAME_BYTES, DIGEST_BYTES = 64, 32
ENTRY = np.dtype(
    [("state", "<u8"), ("stamp", "<u8"), ("name", f"V{NAME_BYTES}"), ("digest", f"V{DIGEST_BYTES}")]
)
ENTRY_BYTES = 128
FLAG = "--kv-offload-path"

About = Mapping[str, str | int]
"""What the bytes of a block depend on, in words that a message can use."""


class FileStore:
    """Implements ``execution.tier.Store``. One process at a time has the file."""

    def __init__(self, path: Path, about: About, blocks: int, layers: int, layer_bytes: int) -> None:
        """Opens the file or makes it; one of another number of blocks is made longer or cut.

        Raises ConfigError for a file that is no tier, is damaged, was written for something else or is in use, and
        where there is no room for it.
        """
        self.path = path
        self._record_bytes = -(-(ENTRY_BYTES + layers * layer_bytes) // 64) * 64
        size = HEADER_BYTES + blocks * self._record_bytes
        header = _header(about)
        self._seed = blake2b(header, digest_size=DIGEST_BYTES).digest()
        try:
            if not path.exists() or path.stat().st_size == 0:
                _create(path, header)
            self._file = os.open(path, os.O_RDWR)
            self._closing = weakref.finalize(self, os.close, self._file)
            _lock(self._file, path)
            _check(path, os.pread(self._file, HEADER_BYTES, 0), about)
            os.truncate(self._file, min(size, os.fstat(self._file).st_size))
            # All of it now: a mapped file that the disk has no room for kills its process at the first store.
            os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            raise ConfigError(f"cannot use {path} as second tier: {error.strerror}", param=FLAG) from error
        self._map = mmap.mmap(self._file, size)
        records = np.frombuffer(self._map, np.uint8, offset=HEADER_BYTES).reshape(blocks, self._record_bytes)
        self._entries = np.ndarray((blocks,), ENTRY, self._map, HEADER_BYTES, strides=(self._record_bytes,))
        self._bytes: NDArray[np.uint8] = records[:, ENTRY_BYTES : ENTRY_BYTES + layers * layer_bytes]
        self._shape = layers, layer_bytes
        self._names: dict[int, bytes] = {}
        self._digests: dict[int, bytes] = {}
        """Of blocks without a name: nobody else can ever ask for them."""
        self.contents = self._read_contents()
        """Name -> block of what the file held when it was opened, the oldest first."""
        self._stamp = int(self._entries["stamp"].max(initial=0))

    def _read_contents(self) -> dict[bytes, int]:
        published = np.flatnonzero(self._entries["state"] == 1)
        order = published[np.argsort(self._entries["stamp"][published], kind="stable")]
        found = {self._entries["name"][block].tobytes(): int(block) for block in order}
        self._names = {block: name for name, block in found.items()}
        return dict(sorted(found.items(), key=lambda item: int(self._entries["stamp"][item[1]])))

    def write(self, block: int, content: Content, name: bytes | None) -> None:
        self.forget(block)
        self._bytes[block] = content.reshape(-1)
        digest = self._digest(name, self._bytes[block])
        if name is None:
            self._digests[block] = digest
            return
        entry = self._entries[block : block + 1]
        self._stamp += 1
        entry["stamp"] = self._stamp
        entry["name"] = np.void(name)
        entry["digest"] = np.void(digest)
        entry["state"] = 1
        self._names[block] = name

    def read(self, block: int, into: Content) -> bool:
        name = self._names.get(block)
        content = self._bytes[block].copy()  # verified and used: nobody can change it in between
        if self._digest(name, content) == self._expected(block, name):
            into[:] = content.reshape(self._shape)
            return True
        into[:] = 0
        self.forget(block)
        return False

    def forget(self, block: int) -> None:
        self._entries["state"][block] = 0
        self._names.pop(block, None)
        self._digests.pop(block, None)

    def close(self) -> None:
        """Let another process have the file. The store must not be used after this."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._closing()

    def _expected(self, block: int, name: bytes | None) -> bytes | None:
        if name is None:
            return self._digests.get(block)
        entry = self._entries[block]
        known = entry["state"] == 1 and entry["name"].tobytes() == name
        return entry["digest"].tobytes() if known else None

    def _digest(self, name: bytes | None, content: NDArray[np.uint8]) -> bytes:
        found = blake2b(self._seed, digest_size=DIGEST_BYTES)
        found.update(name or b"")
        found.update(content.data)
        return found.digest()


def _header(about: About) -> bytes:
    text = json.dumps(dict(about), sort_keys=True).encode()
    assert PREFIX.size + len(text) <= HEADER_BYTES
    prefix = PREFIX.pack(MAGIC, VERSION, len(text), blake2b(text, digest_size=DIGEST_BYTES).digest())
    return (prefix + text).ljust(HEADER_BYTES, b"\0")


def _create(path: Path, header: bytes) -> None:
    """A file without records. It appears under its name when its header is complete."""
    made = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        made.touch(0o600)  # keys and values tell about prompts
        made.write_bytes(header)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def _lock(file: int, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(f"{path} is in use by another process; name another file", param=FLAG) from error


def _check(path: Path, header: bytes, about: About) -> None:
    """Raise ConfigError unless the file was written by this version for the same."""
    prefix = header[: PREFIX.size].ljust(PREFIX.size, b"\0")
    magic, version, length, digest = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise ConfigError(f"{path} is no second tier; name another file", param=FLAG)
    if version != VERSION:
        raise ConfigError(
            f"{path} has version {version}, and this Octavo reads {VERSION}; remove it or name another file",
            param=FLAG,
        )
    text = header[PREFIX.size : PREFIX.size + length]
    if blake2b(text, digest_size=DIGEST_BYTES).digest() != digest:
        raise ConfigError(f"the header of {path} is damaged; remove it or name another file", param=FLAG)
    found = json.loads(text)
    for what, ours in about.items():
        if found.get(what) != ours:
            raise ConfigError(
                f"{path} was written for the {what} {found.get(what)!r}, and this engine has {ours!r}; remove"
                " it or name another file",
                param=FLAG,
            )
