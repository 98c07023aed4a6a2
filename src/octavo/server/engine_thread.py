"""``EngineThread``: the one thread that owns the session, and the streams through which answers leave it.

Everything else runs in the event loop. Requests, aborts and questions reach the thread by a queue on which it also
sleeps when there is nothing to run; what a step produced for all clients returns in one call of the loop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.core.errors import OctavoError
from octavo.core.plan import FinishReason, TokenLogprobs
from octavo.core.request import Request
from octavo.llm.completions import Completion
from octavo.llm.session import Session
from octavo.server.explanations import Explainer

IDLE_S = 1.0
"""After so long without work the engine's owner may tell what it held back."""


class EngineDeadError(Exception):
    """The engine thread has ended; ``__cause__`` says why, where it was an error."""


class Observer(Protocol):
    """Hears of requests when the engine does; called in the engine thread."""

    def added(self, request_id: str, arrived: float, now: float) -> None:
        """``arrived``: when the server had read it, in seconds of the engine's clock."""


@dataclass(slots=True, eq=False)
class Delta:
    """What one step added to an answer."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: FinishReason
    """RUNNING unless this is the last one."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """With the first token, for requests that asked."""
    stop_reason: str | int | None = None
    """With the last one: the stop string or token that ended the answer."""


class Stream:
    """One request's answer on its way to one client. The loop's side; ``_told`` counts belong to the engine thread."""

    def __init__(self, request: Request, arrived: float, signal: asyncio.Event) -> None:
        """``signal`` is set whenever something can be polled; streams of one client may share it."""
        self.request = request
        self.arrived = arrived
        self.completion: Completion | None = None
        """Set by the engine thread before the first delta; to be read after it."""
        self.ended = False
        self._signal = signal
        self._ready: list[Delta] = []
        self._failure: BaseException | None = None
        self._told_pieces = self._told_tokens = self._told_logprobs = 0

    @property
    def cached_tokens(self) -> int:
        return 0 if self.completion is None else self.completion.cached_tokens

    def poll(self) -> list[Delta]:
        """What came since the last call. Raises what made the request fail."""
        if self._failure is not None:
            raise self._failure
        ready, self._ready = self._ready, []
        return ready

    def deliver(self, outcome: Delta | BaseException) -> None:
        """Called in the loop."""
        if isinstance(outcome, Delta):
            self._ready.append(outcome)
            self.ended = outcome.finish_reason != FinishReason.RUNNING
        else:
            self._failure = outcome
            self.ended = True
        self._signal.set()

    def take(self) -> Delta:
        """What the completion has and was not told yet. Called in the engine thread."""
        completion = self.completion
        assert completion is not None
        pieces, tokens, logprobs = completion.pieces, completion.token_ids, completion.logprobs
        first = self._told_tokens == 0 and bool(tokens)
        asked = first and completion.request.sampling.prompt_logprobs is not None
        delta = Delta(
            "".join(pieces[self._told_pieces :]),
            tokens[self._told_tokens :],
            logprobs[self._told_logprobs :] if logprobs else [],
            completion.finish_reason,
            list(completion.prompt_logprobs) if asked else None,
            completion.stop_reason if completion.finished else None,
        )
        self._told_pieces, self._told_tokens, self._told_logprobs = len(pieces), len(tokens), len(logprobs)
        return delta


@dataclass(frozen=True, slots=True)
class _Add:
    request: Request
    streams: list[Stream]
    """Of its answers."""


@dataclass(frozen=True, slots=True)
class _End:
    request_id: str
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class _Ask:
    question: Callable[[Session], Any]
    answer: asyncio.Future[Any]


class _Stop:
    pass


class EngineThread:
    """Made and used in the event loop; ``_run`` and what it calls run in the thread."""

    def __init__(
        self,
        session: Session,
        loop: asyncio.AbstractEventLoop,
        observer: Observer | None = None,
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        """``on_idle`` is called in the thread when nothing ran for ``IDLE_S``, once until something runs again, and
        when the thread ends."""
        self.session = session
        self.explainer = Explainer(session.engine)
        self.failure: BaseException | None = None
        """Why the thread died; None while it lives."""
        self.died = asyncio.Event()
        self._observer = observer
        self._on_idle = on_idle or _do_nothing
        self._loop = loop
        self._inbox: queue.SimpleQueue[_Add | _End | _Ask | _Stop] = queue.SimpleQueue()
        self._streams: dict[str, Stream] = {}
        """Unfinished ones, by request id; the loop's."""
        self._running: dict[str, Stream] = {}
        """The same, as far as the thread has heard of them; the thread's."""
        self._unread = 0
        """Requests that were submitted since the thread last told that it read some; the loop's."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # ------------------------------------------------------------------ the loop's side

    def start(self) -> None:
        self._thread.start()

    @property
    def num_unfinished(self) -> int:
        return len(self._streams)

    def num_waiting(self, more: int = 0) -> int:
        """Requests without a row if ``more`` came now. Those that find a row free at the next step do not wait."""
        scheduler = self.session.engine.scheduler
        waiting = scheduler.num_waiting
        free = 0 if waiting else scheduler.config.max_num_seqs - scheduler.num_running
        return max(0, waiting + self._unread + more - free)

    def submit(self, request: Request, arrived: float, signal: asyncio.Event) -> list[Stream]:
        """Hand over a checked request; a stream for each of its answers. ``arrived``: seconds of the engine's clock.

        Raises EngineDeadError.
        """
        if self.failure is not None:
            raise EngineDeadError("the engine has died") from self.failure
        streams = [Stream(choice, arrived, signal) for choice in request.choices()]
        self._streams |= {stream.request.request_id: stream for stream in streams}
        self._unread += 1
        self._inbox.put(_Add(request, streams))
        return streams

    def end(self, stream: Stream, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request before the next step; its last delta still comes. Nothing happens if it has ended."""
        if not stream.ended:
            self._inbox.put(_End(stream.request.request_id, reason))

    def end_all(self) -> None:
        for stream in list(self._streams.values()):
            self.end(stream)

    async def ask(self, question: Callable[[Session], Any]) -> Any:
        """Call ``question`` in the thread, between two steps. Raises EngineDeadError."""
        if self.failure is not None:
            raise EngineDeadError("the engine has died") from self.failure
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._inbox.put(_Ask(question, answer))
        return await answer

    async def stop(self) -> None:
        """End the thread once its present step is done."""
        self._inbox.put(_Stop())
        await self._loop.run_in_executor(None, self._thread.join)

    def _deliver(self, outcomes: list[tuple[Stream, Delta | BaseException]], read: int) -> None:
        self._unread -= read
        for stream, outcome in outcomes:
            stream.deliver(outcome)
            if stream.ended:
                self._streams.pop(stream.request.request_id, None)

    def _on_death(self, failure: BaseException) -> None:
        self.failure = failure
        error = EngineDeadError("the engine has died")
        error.__cause__ = failure
        for stream in self._streams.values():
            stream.deliver(error)
        self._streams.clear()
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, _Ask) and not message.answer.done():
                message.answer.set_exception(error)
        self.died.set()

    # ------------------------------------------------------------------ the thread's side

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            self.session.park()
            self._on_idle()
        except BaseException as failure:
            self._loop.call_soon_threadsafe(self._on_death, failure)

    def _turn(self) -> bool:
        """Read the queue, run one step. False when the thread is to end."""
        outcomes: list[tuple[Stream, Delta | BaseException]] = []
        read = 0
        idle = not (self.session.engine.has_unfinished or self._running)
        while idle or not self._inbox.empty():
            message = self._next() if idle else self._inbox.get()
            idle = False
            if isinstance(message, _Add):
                read += 1
                if (error := self._add(message)) is not None:
                    outcomes += [(stream, error) for stream in message.streams]
            elif isinstance(message, _End):
                self.session.engine.finish(message.request_id, message.reason)
            elif isinstance(message, _Ask):
                self._answer(message)
            else:
                return False
        self._step(outcomes)
        if outcomes or read:
            self._loop.call_soon_threadsafe(self._deliver, outcomes, read)
        return True

    def _next(self) -> _Add | _End | _Ask | _Stop:
        """The next message, however long it takes."""
        try:
            return self._inbox.get(timeout=IDLE_S)
        except queue.Empty:
            self._on_idle()
            return self._inbox.get()

    def _add(self, message: _Add) -> OctavoError | None:
        try:
            completions = self.session.add_choices(message.request)
        except OctavoError as error:
            return error
        now = self.session.engine.clock.now()
        for stream, completion in zip(message.streams, completions, strict=True):
            stream.completion = completion
            self._running[stream.request.request_id] = stream
        if self._observer is not None:
            for run in message.request.runs():
                self._observer.added(run.request_id, message.streams[0].arrived, now)
        return None

    def _step(self, outcomes: list[tuple[Stream, Delta | BaseException]]) -> None:
        changed = self.session.step()
        assert changed is not None or not self._running, "an admitted request ends in tokens or an error"
        for completion in changed or ():
            request_id = completion.request.request_id
            stream = self._running[request_id]
            outcomes.append((stream, stream.take()))
            if completion.finished:
                del self._running[request_id]

    def _answer(self, message: _Ask) -> None:
        try:
            value = message.question(self.session)
        except Exception as error:
            self._loop.call_soon_threadsafe(_fail, message.answer, error)
        else:
            self._loop.call_soon_threadsafe(_succeed, message.answer, value)


def _do_nothing() -> None:
    pass


def _succeed(answer: asyncio.Future[Any], value: Any) -> None:
    if not answer.done():
        answer.set_result(value)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
