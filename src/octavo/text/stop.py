"""Stop strings across token borders, and ``TextStream``: tokens in, text out, until a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.tokenizer import Tokenizer


class StopChecker:
    """Finds the first stop string in a text that comes in pieces.

    Text that may turn out to be the start of a stop string is held back, so that what was emitted never has to be
    taken back. Which pieces the text came in makes no difference: the stop string that is *complete* first ends the
    text (waiting for one that began earlier would generate tokens for nothing); of those that are complete at the
    same character, the longest, so that no part of it is emitted.
    """

    def __init__(self, stop: Sequence[str], include_stop: bool = False) -> None:
        """``include_stop``: whether the stop string itself is emitted too."""
        assert all(stop), "an empty stop string would end every text at once"
        self._stop = tuple(dict.fromkeys(stop))
        self._include_stop = include_stop
        self._held = ""
        self.stopped = False
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> tuple[str, bool]:
        """(text to emit, whether a stop string ended it). After a stop nothing is emitted any more."""
        if self.stopped:
            return "", True
        if not self._stop:
            return text, False
        text = self._held + text
        matches = [(start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0]
        if matches:
            end, start = min(matches)
            self.stopped, self._held, self.matched = True, "", text[start:end]
            return text[: end if self._include_stop else start], True
        safe = min(self._possible_start(text, stop) for stop in self._stop)
        self._held = text[safe:]
        return text[:safe], False

    def flush(self) -> str:
        """What was held back, when no text follows. It holds no whole stop string: ``push`` looked."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _possible_start(text: str, stop: str) -> int:
        """Where the longest end of ``text`` begins that ``stop`` may continue; ``len(text)`` where there is none."""
        start = max(0, len(text) - len(stop) + 1)
        while (start := text.find(stop[0], start)) >= 0:
            if stop.startswith(text[start:]):
                return start
            start += 1
        return len(text)


class TextStream:
    """One request's tokens in, its text out."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_tail_ids: Sequence[int] = (),
        *,
        stop: Sequence[str] = (),
        skip_special_tokens: bool = True,
        include_stop: bool = False,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_tail_ids, skip_special_tokens)
        self._stop = StopChecker(stop, include_stop)

    @property
    def matched(self) -> str | None:
        """The stop string that was met."""
        return self._stop.matched

    def push(self, token_id: int) -> tuple[str, bool]:
        """(new text, whether a stop string was met; then the request is to be ended and nothing more is emitted)."""
        return self._stop.push(self._detokenizer.push(token_id))

    def flush(self) -> tuple[str, bool]:
        """The rest, when the last token has been pushed: (text, whether it completed a stop string)."""
        text, stopped = self._stop.push(self._detokenizer.flush())
        return text + self._stop.flush(), stopped
