"""A real ``octavo lab`` in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running_lab(*arguments: str) -> Iterator[str]:
    """Its address, without a slash at the end. It must end cleanly when it is told to."""
    program = str(Path(sys.executable).with_name("octavo"))
    process = subprocess.Popen(
        [program, "lab", "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"http://[\w.:]+", line)
        assert found, f"no address in {line!r}"
        yield found[0]
        process.terminate()
        said = process.stderr.read()
        assert process.wait(10) in (0, -15), said
        assert "Traceback" not in said, said
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()
