"""``Session``: an engine, its tokenizer and the answers it is working on, driven step by step by one owner."""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import FrameType

import numpy as np

from octavo.core.constraint import Constraint
from octavo.core.errors import RequestError
from octavo.core.model_spec import ModelSpec
from octavo.core.plan import FinishReason
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.engine.engine import Engine
from octavo.llm.completions import Completion, CompletionBoard
from octavo.llm.outputs import CompletionOutput, RequestMetrics, RequestOutput
from octavo.text.stop import TextStream
from octavo.text.tokenizer import Tokenizer


class WholeStep:
    """Hold Ctrl-C back until the step is done: half a step would have to be thrown away, with its requests.

    The handler is exchanged for each step, for 10 us of about as many ms: one that stayed would stand before those that
    the caller installs between steps, and would have to find out about them.
    """

    __slots__ = ("_before", "_held", "_pressed")

    def __enter__(self) -> None:
        self._pressed: tuple[int, FrameType | None] | None = None
        self._held = threading.current_thread() is threading.main_thread()  # signals reach that one alone
        if self._held:
            self._before = signal.signal(signal.SIGINT, self._press)

    def _press(self, number: int, frame: FrameType | None) -> None:
        self._pressed = number, frame

    def __exit__(self, *raised: object) -> None:
        if not self._held:
            return
        signal.signal(signal.SIGINT, self._before)
        if self._pressed is not None and callable(self._before):
            self._before(*self._pressed)


class Session:
    """Adds requests, steps the engine, ends what a stop string ended. Single-threaded, like the engine it owns."""

    def __init__(
        self,
        engine: Engine,
        board: CompletionBoard,
        tokenizer: Tokenizer,
        spec: ModelSpec,
        seed: int | None,
        *,
        persistent: bool = False,
    ) -> None:
        """``persistent``: whether the second tier outlives this process. ``seed``: of the seeds that are drawn."""
        self.engine = engine
        self.board = board
        self.tokenizer = tokenizer
        self.spec = spec
        self._persistent = persistent
        self._seeds = random.Random(seed)
        self._count = itertools.count()

    def prepare(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        raw: bool = True,
        cache_salt: str | None = None,
        request_id: str | None = None,
        priority: int = 0,
        constraint: Constraint | None = None,
    ) -> Request:
        """A request from text or token ids. ``raw`` text goes in as it is; otherwise as a user's chat message.

        Raises RequestError for an empty prompt, a token id outside the vocabulary, or a sampled request that the
        scheduler can never serve. Draws the seed where sampling needs one and names none. Any thread may call this.
        """
        if isinstance(prompt, str):
            ids = self.encode(prompt, raw=raw)
        else:
            ids = list(prompt)
            wrong = [token for token in ids if not 0 <= token < self.spec.vocab_size]
            if wrong:
                raise RequestError(
                    f"token id {wrong[0]} is outside the vocabulary of {self.spec.vocab_size}",
                    param="prompt",
                )
        sampling.check_vocab_size(self.spec.vocab_size)
        if sampling.seed is None and not sampling.greedy and sampling.beam is None:
            sampling = replace(sampling, seed=self._seeds.getrandbits(63))
        request = Request(
            request_id or f"request-{next(self._count)}",
            np.asarray(ids, dtype=np.int32),
            sampling,
            priority=priority,
            cache_salt=cache_salt,
            constraint=constraint,
        )
        self.engine.scheduler.check(request)
        return request

    def encode(self, text: str, *, raw: bool) -> list[int]:
        """Token ids of a prompt. Raises RequestError if ``text`` is empty."""
        if not text:
            raise RequestError("the prompt is empty; it needs at least 1 token", param="prompt")
        if raw:
            return self.tokenizer.encode(text, add_special_tokens=True)
        return self.encode_chat([{"role": "user", "content": text}])

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's next turn."""
        rendered = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True)
        return self.tokenizer.encode(rendered, add_special_tokens=False)

    def add(self, request: Request) -> Completion:
        """The only answer to a request."""
        assert request.choices() == (request,), "several answers need add_choices"
        return self.add_choices(request)[0]

    def add_choices(self, request: Request) -> list[Completion]:
        """All answers to a request, by their index."""
        sampling, now = request.sampling, self.engine.clock.now()
        prompt = request.prompt_token_ids.tolist()
        completions = [
            Completion(
                choice,
                TextStream(
                    self.tokenizer,
                    prompt,
                    stop=sampling.stop,
                    skip_special_tokens=sampling.skip_special_tokens,
                ),
                added_at=now,
            )
            for choice in request.choices()
        ]
        self.engine.add(request)
        if request.sampling.beam is not None:
            self.board.add_search(request.request_id, completions)
            return completions
        for completion in completions:
            self.board.add(completion)
        return completions

    def step(self) -> list[Completion] | None:
        """One engine step: the completions that changed, or None when nothing was left to do."""
        with WholeStep():
            record = self.engine.step()
        if record is None:
            return None
        for request_id in self.board.stopped:
            self.engine.finish(request_id, FinishReason.STOP)
        self.board.stopped.clear()
        return self.board.changed

    def stream(self, completion: Completion) -> Iterator[str]:
        """The text of one answer, piece by piece, stepping the engine for it until it ends."""
        told = 0
        while not completion.finished:
            self.step()
            yield from completion.pieces[told:]
            told = len(completion.pieces)

    def run(self, completions: Iterable[Completion]) -> None:
        """Step until all of these have ended."""
        for completion in completions:
            while not completion.finished:
                progressed = self.step()
                assert progressed is not None, "an admitted request ends in tokens or an error"

    def abort(self, completions: Iterable[Completion]) -> None:
        """End these now and let their blocks return."""
        for completion in completions:
            self.engine.finish(completion.request.request_id, FinishReason.ABORT)
        self.engine.drain()

    def park(self) -> None:
        """Before this process ends: what it has cached goes to the second tier, if that outlives it.

        No part of the run: neither sinks nor a recording hear of it.
        """
        scheduler, executor = self.engine.scheduler, self.engine.executor
        if not self._persistent or scheduler.has_unfinished:
            return
        scheduler.allocator.park()
        if (plan := scheduler.plan()) is not None:
            scheduler.apply(plan, executor.collect(executor.submit(plan)))

    def output(self, completion: Completion, prompt: str | None) -> RequestOutput:
        """Of a request with one answer."""
        return self.outputs(completion.request.request_id, [completion], prompt)

    def outputs(
        self, request_id: str, completions: Sequence[Completion], prompt: str | None
    ) -> RequestOutput:
        """All answers to one request, as far as they have come."""
        leader = completions[0]
        sampling = leader.request.sampling
        return RequestOutput(
            request_id=request_id,
            prompt=prompt,
            prompt_token_ids=leader.request.prompt_token_ids.tolist(),
            outputs=[completion_output(one, index) for index, one in enumerate(completions)],
            num_cached_tokens=leader.cached_tokens,
            metrics=self._metrics(completions),
            prompt_logprobs=None if sampling.prompt_logprobs is None else [None, *leader.prompt_logprobs],
            finished=all(one.finished for one in completions),
        )

    def _metrics(self, completions: Sequence[Completion]) -> RequestMetrics:
        firsts = [one.first_token_at for one in completions if one.first_token_at is not None]
        lasts = [one.last_token_at for one in completions if one.last_token_at is not None]
        added = completions[0].added_at
        count = sum(len(one.token_ids) for one in completions)
        spent = max(lasts) - min(firsts) if firsts else 0.0
        return RequestMetrics(
            ttft_s=min(firsts) - added if firsts else 0.0,
            tokens_per_s=(count - len(firsts)) / spent if spent > 0 else 0.0,
            latency_s=max(lasts) - added if lasts else 0.0,
            blocks_used=max(one.blocks_used for one in completions),
            blocks_total=self.engine.scheduler.pool_state.total,
            preemptions=sum(one.preemptions for one in completions),
        )


def completion_output(completion: Completion, index: int) -> CompletionOutput:
    """One answer, as far as it has come."""
    asked, beam = completion.request.sampling.logprobs is not None, completion.beam
    logprob = sum(one.logprob for one in completion.logprobs) if asked else None
    return CompletionOutput(
        text=completion.text,
        token_ids=completion.token_ids,
        finish_reason=completion.finish_reason.name.lower() if completion.finished else None,
        logprobs=completion.logprobs if asked else None,
        index=index,
        cumulative_logprob=logprob if beam is None else beam.logprob,
        beam_score=None if beam is None else beam.score,
    )
