"""What clients send: the fields of each request, and those that are known and not supported.

A field that OpenAI or vLLM knows and this server does not act on is refused by name (400), unless it has the value that
changes nothing. A field that nobody knows is ignored, as both of them do.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from octavo.server.errors import bad_request


class StreamOptions(Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class StructuredOutputs(Struct):
    """vLLM's name for constraints; exactly one may be given."""

    json: Any = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class JsonSchema(Struct):
    schema: Any = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    type: str
    json_schema: JsonSchema | None = None
    grammar: str | None = None


class OctavoOptions(Struct, forbid_unknown_fields=True):
    """What no other server has. An unknown name here is a mistake, not somebody else's extension."""

    explain_cache: bool | None = None
    """Whether the usage says why blocks of the prompt were not found."""


class GenerationRequest(Struct, kw_only=True):
    """Fields that chat and plain completions share."""

    model: str | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    num_beam_groups: int | None = None
    diversity_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    add_special_tokens: bool | None = None
    octavo: OctavoOptions | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any]
    """Text, token ids, or a list of either."""
    logprobs: int | None = None


class Message(Struct, omit_defaults=True):
    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None


class TokenizeRequest(Struct, kw_only=True):
    """POST /tokenize: a prompt as it is, or messages through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "bypass_mm_cache": (False,),
    "chat_template": (),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "logits_processors": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "prompt_embeds": (),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "suffix": ("",),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "web_search_options": (),
}
"""Known fields without support, and the values besides null that ask for nothing."""

R = TypeVar("R", bound=Struct)
_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")


def decode(body: bytes, kind: type[R]) -> tuple[R, list[str]]:
    """The request and the names of its unknown fields. Raises ApiError (400) with the field at fault."""
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise bad_request("the body is not a JSON object")
    for name, neutral in NEUTRAL.items():
        value = raw.get(name)
        if value is not None and value not in neutral:
            raise bad_request(f"{name} is not supported by this server; leave it out", name)
    try:
        request = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None
    return request, sorted(set(raw) - set(kind.__struct_fields__) - set(NEUTRAL))


def _explained(problem: str) -> Exception:
    """msgspec's sentence with the field in front: "max_tokens: Expected `int`, got `str`"."""
    if match := _PATH.search(problem):
        field = match[1]
        return bad_request(f"{field}: {problem[: match.start()]}", re.split(r"[.\[]", field)[0] or None)
    if match := re.search(r"missing required field `(\w+)`", problem):
        return bad_request(f"{match[1]} is missing", match[1])
    return bad_request(problem)
