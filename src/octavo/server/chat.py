"""The answers of ``/v1/chat/completions``."""

from __future__ import annotations

from typing import Any

from octavo.core.plan import FinishReason
from octavo.server.engine_thread import Delta
from octavo.server.generation import Answer, Generation
from octavo.server.payloads import REASONS, chat_logprobs, prompt_logprobs
from octavo.server.protocol import ChatRequest
from octavo.server.tool_calls import Parsed, ToolCallReader, ToolFormat, tools_wanted


class ChatGeneration(Generation):
    """Messages of the assistant; text that is a tool call becomes one."""

    body: ChatRequest

    def __init__(self, *args: Any, tool_format: ToolFormat | None) -> None:
        super().__init__(*args)
        self._readers: list[ToolCallReader] | None = None
        if tool_format is not None and tools_wanted(self.body):
            self._readers = [ToolCallReader(tool_format) for _ in self.answers]
        self._started: set[int] = set()

    def chunks(self, answer: Answer, delta: Delta) -> list[dict[str, Any]]:
        chunks = []
        if answer.index not in self._started:
            self._started.add(answer.index)
            first = self._chunk(answer, {"role": "assistant", "content": self._echoed()}, None)
            if delta.prompt_logprobs is not None:
                first["prompt_logprobs"] = prompt_logprobs(delta.prompt_logprobs, self.tokenizer)
            if self.body.return_token_ids:
                first["prompt_token_ids"] = self.job.prompts[answer.prompt]
            chunks.append(first)
        parsed = self._parse(answer, delta.text, delta.finish_reason != FinishReason.RUNNING)
        told: dict[str, Any] = {"content": parsed.content}
        if parsed.calls:
            told = {"tool_calls": parsed.calls} | ({"content": parsed.content} if parsed.content else {})
        chunk = self._chunk(answer, told, self._reason(answer, delta.finish_reason))
        choice = chunk["choices"][0]
        if delta.finish_reason != FinishReason.RUNNING:
            choice["stop_reason"] = delta.stop_reason
        if self.body.logprobs:
            choice["logprobs"] = chat_logprobs(delta.logprobs, self.tokenizer)
        if self.body.return_token_ids:
            choice["token_ids"] = delta.token_ids
        chunks.append(chunk)
        return chunks

    def final_chunk(self) -> dict[str, Any]:
        return self._object("chat.completion.chunk", [])

    def whole(self) -> dict[str, Any]:
        whole = self._object("chat.completion", [self._choice(answer) for answer in self.best()])
        first = self.answers[0]
        if first.prompt_logprobs is not None:
            whole["prompt_logprobs"] = prompt_logprobs(first.prompt_logprobs, self.tokenizer)
        if self.body.return_token_ids:
            whole["prompt_token_ids"] = self.job.prompts[0]
        return whole

    def _choice(self, answer: Answer) -> dict[str, Any]:
        parsed = self._parse(answer, answer.text, True)
        content = self._echoed() + parsed.content
        message: dict[str, Any] = {"role": "assistant", "content": content or (None if parsed.calls else "")}
        if parsed.calls:
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"} for call in parsed.calls
            ]
        choice: dict[str, Any] = {
            "index": answer.index,
            "message": message,
            "logprobs": chat_logprobs(answer.logprobs, self.tokenizer) if self.body.logprobs else None,
            "finish_reason": self._reason(answer, answer.finish_reason),
            "stop_reason": answer.stop_reason,
        }
        if self.body.return_token_ids:
            choice["token_ids"] = answer.token_ids
        return choice

    def _parse(self, answer: Answer, text: str, last: bool) -> Parsed:
        if self._readers is None:
            return Parsed(text)
        parsed = self._readers[answer.index].push(text, last=last)
        if self.body.parallel_tool_calls is False:
            parsed.calls = [call for call in parsed.calls if call["index"] == 0]
        return parsed

    def _reason(self, answer: Answer, reason: FinishReason) -> str | None:
        called = self._readers is not None and self._readers[answer.index].num_calls > 0
        return "tool_calls" if reason == FinishReason.STOP and called else REASONS[reason]

    def _echoed(self) -> str:
        """With ``echo``, an answer that goes on with the assistant's last message begins with that message."""
        last = self.body.messages[-1]
        return (
            last.content
            if self.body.echo and last.role == "assistant" and isinstance(last.content, str)
            else ""
        )

    def _chunk(self, answer: Answer, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": answer.index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._object("chat.completion.chunk", [choice])

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        job = self.job
        return {
            "id": job.job_id,
            "object": kind,
            "created": job.created,
            "model": job.model,
            "choices": choices,
        }
