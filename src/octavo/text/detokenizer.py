"""``IncrementalDetokenizer``: the text of a growing token sequence, piece by piece."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from octavo.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns tokens into text as they come, never through a character.

    The texts of all ``push`` calls and of ``flush`` together are the full decode of the tokens. A character whose
    bytes come in several tokens is held until it is whole; bytes that can never become a character turn into U+FFFD
    exactly where they do in the full decode. Each token costs the same, however long the text is.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_tail_ids: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> None:
        """``prompt_tail_ids``: tokens before the first one, or the last few of them.

        They add no text, but a character that the prompt began is finished by the answer, and the first answer token
        of a SentencePiece model keeps its leading space. Empty: the answer is a text of its own.
        """
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_next = tokenizer.strips_leading_space
        for token_id in self._last_bytes(prompt_tail_ids):
            self.push(token_id)

    def _last_bytes(self, token_ids: Sequence[int]) -> Sequence[int]:
        """The end of ``token_ids`` that holds at least 4 bytes: no character reaches further back."""
        first, size = len(token_ids), 0
        while first and size < 4:
            first -= 1
            if token_ids[first] not in self._skipped:
                size += len(self._tokenizer.token_bytes(token_ids[first]))
        return token_ids[first:]

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; may be empty."""
        if token_id in self._skipped:
            return ""
        return self._stripped(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """What is left when no token follows: U+FFFD where a character stayed unfinished."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if not self._strip_next or not text:
            return text
        self._strip_next = False
        return text[1:] if text.startswith(" ") else text
