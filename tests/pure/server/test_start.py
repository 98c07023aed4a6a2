"""How long a start took, as the ready line tells it."""

from __future__ import annotations

import subprocess
import sys
import time

CODE = """
import time
from octavo.server.serve import seconds_since_start
first = seconds_since_start()
time.sleep(0.25)
print(first, seconds_since_start())
"""


def test_it_is_the_time_since_the_process_began() -> None:
    """Seen from outside: no longer than the process has run, and not much shorter than its own sleep suggests."""
    begin = time.perf_counter()
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    outside = time.perf_counter() - begin
    first, second = map(float, said.split())
    assert 0 < first < second <= outside + 0.02
    assert second - first >= 0.24
