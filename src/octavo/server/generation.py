"""``Generation``: one HTTP request's answers while they are generated, streamed or collected.

Chat and plain completions differ in how they write what came; the waiting, the ends and the errors are here.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo.core.errors import OctavoError
from octavo.core.plan import FinishReason, TokenLogprobs
from octavo.server.engine_thread import Delta, EngineDeadError, EngineThread, Stream
from octavo.server.errors import INTERNAL, TIMEOUT, ApiError, from_mistake, json_response
from octavo.server.events import DONE, EventStream, disconnected, event
from octavo.server.payloads import usage
from octavo.server.prepare import Job
from octavo.server.protocol import GenerationRequest
from octavo.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)
CAP_HEADER = "x-octavo-max-tokens-cap"


class ClientGoneError(Exception):
    """Nobody is left to answer."""


@dataclass(slots=True)
class Answer:
    """One choice, as far as it has come."""

    index: int
    prompt: int
    """Position of its prompt in the job."""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason = FinishReason.RUNNING
    stop_reason: str | int | None = None

    @property
    def cumulative_logprob(self) -> float:
        return sum(one.logprob for one in self.logprobs)

    def take(self, delta: Delta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


class Generation(ABC):
    """Subclasses write the two kinds of answer."""

    def __init__(
        self, engine: EngineThread, tokenizer: Tokenizer, job: Job, body: GenerationRequest, arrived: float
    ) -> None:
        """Hands the job to the engine. Raises EngineDeadError."""
        self.tokenizer = tokenizer
        self.job = job
        self.body = body
        self.answers = [
            Answer(index, index // job.sampled) for index in range(len(job.requests) * job.sampled)
        ]
        self._engine = engine
        self._signal = asyncio.Event()
        self.streams: list[Stream] = [
            stream for request in job.requests for stream in engine.submit(request, arrived, self._signal)
        ]
        options = body.stream_options
        self._explain = bool(body.octavo and body.octavo.explain_cache)
        self._include_usage = bool(options and options.include_usage) or self._explain
        self._continuous_usage = bool(options and options.continuous_usage_stats)
        self._late: asyncio.TimerHandle | None = None
        self._timed_out = False

    # ------------------------------------------------------------------ what subclasses write

    @abstractmethod
    def chunks(self, answer: Answer, delta: Delta) -> list[dict[str, Any]]:
        """Stream chunks, without their usage, for what ``delta`` has just added to ``answer``."""

    @abstractmethod
    def final_chunk(self) -> dict[str, Any]:
        """A chunk without choices, which carries the usage."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The answer of a request that does not stream, without its usage."""

    # ------------------------------------------------------------------ running

    async def respond(self, http: HttpRequest, timeout_s: float | None) -> Response:
        """The HTTP response. Raises ApiError, or ClientGoneError where nobody waits for it."""
        if timeout_s is not None:
            self._late = asyncio.get_running_loop().call_later(timeout_s, self._on_timeout)
        headers = self._headers()
        if self.body.stream:
            return EventStream(self._events(), self.close, headers)
        try:
            await self._collect(http)
        finally:
            self.close()
        if self._timed_out and not any(answer.token_ids for answer in self.answers):
            raise ApiError(TIMEOUT, f"no token within --request-timeout ({timeout_s} s)")
        return json_response({**self.whole(), "usage": self.usage(), **self._cap_note()}, headers=headers)

    def close(self) -> None:
        """End what has not ended: its client is gone, or will learn nothing more."""
        if self._late is not None:
            self._late.cancel()
        for stream in self.streams:
            self._engine.end(stream)

    def _on_timeout(self) -> None:
        self._timed_out = True
        for stream in self.streams:
            self._engine.end(stream)

    async def _deltas(self) -> AsyncIterator[list[tuple[Answer, Delta]]]:
        """What came, together for all choices, until each has ended."""
        open_ = list(zip(self.answers, self.streams, strict=True))
        while open_:
            await self._signal.wait()
            self._signal.clear()
            ready = []
            for answer, stream in open_:
                for delta in stream.poll():
                    if delta.finish_reason == FinishReason.STOP and _gave_up(stream):
                        delta.finish_reason = FinishReason.ERROR
                    ready.append((answer, delta))
            if ready:
                yield ready
            open_ = [pair for pair in open_ if pair[0].finish_reason == FinishReason.RUNNING]

    async def _collect(self, http: HttpRequest) -> None:
        working = asyncio.ensure_future(self._take_all())
        leaving = asyncio.ensure_future(disconnected(http.receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientGoneError
            working.result()
        except EngineDeadError as error:
            raise ApiError(INTERNAL, _death(error)) from error
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _take_all(self) -> None:
        async for ready in self._deltas():
            for answer, delta in ready:
                answer.take(delta)

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            async for ready in self._deltas():
                yield b"".join(self._written(answer, delta) for answer, delta in ready)
        except OctavoError as error:
            yield event(from_mistake(error).body)
        except EngineDeadError as error:
            yield event(ApiError(INTERNAL, _death(error)).body)
        else:
            note = self._cap_note()
            if self._include_usage or note:
                final = self.final_chunk() | note
                yield event(final | {"usage": self.usage()} if self._include_usage else final)
        yield DONE

    def _written(self, answer: Answer, delta: Delta) -> bytes:
        answer.take(delta)
        chunks = self.chunks(answer, delta)
        if self._continuous_usage:
            counts = self.usage_of(answer)
            chunks = [chunk | {"usage": counts} for chunk in chunks]
        return b"".join(map(event, chunks))

    # ------------------------------------------------------------------ parts of answers

    def best(self) -> list[Answer]:
        """The answers to tell: of ``best_of`` to a prompt, the n whose tokens are the likeliest together."""
        n, sampled = self.job.n, self.job.sampled
        if sampled == n:
            return self.answers
        best = []
        for first in range(0, len(self.answers), sampled):
            ranked = sorted(self.answers[first : first + sampled], key=lambda one: -one.cumulative_logprob)
            best += ranked[:n]
        for index, answer in enumerate(best):
            answer.index = index
        return best

    def usage(self) -> dict[str, Any]:
        """Each prompt counts once, whatever n is; its cached tokens are those of its first choice."""
        generated = 0 if self.job.prompt_only else sum(len(answer.token_ids) for answer in self.answers)
        cached = sum(stream.cached_tokens for stream in self.streams[:: self.job.sampled])
        counts = usage(sum(map(len, self.job.prompts)), generated, cached)
        if self._explain:
            counts["octavo"] = {"prefix_cache": self._engine.explainer.of(self.job.requests)}
        return counts

    def usage_of(self, answer: Answer) -> dict[str, Any]:
        """Of one choice alone, so far."""
        prompt = self.job.prompts[answer.prompt]
        return usage(len(prompt), len(answer.token_ids), self.streams[answer.index].cached_tokens)

    def _headers(self) -> dict[str, str]:
        """Says that the server's cap is below what the request would have got."""
        if self.job.capped_from is None:
            return {}
        return {CAP_HEADER: str(self.job.requests[0].sampling.max_tokens)}

    def _cap_note(self) -> dict[str, Any]:
        """Says that the server's cap is what ended an answer."""
        if self.job.capped_from is None or all(
            answer.finish_reason != FinishReason.LENGTH for answer in self.answers
        ):
            return {}
        cap = self.job.requests[0].sampling.max_tokens
        return {
            "octavo": {
                "max_tokens_cap": cap,
                "max_tokens_requested": self.job.capped_from,
                "message": f"the server's --max-tokens-cap ended this answer at {cap} tokens",
            }
        }


def _gave_up(stream: Stream) -> bool:
    """Whether a constrained answer that ended by itself did so because nothing could be said to follow."""
    constraint, completion = stream.request.constraint, stream.completion
    if constraint is None or completion is None:
        return False
    return constraint.gave_up(np.array(completion.token_ids, np.int32))


def _death(error: EngineDeadError) -> str:
    cause = error.__cause__
    return "the engine has died" + (f": {type(cause).__name__}" if cause is not None else "")
