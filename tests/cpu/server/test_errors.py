"""Every refusal: its status, its type, its param, and that nothing stays behind."""

from __future__ import annotations

import re
from typing import Any

import pytest

from server_process import ServerProcess, events, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = {"prompt": "a b", "max_tokens": 2}
TALK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def refused(
    server: ServerProcess, path: str, body: Any, status: int = 400, kind: str = "BadRequestError"
) -> Any:
    """The error of a request that must be refused."""
    response = server.post(path, body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["type"] == kind
    return error


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"max_tokens": 2}, "prompt"),
        (COMPLETIONS, {**TEXT, "prompt": ""}, "prompt"),
        (COMPLETIONS, {**TEXT, "prompt": []}, "prompt"),
        (COMPLETIONS, {**TEXT, "prompt": [[]]}, "prompt"),
        (COMPLETIONS, {**TEXT, "prompt": [[1, 2], "a", 3]}, "prompt"),
        (COMPLETIONS, {**TEXT, "prompt": [1, -1]}, "prompt"),
        (COMPLETIONS, {**TEXT, "prompt": [1, 10**6]}, "prompt"),
        (COMPLETIONS, {**TEXT, "prompt": ["a"] * 1000}, "prompt"),
        (COMPLETIONS, {**TEXT, "max_tokens": "many"}, "max_tokens"),
        (COMPLETIONS, {**TEXT, "max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {**TEXT, "max_tokens": 4000}, "input_tokens"),
        (CHAT, {**TALK, "max_completion_tokens": -1}, "max_completion_tokens"),
        (COMPLETIONS, {**TEXT, "temperature": -1}, "temperature"),
        (COMPLETIONS, {**TEXT, "top_p": 0}, "top_p"),
        (COMPLETIONS, {**TEXT, "top_k": -2}, "top_k"),
        (COMPLETIONS, {**TEXT, "min_p": 2}, "min_p"),
        (COMPLETIONS, {**TEXT, "presence_penalty": 3}, "presence_penalty"),
        (COMPLETIONS, {**TEXT, "repetition_penalty": 0}, "repetition_penalty"),
        (COMPLETIONS, {**TEXT, "logit_bias": {"a": 1}}, "logit_bias"),
        (COMPLETIONS, {**TEXT, "logit_bias": {"999999": 1}}, "logit_bias"),
        (COMPLETIONS, {**TEXT, "logprobs": 50}, "logprobs"),
        (COMPLETIONS, {**TEXT, "min_tokens": 9}, "min_tokens"),
        (COMPLETIONS, {**TEXT, "stop": [""]}, "stop"),
        (COMPLETIONS, {**TEXT, "stop": ["x"] * 100}, "stop"),
        (COMPLETIONS, {**TEXT, "n": 0}, "n"),
        (COMPLETIONS, {**TEXT, "n": 1000}, "n"),
        (COMPLETIONS, {**TEXT, "cache_salt": ""}, "cache_salt"),
        (COMPLETIONS, {**TEXT, "priority": 1}, "priority"),
        (COMPLETIONS, {**TEXT, "stream_options": {"include_usage": True}}, "stream_options"),
        (COMPLETIONS, {**TEXT, "n": 3, "best_of": 2}, "best_of"),
        (COMPLETIONS, {**TEXT, "best_of": 2, "stream": True}, "best_of"),
        (COMPLETIONS, {**TEXT, "best_of": 100_000}, "best_of"),
        (COMPLETIONS, {**TEXT, "use_beam_search": True, "stream": True}, "stream"),
        (COMPLETIONS, {**TEXT, "use_beam_search": True, "n": 500}, "n"),
        (COMPLETIONS, {**TEXT, "use_beam_search": True, "n": 4, "best_of": 2}, "best_of"),
        (COMPLETIONS, {**TEXT, "use_beam_search": True, "temperature": 0.5}, "temperature"),
        (COMPLETIONS, {**TEXT, "use_beam_search": True, "top_p": 0.5}, "top_p"),
        (COMPLETIONS, {**TEXT, "use_beam_search": True, "stop": "x"}, "stop"),
        (COMPLETIONS, {**TEXT, "use_beam_search": True, "logprobs": 1}, "logprobs"),
        (COMPLETIONS, {**TEXT, "use_beam_search": True, "early_stopping": "soon"}, "early_stopping"),
        (COMPLETIONS, {**TEXT, "use_beam_search": True, "n": 4, "num_beam_groups": 3}, "num_beam_groups"),
        (COMPLETIONS, {**TEXT, "use_beam_search": True, "diversity_penalty": 1.0}, "diversity_penalty"),
        (
            COMPLETIONS,
            {**TEXT, "use_beam_search": True, "structured_outputs": {"choice": ["a"]}},
            "use_beam_search",
        ),
        (COMPLETIONS, {**TEXT, "length_penalty": 2.0}, "length_penalty"),
        (COMPLETIONS, {**TEXT, "early_stopping": True}, "early_stopping"),
        (COMPLETIONS, {**TEXT, "length_penalty": 0.5}, "length_penalty"),
        (COMPLETIONS, {**TEXT, "suffix": "z"}, "suffix"),
        (COMPLETIONS, {**TEXT, "truncate_prompt_tokens": 4}, "truncate_prompt_tokens"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        (CHAT, {**TALK, "top_logprobs": 3}, "top_logprobs"),
        (CHAT, {**TALK, "tool_choice": "required"}, "tool_choice"),
        (CHAT, {**TALK, "tools": [{"type": "function"}]}, "tools"),
        (CHAT, {**TALK, "documents": [{"text": "x"}]}, "documents"),
        (CHAT, {**TALK, "reasoning_effort": "high"}, "reasoning_effort"),
        (CHAT, {**TALK, "response_format": {"type": "xml"}}, "response_format"),
        (CHAT, {**TALK, "response_format": {"type": "json_schema"}}, "response_format"),
        (CHAT, {**TALK, "structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        (CHAT, {**TALK, "structured_outputs": {"regex": "("}}, "structured_outputs"),
        (CHAT, {**TALK, "structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        (CHAT, {**TALK, "chat_template": "{{ 1 }}"}, "chat_template"),
        ("/tokenize", {}, "prompt"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else None,
)
def test_a_wrong_field_is_named(server: ServerProcess, path: str, body: Any, param: str) -> None:
    assert refused(server, path, body)["param"] == param


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "http://localhost:1/schema"},
        {"$ref": "#/nowhere"},
        {"allOf": [{"pattern": "^(a+)+$"}] * 1000},
        {"type": "string", "pattern": "(((a{1,999}){1,999}){1,999}){1,999}b" * 40},
        "{not json",
        7,
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_a_hostile_schema_ends_in_time(server: ServerProcess, schema: Any) -> None:
    body = {
        **TALK,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    response = server.http.post(CHAT, json=body, timeout=20)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["param"] == "response_format"
    assert server.post(COMPLETIONS, TEXT).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 50_000, b'{"prompt": NaN}', b"null"])
def test_a_body_that_is_no_json_object(server: ServerProcess, body: bytes) -> None:
    response = server.http.post(COMPLETIONS, content=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "BadRequestError"


def test_an_unknown_field_is_ignored_and_a_neutral_one_taken(server: ServerProcess) -> None:
    body = {**TEXT, "no_such_field": 1, "best_of": 1, "suffix": None, "user": "u", "length_penalty": 1.0}
    assert server.post(COMPLETIONS, body).status_code == 200


def test_too_long_says_so_in_the_words_that_clients_know(server: ServerProcess) -> None:
    error = refused(server, COMPLETIONS, {"prompt": "a" * 10, "max_tokens": 3000})
    assert error["message"].startswith(
        "This model's maximum context length is 2048 tokens. However, you requested 3000 output tokens and your prompt"
        " contains 10 input tokens, for a total of 3010 tokens. Please reduce the length of the input prompt or the"
        " number of requested output tokens."
    )


def test_a_huge_prompt_is_refused_before_it_is_tokenized(server: ServerProcess) -> None:
    for path, body in (
        (COMPLETIONS, {"prompt": "a" * 90_000}),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 90_000}]}),
    ):
        error = refused(server, path, body)
        assert error["param"] == "input_tokens"
        assert "maximum context length is 2048 tokens, but your prompt has 90," in error["message"]
        assert re.search(r"which are [4-9],\d{3} tokens or more", error["message"])


def test_unknown_routes_methods_and_models(server: ServerProcess) -> None:
    refused(server, "/v2/completions", TEXT, 404, "NotFoundError")
    assert refused(server, COMPLETIONS, {**TEXT, "model": "other"}, 404, "NotFoundError")["param"] == "model"
    assert server.http.get(COMPLETIONS).status_code == 405


def test_a_body_over_the_limit(server: ServerProcess) -> None:
    error = refused(server, COMPLETIONS, {"prompt": "a" * 200_000}, 413, "RequestTooLargeError")
    assert "--max-body-bytes" in error["message"]

    def pieces() -> Any:
        for _ in range(200):
            yield b"a" * 1000

    assert server.http.post(COMPLETIONS, content=pieces()).status_code == 413, (
        "its length need not be declared"
    )


def test_keys_caps_timeouts_and_a_pool_smaller_than_the_model(model: str) -> None:
    with serving(
        model, "--num-gpu-blocks-override", "20", "--api-key", "one", "--api-key", "two", "--max-tokens-cap", "4",
        "--allow-origin", "https://page.example", "--metrics-prefix", "vllm",
    ) as server:  # fmt: skip
        for headers in ({}, {"authorization": "Bearer three"}, {"authorization": "one"}):
            response = server.http.post(COMPLETIONS, json=TEXT, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["type"] == "AuthenticationError"
        assert server.http.get("/health").status_code == 200, "probes carry no key"
        server.http.headers["authorization"] = "Bearer two"
        error = refused(server, COMPLETIONS, {"prompt": "a" * 330, "max_tokens": 1})
        assert "maximum context length is 320 tokens" in error["message"]
        assert "--kv-cache-memory-bytes" in error["message"]
        assert server.metric("admission_rejections_total", reason="too_long") == 1
        capped = server.post(COMPLETIONS, {**TEXT, "max_tokens": 100, "ignore_eos": True})
        assert capped.headers["x-octavo-max-tokens-cap"] == "4"
        assert capped.json()["usage"]["completion_tokens"] == 4
        assert capped.json()["octavo"]["max_tokens_requested"] == 100
        streamed = server.post(COMPLETIONS, {**TEXT, "max_tokens": 100, "ignore_eos": True, "stream": True})
        assert events(streamed.text)[-1]["octavo"]["max_tokens_cap"] == 4
        below = server.post(COMPLETIONS, TEXT)
        assert "octavo" not in below.json()
        assert "x-octavo-max-tokens-cap" not in below.headers
        preflight = server.http.options(
            COMPLETIONS,
            headers={"origin": "https://page.example", "access-control-request-method": "POST"},
        )
        assert preflight.headers["access-control-allow-origin"] == "https://page.example"
        assert "vllm:generation_tokens_total{" in server.http.get("/metrics").text


def test_no_page_may_call_by_default(server: ServerProcess) -> None:
    response = server.http.post(COMPLETIONS, json=TEXT, headers={"origin": "https://page.example"})
    assert "access-control-allow-origin" not in response.headers
