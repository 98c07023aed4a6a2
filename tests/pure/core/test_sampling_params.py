"""Every value outside its range is refused by field and value; what callers write is stored as values."""

from __future__ import annotations

import math
from typing import Any

import pytest

from octavo.core.errors import RequestError
from octavo.core.sampling_params import MAX_LOGPROBS, SamplingParams

REFUSED = [
    ("temperature", -0.1), ("temperature", "1"), ("temperature", math.nan), ("temperature", True),
    ("top_k", -2), ("top_k", 1.5), ("top_p", 0), ("top_p", 1.01), ("min_p", -0.01), ("min_p", 2),
    ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("repetition_penalty", 0),
    ("seed", 1.0), ("seed", "7"), ("max_tokens", 0), ("max_tokens", 2.0), ("min_tokens", -1), ("min_tokens", None),
    ("logprobs", -1), ("logprobs", MAX_LOGPROBS + 1), ("logprobs", True), ("prompt_logprobs", MAX_LOGPROBS + 1),
    ("stop", [""]), ("stop", [1]), ("stop", 5), ("stop_token_ids", [-1]), ("stop_token_ids", ["1"]),
    ("stop_token_ids", 3), ("logit_bias", {-1: 0}), ("logit_bias", {"5": 0}), ("logit_bias", {5: 101}),
    ("logit_bias", {5: math.nan}), ("logit_bias", [5]), ("ignore_eos", 1), ("skip_special_tokens", "no"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert caught.value.message.startswith(f"{name} must be ")
    assert repr(value) in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0), ("top_k", -1), ("top_k", 10**9), ("top_p", 1), ("min_p", 1), ("seed", -1),
        ("seed", 2**70), ("logprobs", 0), ("logprobs", MAX_LOGPROBS), ("logit_bias", {0: -100, 7: 100.0}),
    ],
)  # fmt: skip
def test_allowed(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_min_tokens_above_max_tokens() -> None:
    with pytest.raises(RequestError, match=r"at most max_tokens \(3\), got 4"):
        SamplingParams(max_tokens=3, min_tokens=4)


def test_lists_and_a_single_string_are_stored_as_tuples() -> None:
    params = SamplingParams(stop="END", stop_token_ids=[1, 2])  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == (("END",), (1, 2))
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [{"logit_bias": {10: 1}}, {"stop_token_ids": [10]}])
def test_tokens_outside_the_vocabulary(params: dict[str, Any]) -> None:
    SamplingParams(**params).check_vocab_size(11)
    with pytest.raises(RequestError, match="names token 10, but the model's tokens are 0 to 9"):
        SamplingParams(**params).check_vocab_size(10)


def test_greedy() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=0.01).greedy
