"""The ASGI application: routes, and what each of them does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from octavo import __version__
from octavo.core.errors import ContextLengthError, OctavoError
from octavo.dashboard.feed import Feed
from octavo.dashboard.lab_mount import LabMount
from octavo.dashboard.routes import page_routes
from octavo.llm.session import Session
from octavo.memory.lookups import RECENT_MAX
from octavo.server.chat import ChatGeneration
from octavo.server.completions import CompletionGeneration
from octavo.server.engine_thread import EngineDeadError, EngineThread
from octavo.server.errors import (
    NOT_FOUND,
    UNAVAILABLE,
    ApiError,
    bad_request,
    json_response,
    on_api_error,
    on_bug,
    on_http_error,
    on_mistake,
)
from octavo.server.generation import ClientGoneError, Generation
from octavo.server.isolation import Isolation
from octavo.server.middleware import ApiKeys, BodyLimit
from octavo.server.openapi import document
from octavo.server.prepare import Job, Preparer
from octavo.server.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    TokenizeRequest,
    decode,
)
from octavo.server.settings import ServerOptions
from octavo.server.state import snapshot
from octavo.telemetry.metrics import Metrics
from octavo.telemetry.throttle import PERIOD_S, Refusals

log = logging.getLogger(__name__)
PREPARE_SECONDS_MAX = 15.0
"""Longest that templating, tokenizing and compiling a grammar may take; beyond it the request is refused."""
RETRY_AFTER_S = 1
CLIENT_CLOSED = 499
T = TypeVar("T")
R = TypeVar("R", bound=Struct)
G = TypeVar("G", bound=GenerationRequest)


class Api:
    """The handlers. Lives in the event loop."""

    def __init__(
        self,
        session: Session,
        engine: EngineThread,
        metrics: Metrics,
        options: ServerOptions,
        say: Callable[[str], None],
    ) -> None:
        """``say`` writes a line for people."""
        self.draining = False
        """Whether new requests are turned away because the server is about to end."""
        self._session = session
        self._engine = engine
        self._metrics = metrics
        self._options = options
        self._say = say
        self._refusals = Refusals(say)
        self.lab = LabMount()
        self.feed = Feed(session.engine, lambda question: engine.ask(lambda session: question()), metrics)
        self._preparer = Preparer(session, options)
        self._isolation = Isolation(options.cache_isolation)
        self._workers = ThreadPoolExecutor(4, thread_name_prefix="prepare")
        self._started = int(time.time())

    # ------------------------------------------------------------------ generating

    async def completions(self, http: Request) -> Response:
        return await self._generate(http, CompletionRequest, self._preparer.completion, CompletionGeneration)

    async def chat(self, http: Request) -> Response:
        def make(*args: Any) -> Generation:
            return ChatGeneration(*args, tool_format=self._preparer.tool_format)

        return await self._generate(http, ChatRequest, self._preparer.chat, make)

    @property
    def model_name(self) -> str:
        """The first name under which the model is served."""
        return self._preparer.names[0]

    async def _generate(
        self, http: Request, kind: type[G], prepare: Callable[[G], Job], make: Callable[..., Generation]
    ) -> Response:
        arrived = self._session.engine.clock.now()
        body = await self._read(http, kind)
        body.cache_salt = self._isolation.salt(http, body.cache_salt)
        self._check_open()
        try:
            job = await self._in_worker(prepare, body)
        except OctavoError as error:
            self._refuse(error)
            raise
        self._check_open()
        self._check_room(job)
        self._isolation.own(http, job.job_id)
        generation = make(self._engine, self._session.tokenizer, job, body, arrived)
        try:
            return await generation.respond(http, self._options.request_timeout_s)
        except ClientGoneError:
            return Response(status_code=CLIENT_CLOSED)

    async def _read(self, http: Request, kind: type[R]) -> R:
        try:
            raw = await http.body()
        except ClientDisconnect:
            raise ApiError(CLIENT_CLOSED, "the client has gone") from None
        body, unknown = decode(raw, kind)
        if unknown:
            log.debug("%s: unknown fields ignored: %s", http.url.path, ", ".join(unknown))
        return body

    async def _in_worker(self, function: Callable[[R], T], body: R) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(
                loop.run_in_executor(self._workers, function, body), PREPARE_SECONDS_MAX
            )
        except TimeoutError:
            raise bad_request(
                f"the request took more than {PREPARE_SECONDS_MAX:.0f} s to prepare; simplify its schema or messages"
            ) from None

    def _check_open(self) -> None:
        if self._engine.failure is not None:
            raise ApiError(UNAVAILABLE, "the engine has died; the server is about to end")
        if self.draining:
            self._metrics.rejected("shutting_down")
            raise ApiError(UNAVAILABLE, "the server is shutting down", retry_after_s=RETRY_AFTER_S)

    def _check_room(self, job: Job) -> None:
        """Refuse what would make the queue longer than it may be; into an empty queue everything may go."""
        most, waiting = self._options.max_num_queued_reqs, self._engine.num_waiting()
        if waiting and self._engine.num_waiting(len(job.requests)) > most:
            self._metrics.rejected("queue_full")
            self._tell_refusal(
                f"Refused {job.job_id}: {waiting} requests wait, --max-num-queued-reqs is {most}"
            )
            raise ApiError(
                UNAVAILABLE,
                f"the queue is full: {waiting} requests wait, and --max-num-queued-reqs is {most}; try again later",
                param="--max-num-queued-reqs",
                retry_after_s=RETRY_AFTER_S,
            )

    def _refuse(self, error: OctavoError) -> None:
        if isinstance(error, ContextLengthError):
            self._metrics.rejected("too_long")
            self._tell_refusal(f"Refused a request: {error.message}")
        else:
            self._metrics.rejected("invalid")

    def _tell_refusal(self, line: str) -> None:
        loop = asyncio.get_running_loop()
        was_told = not self._refusals.count
        self._refusals.tell(line, loop.time())
        if self._refusals.count and was_told:
            loop.call_later(PERIOD_S, lambda: self._refusals.tell_due(loop.time()))

    # ------------------------------------------------------------------ the small routes

    async def models(self, http: Request) -> Response:
        return json_response({"object": "list", "data": [self._card(name) for name in self._preparer.names]})

    async def model(self, http: Request) -> Response:
        return json_response(self._card(self._preparer.check_model(http.path_params["model"])))

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "octavo",
            "root": self._session.spec.name,
            "parent": None,
            "max_model_len": self._preparer.model_len,
            "permission": [],
        }

    async def tokenize(self, http: Request) -> Response:
        body = await self._read(http, TokenizeRequest)
        tokens = await self._in_worker(self._preparer.tokenize, body)
        text = self._session.tokenizer.token_str
        return json_response(
            {
                "count": len(tokens),
                "max_model_len": self._preparer.model_len,
                "tokens": tokens,
                "token_strs": [text(token) for token in tokens] if body.return_token_strs else None,
            }
        )

    async def detokenize(self, http: Request) -> Response:
        body = await self._read(http, DetokenizeRequest)
        self._preparer.check_model(body.model)
        size = self._session.spec.vocab_size
        for token in body.tokens:
            if not 0 <= token < size:
                raise bad_request(f"token id {token} is outside the vocabulary of {size}", "tokens")
        return json_response(
            {"prompt": self._session.tokenizer.decode(body.tokens, skip_special_tokens=False)}
        )

    async def health(self, http: Request) -> Response:
        return Response(status_code=200 if self._engine.failure is None else UNAVAILABLE)

    async def ping(self, http: Request) -> Response:
        return await self.health(http)

    async def version(self, http: Request) -> Response:
        return json_response({"version": __version__})

    async def openapi(self, http: Request) -> Response:
        return json_response(document())

    async def show_metrics(self, http: Request) -> Response:
        return Response(self._metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def show_load(self, http: Request) -> Response:
        return json_response({"server_load": self._engine.num_unfinished})

    async def state(self, http: Request) -> Response:
        return json_response(await self._engine.ask(lambda session: snapshot(session, self._metrics)))

    async def prefix(self, http: Request) -> Response:
        """Why blocks of a request's prompts were not found."""
        job_id = http.path_params["request_id"]
        found = []
        if self._isolation.may_see(http, job_id):
            found = await self._engine.ask(lambda session: self._engine.explainer.of_job(job_id))
        if not found:
            raise ApiError(
                NOT_FOUND,
                f"no lookup of request {job_id!r} is remembered; the latest {RECENT_MAX:,} prompts are, once they are"
                " admitted",
                param="request_id",
            )
        return json_response({"request_id": job_id, "prefix_cache": found})

    async def reset_prefix_cache(self, http: Request) -> Response:
        dropped = await self._engine.ask(lambda session: session.engine.scheduler.allocator.reset_cache())
        self._say(f"Prefix cache reset: {dropped} cached blocks are free")
        return json_response({"blocks_freed": dropped})


async def on_dead_engine(http: Request, error: Exception) -> Response:
    return ApiError(UNAVAILABLE, "the engine has died; the server is about to end").response()


def build_app(api: Api, options: ServerOptions) -> Starlette:
    """The application around these handlers."""
    post, get = ["POST"], ["GET"]
    routes = [
        Route("/v1/chat/completions", api.chat, methods=post),
        Route("/v1/completions", api.completions, methods=post),
        Route("/v1/models", api.models, methods=get),
        Route("/v1/models/{model:path}", api.model, methods=get),
        Route("/tokenize", api.tokenize, methods=post),
        Route("/detokenize", api.detokenize, methods=post),
        Route("/health", api.health, methods=get),
        Route("/ping", api.ping, methods=["GET", "POST"]),
        Route("/version", api.version, methods=get),
        Route("/openapi.json", api.openapi, methods=get),
        Route("/metrics", api.show_metrics, methods=get),
        Route("/load", api.show_load, methods=get),
        Route("/state", api.state, methods=get),
        Route("/debug/prefix/{request_id}", api.prefix, methods=get),
        Route("/reset_prefix_cache", api.reset_prefix_cache, methods=post),
        Route("/page/feed", api.feed.stream, methods=get),
        *api.lab.routes(),
        *page_routes(("live", "lab", "walk"), {"boot": api.feed.boot, "model": api.model_name}),
    ]
    middleware = [Middleware(BodyLimit, options.max_body_bytes)]
    if options.api_keys:
        middleware.insert(0, Middleware(ApiKeys, options.api_keys))
    if options.allow_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(options.allow_origins),
            allow_methods=["*"],
            allow_headers=["*"],
        )
        middleware.insert(0, cors)
    handlers: dict[Any, Any] = {
        ApiError: on_api_error,
        OctavoError: on_mistake,
        HTTPException: on_http_error,
        EngineDeadError: on_dead_engine,
        Exception: on_bug,
    }
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
