"""What clients are told about their prompts and the cache, from a running server."""

from __future__ import annotations

import pytest

from server_process import ServerProcess, events, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
EXPLAIN = {"octavo": {"explain_cache": True}}


def body(prompt: object, **fields: object) -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": 2, "ignore_eos": True, "temperature": 0, **fields}


def test_usage_says_why_on_request_alone(server: ServerProcess) -> None:
    prompt = [20 + number % 70 for number in range(50)]
    assert "octavo" not in server.post(COMPLETIONS, body(prompt)).json()["usage"]
    usage = server.post(COMPLETIONS, body([*prompt[:40], 1, 2, 3, 4, 5, 6, 7, 8, 9], **EXPLAIN)).json()[
        "usage"
    ]
    (told,) = usage["octavo"]["prefix_cache"]
    assert told["blocks"] == [
        {"first": 0, "count": 2, "found": "hit"},
        {"first": 2, "count": 1, "found": "never_seen"},
    ]
    assert told["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == 32
    assert told["prompt_tokens"] == 49 and told["tokens_below_block"] == 1 and told["block_size"] == 16
    assert told["possible_cached_tokens"] == {"without_evictions": 32, "by_token": 40}
    assert told["not_looked_up"] is None


def test_streams_end_with_it(server: ServerProcess) -> None:
    chat = {"messages": [{"role": "user", "content": "hi " * 40}], "max_tokens": 2, "ignore_eos": True}
    chunks = events(server.post(CHAT, {**chat, **EXPLAIN, "stream": True}).text)
    (told,) = chunks[-1]["usage"]["octavo"]["prefix_cache"]
    assert told["prompt_tokens"] == chunks[-1]["usage"]["prompt_tokens"]
    assert all("usage" not in chunk for chunk in chunks[:-1])


def test_one_explanation_a_prompt_however_many_answers(server: ServerProcess) -> None:
    prompts = [[30 + number % 60 for number in range(40)], [31 + number % 60 for number in range(40)]]
    answer = server.post(COMPLETIONS, body(prompts, n=2, **EXPLAIN)).json()
    told = answer["usage"]["octavo"]["prefix_cache"]
    assert [one["prompt_tokens"] for one in told] == [40, 40]
    found = server.http.get(f"/debug/prefix/{answer['id']}").json()
    assert found == {"request_id": answer["id"], "prefix_cache": told}


def test_prompt_logprobs_look_nothing_up(server: ServerProcess) -> None:
    prompt = [32 + number % 60 for number in range(40)]
    usage = server.post(COMPLETIONS, body(prompt, prompt_logprobs=0, **EXPLAIN)).json()["usage"]
    (told,) = usage["octavo"]["prefix_cache"]
    assert told["not_looked_up"] == "prompt_logprobs" and told["blocks"] == []


@pytest.mark.parametrize(
    ("value", "param"),
    [({"explain_cash": True}, "octavo"), ({"explain_cache": "yes"}, "octavo"), (1, "octavo")],
)
def test_a_mistake_in_the_field_is_named(server: ServerProcess, value: object, param: str) -> None:
    response = server.post(COMPLETIONS, body([40], octavo=value))
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_an_unknown_request_is_a_typed_404(server: ServerProcess) -> None:
    response = server.http.get("/debug/prefix/cmpl-nobody")
    error = response.json()["error"]
    assert response.status_code == 404 and error["type"] == "NotFoundError" and error["param"] == "request_id"


def test_an_eviction_names_the_request_that_took_the_block(model: str) -> None:
    with serving(model, "--num-gpu-blocks-override", "8", "--max-model-len", "120") as server:
        old = [50 + number for number in range(65)]
        server.post(COMPLETIONS, body(old))
        taker = server.post(COMPLETIONS, body([120 + number % 99 for number in range(110)])).json()["id"]
        usage = server.post(COMPLETIONS, body(old, **EXPLAIN)).json()["usage"]
        (told,) = usage["octavo"]["prefix_cache"]
        evicted = [run for run in told["blocks"] if run["found"] == "evicted"]
        assert evicted and sum(run["count"] for run in told["blocks"]) == 4
        assert evicted[0]["evicted"]["request_id"] == f"{taker}-0"
        assert evicted[0]["evicted"]["steps_before"] >= 1 and evicted[0]["evicted"]["seconds_before"] >= 0
        assert told["possible_cached_tokens"]["without_evictions"] == 64
        blocks = server.metric("prefix_cache_blocks_total")
        missed = server.metric("prefix_cache_misses_total")
        assert blocks == server.metric("prefix_cache_block_hits_total") + missed == 4 + 6 + 4


def test_the_state_has_the_counts(server: ServerProcess) -> None:
    server.post(COMPLETIONS, body([33 + number % 60 for number in range(40)]))
    lookups = server.http.get("/state").json()["lookups"]
    assert lookups["blocks"] == lookups["hits"] + sum(lookups["misses"].values()) > 0
    assert lookups["tokens_hit"] <= lookups["tokens_hit_ever"] <= lookups["tokens_hit_ever_by_token"]
