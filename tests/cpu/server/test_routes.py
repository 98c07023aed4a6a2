"""The small routes, the fields that change an answer's shape, and the metrics."""

from __future__ import annotations

import re

import httpx
import pytest

from octavo import __version__
from server_process import ServerProcess, events, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TALK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True}


def test_probes_and_version(server: ServerProcess) -> None:
    assert server.http.get("/health").content == b""
    assert server.http.get("/ping").status_code == server.http.post("/ping").status_code == 200
    assert server.http.get("/version").json() == {"version": __version__}
    assert server.http.get("/load").json() == {"server_load": 0}


def test_tokenizing_and_back(server: ServerProcess) -> None:
    found = server.post("/tokenize", {"prompt": "the a", "return_token_strs": True}).json()
    assert set(found) == {"count", "max_model_len", "tokens", "token_strs"}
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert "".join(found["token_strs"]) == "the a"
    assert found["max_model_len"] == 2048
    assert server.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": "the a"}
    chat = server.post("/tokenize", {"messages": TALK["messages"]}).json()
    assert chat["token_strs"] is None
    answer = server.post(CHAT, {**TALK, "return_token_ids": True}).json()
    assert answer["prompt_token_ids"] == chat["tokens"]


def test_token_ids_come_back(server: ServerProcess) -> None:
    body = {
        "prompt": [97, 98, 99],
        "max_tokens": 4,
        "ignore_eos": True,
        "temperature": 0,
        "return_token_ids": True,
    }
    (choice,) = server.post(COMPLETIONS, body).json()["choices"]
    assert choice["prompt_token_ids"] == [97, 98, 99]
    assert len(choice["token_ids"]) == 4
    chunks = events(server.post(COMPLETIONS, {**body, "stream": True}).text)
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == choice["token_ids"]
    assert chunks[0]["choices"][0]["prompt_token_ids"] == [97, 98, 99]


def test_echo_with_log_probabilities_scores_the_prompt(server: ServerProcess) -> None:
    body = {
        "prompt": "abc",
        "max_tokens": 2,
        "ignore_eos": True,
        "echo": True,
        "logprobs": 1,
        "temperature": 0,
    }
    (choice,) = server.post(COMPLETIONS, body).json()["choices"]
    assert choice["text"].startswith("abc")
    logprobs = choice["logprobs"]
    assert logprobs["tokens"][:3] == ["a", "b", "c"]
    assert logprobs["token_logprobs"][0] is None
    assert len(logprobs["token_logprobs"]) == 5
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert logprobs["text_offset"][:4] == [0, 1, 2, 3]
    only = server.post(COMPLETIONS, {**body, "max_tokens": 0}).json()
    assert only["choices"][0]["text"] == "abc"
    assert only["choices"][0]["logprobs"]["token_logprobs"] == logprobs["token_logprobs"][:3]
    assert only["usage"]["completion_tokens"] == 0


def test_prompt_log_probabilities(server: ServerProcess) -> None:
    body = {"prompt": [97, 98, 99], "max_tokens": 1, "prompt_logprobs": 2}
    found = server.post(COMPLETIONS, body).json()["choices"][0]["prompt_logprobs"]
    assert found[0] is None
    assert len(found) == 3
    assert {"logprob", "rank", "decoded_token"} == set(found[1]["98"])
    assert server.post(CHAT, {**TALK, "prompt_logprobs": 0}).json()["prompt_logprobs"][0] is None


def test_chat_log_probabilities(server: ServerProcess) -> None:
    (choice,) = server.post(CHAT, {**TALK, "logprobs": True, "top_logprobs": 2, "temperature": 0}).json()[
        "choices"
    ]
    content = choice["logprobs"]["content"]
    assert len(content) == 3
    for entry in content:
        assert entry["token"] == entry["top_logprobs"][0]["token"], "greedy takes the likeliest"
        assert len(entry["top_logprobs"]) == 2
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]


def test_stop_strings_and_biases(server: ServerProcess) -> None:
    free = server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 20, "seed": 1, "ignore_eos": True}).json()
    text = free["choices"][0]["text"]
    stop = text[5:7]
    stopped = server.post(
        COMPLETIONS, {"prompt": "a", "max_tokens": 20, "seed": 1, "ignore_eos": True, "stop": stop}
    ).json()
    assert stopped["choices"][0]["text"] == text[: text.index(stop)]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["choices"][0]["stop_reason"] == stop
    ended = server.post(
        COMPLETIONS, {"prompt": "a", "logit_bias": {"98": 100}, "stop_token_ids": [98]}
    ).json()
    assert ended["choices"][0]["stop_reason"] == 98
    biased = server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 4, "logit_bias": {"98": 100}}).json()
    assert biased["choices"][0]["text"] == "bbbb"


def test_continuous_usage(server: ServerProcess) -> None:
    body = {**TALK, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    chunks = events(server.post(CHAT, body).text)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 1, 2, 3, 3]
    assert all("cached_tokens" in chunk["usage"]["prompt_tokens_details"] for chunk in chunks)


def test_going_on_with_the_last_message(server: ServerProcess) -> None:
    messages = [*TALK["messages"], {"role": "assistant", "content": "The sky"}]
    body = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
    text = server.post("/detokenize", {"tokens": server.post("/tokenize", body).json()["tokens"]}).json()[
        "prompt"
    ]
    assert text.endswith("assistant\nThe sky")
    answer = server.post(CHAT, {**body, "max_tokens": 2, "ignore_eos": True, "echo": True}).json()
    assert answer["choices"][0]["message"]["content"].startswith("The sky")


def test_cached_prompts_and_their_reset(server: ServerProcess) -> None:
    body = {"prompt": "the prefix that comes again and again", "max_tokens": 2, "ignore_eos": True}

    def cached(**more: str) -> int:
        usage = server.post(COMPLETIONS, {**body, **more}).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert server.post("/reset_prefix_cache", None).status_code == 200
    assert cached() == 0
    assert cached() == 16
    assert cached(cache_salt="mine") == 0, "salted prompts share with none but their own"
    server.wait_until_idle()
    held = server.metric("kv_blocks", state="cached")
    assert held > 0
    assert server.post("/reset_prefix_cache", None).json() == {"blocks_freed": held}
    assert cached() == 0


def test_metrics_add_up(server: ServerProcess) -> None:
    names = (
        "prompt_tokens_total", "generation_tokens_total", "request_success_total", "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count", "e2e_request_latency_seconds_count", "request_queue_time_seconds_count",
        "request_prefill_time_seconds_count", "request_decode_time_seconds_count", "request_prompt_tokens_sum",
        "request_generation_tokens_sum", "request_time_per_output_token_seconds_count",
    )  # fmt: skip
    before = {name: server.metric(name) for name in names}
    for _ in range(3):
        server.post(COMPLETIONS, {"prompt": "abcde", "max_tokens": 7, "ignore_eos": True})
    server.wait_until_idle()
    grown = {name: server.metric(name) - before[name] for name in names}
    assert grown == dict(zip(names, (15, 21, 3, 3, 18, 3, 3, 3, 3, 15, 21, 3), strict=True))
    assert sum(server.metric("kv_blocks", state=state) for state in ("live", "cached", "free")) == 400
    assert server.metric("cache_config_info", block_size="16", num_gpu_blocks="400") == 1


def test_the_metrics_that_dashboards_query_exist(server: ServerProcess) -> None:
    server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 2})
    text = server.http.get("/metrics").text
    names = set(re.findall(r"^octavo:(\w+)\{", text, re.MULTILINE))
    wanted = {
        *(
            "kv_cache_usage_perc",
            "num_preemptions_total",
            "prefix_cache_queries_total",
            "prefix_cache_hits_total",
        ),
        *(
            "num_requests_running",
            "num_requests_waiting",
            "prompt_tokens_total",
            "prompt_tokens_cached_total",
        ),
        *(
            "generation_tokens_total",
            "request_success_total",
            "admission_rejections_total",
            "cache_config_info",
        ),
        *("kv_blocks", "kv_waste_tokens", "kv_shared_blocks_saved", "preempted_tokens_total"),
        "iteration_tokens_total_bucket",
    }
    for histogram in (
        *("request_num_preemptions", "time_to_first_token_seconds", "inter_token_latency_seconds"),
        *(
            "request_time_per_output_token_seconds",
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
        ),
        *("request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens"),
        "request_generation_tokens",
    ):
        wanted |= {f"{histogram}_bucket", f"{histogram}_sum", f"{histogram}_count"}
    assert wanted <= names
    assert 'model_name="tiny"' in text
    assert 'engine="0"' in text


def test_connections_are_kept(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, http2=False) as http:
        first, second = (http.get("/version") for _ in range(2))
    assert first.extensions["network_stream"] is second.extensions["network_stream"]


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (("--max-num-batched-tokens", "64"), 5),
        (("--no-enable-chunked-prefill",), 1),
        (("--enable-chunked-prefill", "--max-num-batched-tokens", "unlimited"), 1),
    ],
)
def test_a_prompt_is_prefilled_in_chunks_or_whole(model: str, flags: tuple[str, ...], steps: int) -> None:
    with serving(model, "--num-gpu-blocks-override", "40", *flags) as server:
        body = {"prompt": list(range(97, 123)) * 12, "max_tokens": 1}  # 312 tokens
        assert server.post(COMPLETIONS, body).status_code == 200
        server.wait_until_idle()
        assert server.metric("iteration_tokens_total_count") == steps
