"""From a decoded request to engine requests: token ids, sampling parameters, limits. Runs in worker threads."""

from __future__ import annotations

import functools
import time
import uuid
from dataclasses import dataclass
from typing import Any

from octavo.core.beam_params import BeamParams
from octavo.core.constraint import Constraint
from octavo.core.errors import ContextLengthError, RequestError
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.llm.session import Session
from octavo.server.beams import beam_params
from octavo.server.constraints import ConstraintSource, constraint_sources
from octavo.server.errors import NOT_FOUND, ApiError, bad_request
from octavo.server.messages import cut_after, plain_message
from octavo.server.protocol import ChatRequest, CompletionRequest, GenerationRequest, TokenizeRequest
from octavo.server.settings import ServerOptions
from octavo.server.tool_calls import tool_constraint, tool_format
from octavo.text.grammar import GrammarCompiler

COMPLETION_MAX_TOKENS = 16
"""Output tokens of a plain completion that names no number: OpenAI's default."""
MAX_CHOICES = 128
"""Answers of one HTTP request: prompts x n."""
MAX_STOP_STRINGS = 64
CHARS_PER_TOKEN_CHECKED = 32
"""A prompt with fewer characters for each token of the context is simply tokenized."""
_PASSED_ON = (
    *(
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    ),
    *("min_tokens", "ignore_eos", "skip_special_tokens", "prompt_logprobs"),
)
"""Fields with the same name and meaning in SamplingParams; null is its default."""


@dataclass(frozen=True, slots=True)
class Job:
    """One HTTP request, ready for the engine. Choices are ordered by prompt, then by n."""

    job_id: str
    model: str
    created: int
    """Seconds since 1970."""
    requests: tuple[Request, ...]
    """One a prompt."""
    n: int
    """Answers to each prompt that are told."""
    sampled: int
    """Answers to each prompt that are generated: n, or best_of."""
    prompts: tuple[list[int], ...]
    texts: tuple[str | None, ...]
    """Each prompt as it came; None for token ids and chats."""
    capped_from: int | None = None
    """Output tokens that the request would have got, where --max-tokens-cap is lower."""
    prompt_only: bool = False
    """max_tokens was 0: the generated token is thrown away."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A request whose prompts are token ids and whose limits were not looked at yet."""

    kind: str
    """Prefix of the answer's id."""
    model: str
    body: GenerationRequest
    prompts: list[list[int]]
    texts: list[str | None]
    max_tokens: int | None
    """None: as many as fit."""
    constraint: Constraint | None
    extra: dict[str, Any]
    """Sampling fields whose names or meanings differ between the two kinds of request."""
    prompt_only: bool = False
    max_tokens_field: str = "max_tokens"


class Preparer:
    """Everything that turns requests into jobs, for one model. Any thread may call it."""

    def __init__(self, session: Session, options: ServerOptions) -> None:
        self.session = session
        self.options = options
        self.names = options.served_model_names or (session.spec.name,)
        self.grammars = GrammarCompiler(session.tokenizer, session.spec.vocab_size)
        self.tool_format = tool_format(session.tokenizer.chat_template)
        scheduler = session.engine.scheduler
        self.model_len = scheduler.config.max_model_len
        self.pool_len = scheduler.allocator.pool_len
        self._priorities = scheduler.config.queue == "priority"

    def check_model(self, model: str | None) -> str:
        """The name to answer with. Raises ApiError (404) for one that is not served."""
        if model is None or model == "":
            return self.names[0]
        if model not in self.names:
            raise ApiError(
                NOT_FOUND,
                f"The model `{model}` does not exist; this server has {', '.join(self.names)}",
                param="model",
            )
        return model

    # ------------------------------------------------------------------ the two kinds of request

    def completion(self, body: CompletionRequest) -> Job:
        model = self.check_model(body.model)
        texts, prompts = self._prompts(body.prompt, body.add_special_tokens is not False)
        constraint = self._constraint(body, None)
        echo_only = body.max_tokens == 0 and bool(body.echo)
        named = 1 if echo_only else COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        if body.max_tokens is None:  # not the client's number: as many of them as fit
            named = max(1, min(named, self._longest - max(map(len, prompts))))
        extra: dict[str, Any] = {"logprobs": body.logprobs}
        if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
            extra["prompt_logprobs"] = body.logprobs
        return self._job(_Draft("cmpl", model, body, prompts, texts, named, constraint, extra, echo_only))

    def chat(self, body: ChatRequest) -> Job:
        model = self.check_model(body.model)
        prompt = self.encode_chat(body)
        constraint = self._constraint(body, tool_constraint(body, self.tool_format))
        named = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        logprobs = None
        if body.logprobs:
            logprobs = body.top_logprobs or 0
        elif body.top_logprobs:
            raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
        field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        extra = {"logprobs": logprobs}
        return self._job(
            _Draft(
                "chatcmpl", model, body, [prompt], [None], named, constraint, extra, max_tokens_field=field
            )
        )

    def tokenize(self, body: TokenizeRequest) -> list[int]:
        self.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("give either a prompt or messages", "prompt")
        if body.messages is not None:
            return self.encode_chat(body)
        assert body.prompt is not None
        return self.session.tokenizer.encode(
            body.prompt, add_special_tokens=body.add_special_tokens is not False
        )

    def encode_chat(self, body: ChatRequest | TokenizeRequest) -> list[int]:
        """Token ids of the conversation, ready for the assistant's next turn."""
        assert body.messages is not None
        if not body.messages:
            raise bad_request("messages is empty; it needs at least 1 message", "messages")
        going_on = bool(body.continue_final_message)
        turn = body.add_generation_prompt is not False and not going_on
        if going_on and body.add_generation_prompt:
            raise bad_request(
                "continue_final_message and add_generation_prompt exclude each other", "add_generation_prompt"
            )
        messages = [plain_message(message, place) for place, message in enumerate(body.messages)]
        extra = dict(body.chat_template_kwargs or {})
        for name in ("messages", "add_generation_prompt", "chat_template", "tokenize"):
            if name in extra:
                raise bad_request(
                    f"chat_template_kwargs.{name} is a field of its own", "chat_template_kwargs"
                )
        if body.tools:
            if self.tool_format is None and self.session.tokenizer.has_chat_template:
                raise bad_request("the model's chat template has no tools; leave the field out", "tools")
            extra["tools"] = body.tools
        for name in ("documents", "reasoning_effort"):
            value = getattr(body, name, None)
            if value:
                if name not in (self.session.tokenizer.chat_template or name):
                    raise bad_request(f"the model's chat template has no {name}; leave the field out", name)
                extra[name] = value
        tokenizer = self.session.tokenizer
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=turn, **extra)
        if going_on:
            rendered = cut_after(rendered, str(messages[-1].get("content") or ""))
        if isinstance(body, ChatRequest):
            self._check_text(rendered)
        return tokenizer.encode(rendered, add_special_tokens=bool(getattr(body, "add_special_tokens", None)))

    # ------------------------------------------------------------------ their parts

    def _prompts(self, prompt: Any, special: bool) -> tuple[list[str | None], list[list[int]]]:
        """One prompt or a batch, as text or token ids."""
        if prompt == [] or prompt == "":
            raise bad_request("the prompt is empty; it needs at least 1 token", "prompt")
        many = prompt if isinstance(prompt, list) and not _are_ids(prompt) else [prompt]
        if len(many) > MAX_CHOICES:
            raise bad_request(f"{len(many)} prompts; a request may have {MAX_CHOICES}", "prompt")
        texts: list[str | None] = []
        ids: list[list[int]] = []
        for one in many:
            if isinstance(one, str):
                texts.append(one)
                self._check_text(one)
                ids.append(self.session.tokenizer.encode(one, add_special_tokens=special))
            elif isinstance(one, list) and _are_ids(one):
                texts.append(None)
                ids.append(one)
            else:
                raise bad_request(
                    "prompt must be a string, a list of token ids, or a list of these", "prompt"
                )
            if not ids[-1]:
                raise bad_request("the prompt is empty; it needs at least 1 token", "prompt")
        return texts, ids

    @property
    def _longest(self) -> int:
        return min(self.model_len, self.pool_len)

    def _job(self, draft: _Draft) -> Job:
        body, prompts = draft.body, draft.prompts
        n = 1 if body.n is None else body.n
        sampled = n if body.best_of is None else body.best_of
        self._check_choices(body, n, sampled, len(prompts))
        beam = beam_params(body, sampled)
        if beam is not None:
            sampled = n  # the search itself is what best_of beams are kept in
        self._check_fields(body)
        for prompt in prompts:
            self._check_length(len(prompt), draft.max_tokens)
        limit, capped_from = self._capped(draft.max_tokens, max(map(len, prompts)))
        try:
            sampling = self._sampling(draft, limit, n, sampled, beam)
        except RequestError as error:
            if error.param == "max_tokens":
                error.param = draft.max_tokens_field
            raise
        job_id = f"{draft.kind}-{uuid.uuid4().hex}"
        requests = tuple(
            self.session.prepare(
                prompt,
                sampling,
                cache_salt=body.cache_salt,
                request_id=f"{job_id}-{place}",
                priority=body.priority or 0,
                constraint=draft.constraint,
            )
            for place, prompt in enumerate(prompts)
        )
        return Job(
            job_id=job_id,
            model=draft.model,
            created=int(time.time()),
            requests=requests,
            n=n,
            sampled=sampled,
            prompts=tuple(prompts),
            texts=tuple(draft.texts),
            capped_from=capped_from,
            prompt_only=draft.prompt_only,
        )

    def _check_choices(self, body: GenerationRequest, n: int, sampled: int, prompts: int) -> None:
        rows = self.session.engine.scheduler.config.max_num_seqs
        field = "n" if body.best_of is None else "best_of"
        if n < 1 or sampled * prompts > MAX_CHOICES:
            limit = f"it must be at least 1, and prompts x {field} at most {MAX_CHOICES}"
            raise bad_request(f"{field} is {sampled}; {limit}", field)
        if sampled < n:
            raise bad_request(f"best_of is {sampled} and n is {n}; best_of must be at least n", "best_of")
        if sampled > rows:
            raise bad_request(
                f"{field} is {sampled}, but at most {rows} sequences run at once (--max-num-seqs)", field
            )
        if body.stream and sampled > n:
            raise bad_request(
                "which answers are the best is known at the end: best_of cannot stream", "best_of"
            )

    def _check_fields(self, body: GenerationRequest) -> None:
        if body.cache_salt == "":
            raise bad_request("cache_salt is empty; leave it out or give it characters", "cache_salt")
        priority = body.priority or 0
        if priority and not self._priorities:
            raise bad_request(
                "priority needs --scheduling-policy priority; this server runs fcfs", "priority"
            )
        if not -(1 << 31) <= priority < 1 << 31:
            raise bad_request(f"priority is {priority}; it must fit 32 bits", "priority")
        if body.stream_options is not None and not body.stream:
            raise bad_request("stream_options needs stream: true", "stream_options")

    def _capped(self, named: int | None, prompt: int) -> tuple[int | None, int | None]:
        """(output tokens to allow, what they were lowered from)."""
        cap = self.options.max_tokens_cap
        wanted = self._longest - prompt if named is None else named
        return (named, None) if cap is None or wanted <= cap else (cap, wanted)

    @functools.cached_property
    def _token_bytes_max(self) -> int:
        """Bytes of the longest token."""
        tokenizer = self.session.tokenizer
        return max(len(tokenizer.token_bytes(index)) for index in range(tokenizer.vocab_size))

    def _check_text(self, text: str) -> None:
        """Refuse a text that is too long whatever its tokens are: tokenizing megabytes would keep others waiting.

        Raises ContextLengthError.
        """
        if len(text) <= CHARS_PER_TOKEN_CHECKED * self._longest:
            return
        least = len(text) // self._token_bytes_max
        if least > self._longest:
            raise ContextLengthError(
                f"This model's maximum context length is {self._longest} tokens, but your prompt has {len(text):,}"
                f" characters, which are {least:,} tokens or more. Please reduce the length of the input prompt.",
                param="input_tokens",
            )

    def _check_length(self, prompt: int, named: int | None) -> None:
        """Refuse what can never fit, in the words that clients look for. Raises ContextLengthError."""
        output = 1 if named is None else named
        if prompt + output <= self._longest:
            return
        if self.pool_len < self.model_len:
            flag, lack = "--kv-cache-memory-bytes", "key-value pool"
        else:
            flag, lack = "--max-model-len", "model"
        raise ContextLengthError(
            f"This model's maximum context length is {self._longest} tokens. However, you requested {output} output"
            f" tokens and your prompt contains {prompt} input tokens, for a total of {prompt + output} tokens. Please"
            " reduce the length of the input prompt or the number of requested output tokens."
            f" (The {lack} is the limit: --max-model-len allows {self.model_len}, the pool holds {self.pool_len};"
            f" {flag} raises it.)",
            param="input_tokens",
        )

    def _sampling(
        self, draft: _Draft, limit: int | None, n: int, sampled: int, beam: BeamParams | None
    ) -> SamplingParams:
        body = draft.body
        fields = {
            name: getattr(body, name) for name in _PASSED_ON if getattr(body, name) is not None
        } | draft.extra
        if sampled > n and fields.get("logprobs") is None:
            fields["logprobs"] = 0  # what best_of compares
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        if len(stop) > MAX_STOP_STRINGS:
            raise bad_request(f"{len(stop)} stop strings; {MAX_STOP_STRINGS} are allowed", "stop")
        if draft.constraint is not None and beam is not None:
            raise bad_request("a beam search cannot be constrained", "use_beam_search")
        if draft.constraint is not None:
            for name in ("min_tokens", "ignore_eos"):
                if fields.get(name):
                    raise bad_request(
                        f"{name} contradicts a constrained answer, which ends when it is complete", name
                    )
        return SamplingParams(
            **fields,
            n=sampled,
            beam=beam,
            max_tokens=limit,
            seed=body.seed,
            stop=tuple(stop),
            stop_token_ids=tuple(body.stop_token_ids or ()),
            logit_bias=_bias(body.logit_bias),
        )

    def _constraint(self, body: GenerationRequest, of_tools: ConstraintSource | None) -> Constraint | None:
        asked = [source for source in (*constraint_sources(body), of_tools) if source is not None]
        if not asked:
            return None
        if len(asked) > 1:
            raise bad_request(f"{asked[0].param} and {asked[1].param} exclude each other", asked[1].param)
        return self.grammars.compile(asked[0].kind, asked[0].source, param=asked[0].param)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _bias(given: dict[str, float] | None) -> dict[int, float]:
    try:
        return {int(token): bias for token, bias in (given or {}).items()}
    except ValueError:
        raise bad_request("logit_bias must have token ids as keys", "logit_bias") from None
