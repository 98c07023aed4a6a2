"""Parts of answers that both kinds of completion share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.core.plan import FinishReason, TokenLogprobs
from octavo.text.tokenizer import Tokenizer

LOGPROB_MIN = -9999.0
"""In place of minus infinity, which JSON cannot say."""

REASONS = {
    FinishReason.RUNNING: None,
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.ERROR: "error",
}


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """``cached_tokens`` are always told, also when there are none."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def chat_logprobs(found: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    """The ``logprobs`` of a chat choice."""
    return {"content": [_chat_entry(one, tokenizer) for one in found]}


def _chat_entry(one: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    top = zip(one.top_ids.tolist(), one.top_logprobs.tolist(), strict=True)
    return {
        **_token_entry(one.token_id, one.logprob, tokenizer),
        "top_logprobs": [_token_entry(token, logprob, tokenizer) for token, logprob in top],
    }


def _token_entry(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "token": tokenizer.token_str(token_id),
        "logprob": max(logprob, LOGPROB_MIN),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


class CompletionLogprobs:
    """The ``logprobs`` of a plain completion: four lists that grow with the answer's text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0
        """Characters before the next token."""

    def of(self, token_ids: Sequence[int], found: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """Those of the next tokens; None for a token that nothing predicts (the first of a prompt)."""
        text = self._tokenizer.token_str
        tokens = [text(token) for token in token_ids]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [None if one is None else max(one.logprob, LOGPROB_MIN) for one in found],
            "top_logprobs": [None if one is None else self._top(one) for one in found],
            "text_offset": offsets,
        }

    def _top(self, one: TokenLogprobs) -> dict[str, float]:
        text = self._tokenizer.token_str
        pairs = zip(one.top_ids.tolist(), one.top_logprobs.tolist(), strict=True)
        top = {text(token): max(logprob, LOGPROB_MIN) for token, logprob in pairs}
        top.setdefault(text(one.token_id), max(one.logprob, LOGPROB_MIN))
        return top


def prompt_logprobs(found: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> list[dict[str, Any] | None]:
    """vLLM's list: one map a prompt token from token ids to log-probabilities; the first token has none."""
    return [None, *(_ranked(one, tokenizer) for one in found)]


def _ranked(one: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    entries = {one.token_id: (one.logprob, one.rank)}
    for rank, (token, logprob) in enumerate(
        zip(one.top_ids.tolist(), one.top_logprobs.tolist(), strict=True), start=1
    ):
        entries.setdefault(token, (logprob, rank))
    return {
        str(token): {
            "logprob": max(logprob, LOGPROB_MIN),
            "rank": rank,
            "decoded_token": tokenizer.token_str(token),
        }
        for token, (logprob, rank) in entries.items()
    }
