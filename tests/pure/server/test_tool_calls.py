"""Reading tool calls out of an answer that comes in pieces, and forcing an answer into one."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.errors import ApiError
from octavo.server.protocol import ChatRequest
from octavo.server.tool_calls import ToolCallReader, ToolFormat, tool_constraint, tool_format

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def read(form: ToolFormat, pieces: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    """All content and all calls, as (name, arguments)."""
    reader = ToolCallReader(form)
    content, calls = "", []
    for number, piece in enumerate(pieces):
        parsed = reader.push(piece, last=number == len(pieces) - 1)
        content += parsed.content
        calls += parsed.calls
    assert [call["index"] for call in calls] == list(range(len(calls)))
    assert len({call["id"] for call in calls}) == len(calls)
    return content, [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        ("hermes", "just text", "just text", []),
        ("hermes", CALL, "", [("f", {"x": 1})]),
        ("hermes", f"Let me see.\n{CALL}\n{CALL}", "Let me see.\n", [("f", {"x": 1})] * 2),
        ("hermes", '<tool_call>{"name": "f"}', "", [("f", {})]),
        ("hermes", "<tool_call>oops</tool_call>", "<tool_call>oops</tool_call>", []),
        ("hermes", "<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", []),
        ("hermes", "a < b <tool", "a < b <tool", []),
        ("hermes", "  ", "  ", []),
        ("llama3", '{"name": "f", "parameters": {"x": 2}}', "", [("f", {"x": 2})]),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", {})]),
        ("llama3", '{"no": "call"}', '{"no": "call"}', []),
        ("llama3", "text {", "text {", []),
    ],
)
@given(data=st.data())
def test_however_the_text_is_cut(
    data: st.DataObject, form: ToolFormat, text: str, content: str, calls: list[tuple[str, Any]]
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    places = [0, *cuts, len(text)]
    pieces = [text[start:stop] for start, stop in itertools.pairwise(places)]
    assert read(form, pieces) == (content, calls)


@given(st.lists(st.text(alphabet='<tool_cal>/{}"x \n', max_size=12), min_size=1, max_size=8))
def test_no_text_is_lost_where_there_is_no_call(pieces: list[str]) -> None:
    content, calls = read("hermes", pieces)
    if not calls:
        assert content == "".join(pieces)


def test_text_is_told_as_soon_as_it_can_be_no_call() -> None:
    reader = ToolCallReader("hermes")
    assert reader.push("hello <tool", last=False).content == "hello "
    assert reader.push("box>", last=False).content == "<toolbox>"


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (None, None),
        ("{{ messages }}", None),
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ('{% if tools %}{"name": x, "parameters": y}{% endif %}', "llama3"),
        ("{% if tools %}some other way{% endif %}", None),
    ],
)
def test_the_template_says_which_format(template: str | None, form: ToolFormat | None) -> None:
    assert tool_format(template) == form


def asked(choice: Any, tools: list[dict[str, Any]] | None = None, **more: Any) -> ChatRequest:
    return ChatRequest(messages=[], tools=[TOOL] if tools is None else tools, tool_choice=choice, **more)


def test_what_is_not_forced_has_no_constraint() -> None:
    for choice in (None, "none", "auto"):
        assert tool_constraint(asked(choice), "hermes") is None


def test_a_forced_call_names_its_function_and_schema() -> None:
    source = tool_constraint(asked("required"), "hermes")
    assert source is not None
    assert source.kind == "lark"
    assert '"const": "f"' in source.source
    assert "*" in source.source.splitlines()[0], "several calls may follow each other"
    once = tool_constraint(asked("required", parallel_tool_calls=False), "hermes")
    assert once is not None
    assert "*" not in once.source.splitlines()[0]
    bare = tool_constraint(asked({"type": "function", "function": {"name": "f"}}), "llama3")
    assert bare is not None
    assert bare.source["required"] == ["name", "parameters"]


@pytest.mark.parametrize(
    ("choice", "tools", "param"),
    [
        ("sometimes", None, "tool_choice"),
        ({"function": {}}, None, "tool_choice"),
        ({"function": {"name": "g"}}, None, "tool_choice"),
        ("required", [], "tool_choice"),
        ("auto", [{"type": "code"}], "tools"),
    ],
)
def test_mistakes_are_named(choice: Any, tools: Any, param: str) -> None:
    with pytest.raises(ApiError) as found:
        tool_constraint(asked(choice, tools), "hermes")
    assert found.value.param == param
