"""Who finds whose cached blocks. What a tenant could time is the work of its request, and that is what is compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from server_process import ServerProcess, serving

COMPLETIONS = "/v1/completions"
SECRET = [7 + number % 90 for number in range(200)]
"""A prompt of tenant a. Block size 16: 12 full blocks are looked up."""
UNSEEN = [8 + number % 91 for number in range(200)]


class Tenants:
    """A server with two keys."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    def send(self, key: str, prompt: list[int], **fields: Any) -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": 2, "ignore_eos": True, "temperature": 0, **fields}
        headers = {"authorization": f"Bearer {key}"}
        return self.server.http.post(COMPLETIONS, json=body, headers=headers)

    def cached(self, key: str, prompt: list[int], **fields: Any) -> int:
        usage = self.send(key, prompt, **fields).json()["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    def work(self, key: str, prompt: list[int]) -> tuple[float, float, int]:
        """(tokens that went through the model for this request, steps, cached tokens)."""
        names = ("iteration_tokens_total_sum", "iteration_tokens_total_count")
        self.server.wait_until_idle()
        before = [self.server.metric(name) for name in names]
        cached = self.cached(key, prompt)
        self.server.wait_until_idle()
        tokens, steps = (self.server.metric(name) - was for name, was in zip(names, before, strict=True))
        return tokens, steps, cached

    def explained(self, key: str, request_id: str) -> httpx.Response:
        return self.server.http.get(f"/debug/prefix/{request_id}", headers={"authorization": f"Bearer {key}"})


def tenants(model: str, isolation: str) -> Iterator[Tenants]:
    keys = ("--api-key", "a", "--api-key", "b", "--cache-isolation", isolation)
    with serving(model, "--num-gpu-blocks-override", "200", *keys) as server:
        yield Tenants(server)


@pytest.fixture(scope="module")
def apart(model: str) -> Iterator[Tenants]:
    yield from tenants(model, "api-key")


@pytest.fixture(scope="module")
def together(model: str) -> Iterator[Tenants]:
    yield from tenants(model, "none")


def test_without_isolation_a_prompt_is_found_whoever_sent_it(together: Tenants) -> None:
    unseen = together.work("b", UNSEEN)
    first = together.work("a", SECRET)
    guess = together.work("b", SECRET)
    assert first == unseen == (201, 2, 0)
    assert guess == (201 - 192, 2, 192), "this is what isolation is for"


def test_with_isolation_a_guess_costs_what_an_unseen_prompt_costs(apart: Tenants) -> None:
    unseen = apart.work("b", UNSEEN)
    first = apart.work("a", SECRET)
    guess = apart.work("b", SECRET)
    assert guess == first == unseen == (201, 2, 0)
    assert apart.work("a", SECRET) == (9, 2, 192), "one's own prompts are found as ever"
    assert apart.work("b", SECRET) == (9, 2, 192)


def test_a_salt_divides_a_tenant_and_opens_no_door(apart: Tenants) -> None:
    prompt = [9 + number % 92 for number in range(100)]
    assert apart.cached("a", prompt, cache_salt="x") == 0
    assert apart.cached("a", prompt, cache_salt="x") == 96
    assert apart.cached("a", prompt, cache_salt="y") == apart.cached("a", prompt) == 0
    assert apart.cached("b", prompt, cache_salt="x") == 0, "the same salt under another key"
    assert apart.send("a", prompt, cache_salt="").status_code == 400


def test_explanations_and_metrics_say_nothing_of_others(apart: Tenants) -> None:
    prompt = [10 + number % 93 for number in range(100)]
    apart.send("a", prompt)
    answer = apart.send("b", prompt, octavo={"explain_cache": True}).json()
    (told,) = answer["usage"]["octavo"]["prefix_cache"]
    assert told["blocks"] == [{"first": 0, "count": 6, "found": "never_seen"}]
    assert told["possible_cached_tokens"] == {"without_evictions": 0, "by_token": 0}
    assert apart.server.metric("prefix_cache_misses_total", reason="other_salt") == 0, (
        "a counter that moves would answer the guess"
    )


def test_an_explanation_is_for_whoever_sent_the_request(apart: Tenants) -> None:
    job = apart.send("a", [11] * 40).json()["id"]
    assert apart.explained("a", job).json()["prefix_cache"][0]["prompt_tokens"] == 40
    assert apart.explained("a", f"{job}-0").status_code == 200
    hidden, unknown = apart.explained("b", job), apart.explained("b", "cmpl-0")
    assert hidden.status_code == unknown.status_code == 404
    assert hidden.json()["error"]["message"].replace(job, "X") == unknown.json()["error"]["message"].replace(
        "cmpl-0", "X"
    ), "the answers are alike, so that neither says that the request exists"


def test_without_isolation_a_foreign_salt_is_the_operators_to_know(together: Tenants) -> None:
    prompt = [12 + number % 94 for number in range(100)]
    together.send("a", prompt, cache_salt="theirs")
    answer = together.send("b", prompt, octavo={"explain_cache": True}).json()
    (told,) = answer["usage"]["octavo"]["prefix_cache"]
    assert [run["found"] for run in told["blocks"]] == ["never_seen"], "they salted it not to be found"
    answer = together.send("b", prompt, cache_salt="mine", octavo={"explain_cache": True}).json()
    (told,) = answer["usage"]["octavo"]["prefix_cache"]
    assert [run["found"] for run in told["blocks"]] == ["other_salt"], "this one lies open"
    assert together.server.metric("prefix_cache_misses_total", reason="other_salt") == 12
