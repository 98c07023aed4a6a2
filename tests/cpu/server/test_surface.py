"""What users of other servers rely on: every flag, field, route and metric of that list, accepted or refused by name.

The list is here; where ../shared/reference/surface.md is, it must hold everything that stands there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

from octavo.cli.main import octavo
from octavo.server.protocol import NEUTRAL, ChatRequest, CompletionRequest
from server_process import ServerProcess

ROOT = Path(__file__).parents[3]
SURFACE = ROOT.parent / "shared" / "reference" / "surface.md"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

FLAGS = (
    *(
        "--max-model-len",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--block-size",
        "--kv-cache-memory-bytes",
    ),
    *(
        "--num-gpu-blocks-override",
        "--kv-cache-dtype",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
    ),
    *("--enable-chunked-prefill", "--scheduling-policy", "--max-num-queued-reqs", "--gpu-memory-utilization"),
    *("--served-model-name", "--api-key", "--seed", "--dtype", "--disable-log-stats"),
    *("--allocator", "--max-tokens-cap", "--record", "--metrics-prefix"),
)
ROUTES = (
    *(
        COMPLETIONS,
        CHAT,
        "/v1/models",
        "/health",
        "/metrics",
        "/tokenize",
        "/detokenize",
        "/version",
        "/load",
        "/ping",
    ),
    "/reset_prefix_cache",
)
BOTH: dict[str, Any] = {
    "n": 2,
    "seed": 3,
    "stop": ["zzz"],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"98": 1},
    "echo": True,
    "max_tokens": 3,
    "min_tokens": 1,
    "ignore_eos": True,
    "stream": True,
    "user": "someone",
    "priority": 1,
    "cache_salt": "salt",
    "use_beam_search": True,
    "length_penalty": 0.5,
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "response_format": {"type": "json_object"},
}
"""Fields of both kinds of request, each with a value that asks for something."""
CHAT_ONLY: dict[str, Any] = {
    "logprobs": True,
    "max_completion_tokens": 3,
    "tools": [{"type": "function", "function": {"name": "f"}}],
}
COMPLETION_ONLY: dict[str, Any] = {"logprobs": 2}
WITH_ANOTHER: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
    "stream_options": {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
}
"""Fields that mean something beside another one only."""
CASES = (
    *((COMPLETIONS, name, {name: value}) for name, value in (BOTH | COMPLETION_ONLY).items()),
    *((CHAT, name, {name: value}) for name, value in (BOTH | CHAT_ONLY).items()),
    *((CHAT, name, fields) for name, fields in WITH_ANOTHER.items()),
)
REFUSED = ("use_beam_search", "length_penalty", "priority")
"""Fields that may be refused: beam search where it is not built, a priority where the queue has none."""
METRICS = (
    *(
        "kv_cache_usage_perc",
        "num_preemptions",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_requests_running",
    ),
    *(
        "num_requests_waiting",
        "prompt_tokens",
        "prompt_tokens_cached",
        "generation_tokens",
        "request_success",
    ),
    *(
        "admission_rejections",
        "request_num_preemptions",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
    ),
    *("request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens"),
    *("request_generation_tokens", "iteration_tokens_total", "cache_config_info"),
    *("kv_blocks", "kv_waste_tokens", "kv_shared_blocks_saved", "prefix_cache_misses", "preempted_tokens"),
)


@pytest.mark.parametrize(("path", "name", "fields"), CASES, ids=[f"{path}-{name}" for path, name, _ in CASES])
def test_a_field_is_accepted_or_refused_by_name(
    server: ServerProcess, path: str, name: str, fields: dict[str, Any]
) -> None:
    known = (ChatRequest if path == CHAT else CompletionRequest).__struct_fields__
    assert name in known or name in NEUTRAL, "a field that nobody knows would be ignored"
    begin = {"prompt": "a b"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "a"}]}
    response = server.post(path, {**begin, "max_tokens": 3, **fields})
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["param"] == name
        assert name in REFUSED


def test_every_flag_is_one_of_serve() -> None:
    command = octavo.get_command(click.Context(octavo), "serve")
    assert command is not None
    taken = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
    assert set(FLAGS) <= taken


def test_every_route_is_there(server: ServerProcess) -> None:
    for route in ROUTES:
        assert server.http.get(route).status_code in (200, 405), route


def test_every_metric_is_there(server: ServerProcess) -> None:
    text = server.http.get("/metrics").text
    families = set(re.findall(r"^# TYPE octavo:(\w+) ", text, re.MULTILINE))
    plain = {name.removesuffix("_total") for name in families} | families
    assert set(METRICS) <= plain


def test_the_list_holds_what_the_page_says() -> None:
    if not SURFACE.is_file():
        pytest.skip("../shared/reference/surface.md is not here")
    text = SURFACE.read_text(encoding="utf-8")
    section = {part.split("\n", 1)[0]: part for part in text.split("\n## ")}
    flags = section["Command line and environment"].replace("--[no-]", "--")
    assert set(re.findall(r"--[a-z][a-z-]+", flags)) <= set(FLAGS)
    fields = section["HTTP"].split("Fields: ", 1)[1].split(". ", 1)[0].strip("`\n")
    names = set(re.findall(r"[a-z][a-z_]*", re.sub(r"\{[^}]*\}", "", fields)))
    tried = {name for _, name, _ in CASES}
    assert len(names) > 25
    assert names <= tried
    assert set(re.findall(r"`(/[a-z/_0-9]+)`", section["HTTP"])) <= set(ROUTES)
    metrics = section["Prometheus"].split("works unchanged:", 1)[1]
    found = {re.split(r"\{", name)[0] for name in re.findall(r"`([a-z][a-z0-9_]+(?:\{[^`]*\})?)`", metrics)}
    assert len(found) > 20
    assert found <= set(METRICS)


def test_the_environment_sizes_the_pool(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from server_process import serving

    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0.001")
    with serving(model) as server:
        server.wait_for(r"Pool: \d+ blocks of 16 tokens, 1\.0 MiB")
