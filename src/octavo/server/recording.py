"""The file of ``--record``: a disk that fills up ends the recording, not the server."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from octavo.telemetry.recording import open_for_writing


class RecordingFile(io.TextIOBase):
    """Text file that stops writing at the first error, and says so once."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Raises ConfigError if the file cannot be created."""
        super().__init__()
        self._path = path
        self._say = say
        self._file = open_for_writing(path)
        self._broken = False

    def write(self, text: str) -> int:
        if not self._broken:
            try:
                return self._file.write(text)
            except OSError as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        if not self._broken and not self._file.closed:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        if not self.closed:
            try:
                self._file.close()
            except OSError as error:
                if not self._broken:
                    self._give_up(error)
        super().close()

    def _give_up(self, error: OSError) -> None:
        self._broken = True
        self._say(
            f"Recording stopped: cannot write {self._path}: {error.strerror}; what was written stays readable"
        )
