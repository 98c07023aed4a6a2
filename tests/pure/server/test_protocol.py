"""Decoding requests: what is taken, what is refused by name, what is ignored."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.errors import ApiError
from octavo.server.protocol import NEUTRAL, ChatRequest, CompletionRequest, decode

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_what_is_not_supported_is_refused_by_name(name: str) -> None:
    with pytest.raises(ApiError, match=name) as found:
        decode(msgspec.json.encode({"prompt": "a", name: "something"}), CompletionRequest)
    assert found.value.param == name
    assert found.value.status == 400


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_null_and_neutral_values_ask_for_nothing(name: str) -> None:
    for value in (None, *NEUTRAL[name]):
        _, unknown = decode(msgspec.json.encode({"prompt": "a", name: value}), CompletionRequest)
        assert unknown == []


def test_unknown_fields_are_told() -> None:
    _, unknown = decode(b'{"prompt": "a", "zzz": 1, "aaa": 2}', CompletionRequest)
    assert unknown == ["aaa", "zzz"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"messages": [{"role": "user", "content": 3}]}', "messages"),
        (b'{"messages": "hi"}', "messages"),
        (b'{"messages": [], "stream_options": {"include_usage": "yes"}}', "stream_options"),
        (b'{"messages": [], "temperature": "hot"}', "temperature"),
        (b"{}", "messages"),
    ],
)
def test_a_wrong_type_is_named_by_its_field(body: bytes, param: str) -> None:
    with pytest.raises(ApiError) as found:
        decode(body, ChatRequest)
    assert found.value.param == param


@given(
    st.dictionaries(st.sampled_from([*ChatRequest.__struct_fields__, *NEUTRAL, "other"]), JSON, max_size=6)
)
def test_any_object_is_a_request_or_a_400(value: dict[str, object]) -> None:
    try:
        request, _ = decode(msgspec.json.encode(value), ChatRequest)
    except ApiError as error:
        assert error.status == 400
    else:
        assert isinstance(request.messages, list)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_request_or_a_400(body: bytes) -> None:
    try:
        decode(body, CompletionRequest)
    except ApiError as error:
        assert error.status == 400
