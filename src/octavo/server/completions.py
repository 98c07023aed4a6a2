"""The answers of ``/v1/completions``."""

from __future__ import annotations

from typing import Any

from octavo.core.plan import TokenLogprobs
from octavo.server.engine_thread import Delta
from octavo.server.generation import Answer, Generation
from octavo.server.payloads import REASONS, CompletionLogprobs, prompt_logprobs
from octavo.server.protocol import CompletionRequest


class CompletionGeneration(Generation):
    """Text, with the prompt in front of it where ``echo`` asks for that."""

    body: CompletionRequest

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._logprobs = [CompletionLogprobs(self.tokenizer) for _ in self.answers]
        self._started: set[int] = set()

    def chunks(self, answer: Answer, delta: Delta) -> list[dict[str, Any]]:
        first = answer.index not in self._started
        self._started.add(answer.index)
        return [self._object([self._choice(answer, delta, first)])]

    def final_chunk(self) -> dict[str, Any]:
        return self._object([])

    def whole(self) -> dict[str, Any]:
        choices = []
        for answer in self.best():
            everything = Delta(
                answer.text,
                answer.token_ids,
                answer.logprobs,
                answer.finish_reason,
                answer.prompt_logprobs,
                answer.stop_reason,
            )
            choices.append(self._choice(answer, everything, first=True))
        return self._object(choices)

    def _object(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        job = self.job
        return {
            "id": job.job_id,
            "object": "text_completion",
            "created": job.created,
            "model": job.model,
            "choices": choices,
        }

    def _choice(self, answer: Answer, delta: Delta, first: bool) -> dict[str, Any]:
        """``first``: whether what belongs to the prompt is to be told."""
        body, prompt = self.body, self.job.prompts[answer.prompt]
        text, tokens, found = delta.text, delta.token_ids, delta.logprobs
        if self.job.prompt_only:
            text, tokens, found = "", [], []
        told: list[TokenLogprobs | None] = list(found)
        told_ids = tokens
        if first and body.echo:
            text = self._prompt_text(answer.prompt) + text
            if body.logprobs is not None:
                told = [None, *(delta.prompt_logprobs or ()), *told]
                told_ids = [*prompt, *tokens]
        choice: dict[str, Any] = {
            "index": answer.index,
            "text": text,
            "logprobs": None
            if body.logprobs is None
            else self._logprobs[answer.index].of(told_ids[: len(told)], told),
            "finish_reason": REASONS[delta.finish_reason],
            "stop_reason": delta.stop_reason,
        }
        if first and body.prompt_logprobs is not None and delta.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(delta.prompt_logprobs, self.tokenizer)
        if body.return_token_ids:
            choice["token_ids"] = tokens
            if first:
                choice["prompt_token_ids"] = prompt
        return choice

    def _prompt_text(self, prompt: int) -> str:
        text = self.job.texts[prompt]
        return self.tokenizer.decode(self.job.prompts[prompt]) if text is None else text
