"""Tool calls: which format the model's chat template speaks, how an answer is forced into it, and how it is read back.

Two formats are known, told apart by the marks in the template:

    hermes   <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>, any number of them   (Qwen, Hermes)
    llama3   {"name": ..., "parameters": {...}} as the whole answer                             (Llama 3.1 and later)
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.server.constraints import ConstraintSource
from octavo.server.errors import bad_request
from octavo.server.protocol import ChatRequest

ToolFormat = Literal["hermes", "llama3"]
OPEN, CLOSE = "<tool_call>", "</tool_call>"


def tool_format(template: str | None) -> ToolFormat | None:
    """The format that a chat template speaks; None where it has no tools or one that is not known."""
    if template is None or "tools" not in template:
        return None
    if OPEN in template:
        return "hermes"
    return "llama3" if '"parameters"' in template and '"name"' in template else None


def tools_wanted(body: ChatRequest) -> bool:
    """Whether the answer is to be searched for calls."""
    return bool(body.tools) and body.tool_choice != "none"


def tool_constraint(body: ChatRequest, form: ToolFormat | None) -> ConstraintSource | None:
    """The grammar that ``tool_choice`` required or named stands for. Raises ApiError (400) for a wrong field."""
    choice = body.tool_choice
    named: str | None = None
    if isinstance(choice, dict):
        function = choice.get("function")
        named = function.get("name") if isinstance(function, dict) else None
        if not isinstance(named, str):
            raise bad_request("tool_choice names no function", "tool_choice")
    elif choice not in (None, "none", "auto", "required"):
        raise bad_request(f"tool_choice {choice!r} is not none, auto, required or a function", "tool_choice")
    functions = [_function(tool) for tool in body.tools or ()]
    if choice in (None, "none", "auto"):
        return None
    if not functions:
        raise bad_request("tool_choice needs tools", "tool_choice")
    if named is not None:
        functions = [function for function in functions if function["name"] == named]
        if not functions:
            raise bad_request(f"tool_choice names {named!r}, which is not among the tools", "tool_choice")
    key = "parameters" if form == "llama3" else "arguments"
    calls = [_call_schema(function, key) for function in functions]
    schema = json.dumps(calls[0] if len(calls) == 1 else {"anyOf": calls})
    if form == "llama3":
        return ConstraintSource("json_schema", json.loads(schema), "tool_choice")
    once = named is not None or body.parallel_tool_calls is False
    repeat = "" if once else ' ("\\n" call)*'
    lark = f'start: call{repeat}\ncall: "{OPEN}\\n" body "\\n{CLOSE}"\nbody: %json {schema}\n'
    return ConstraintSource("lark", lark, "tool_choice")


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if (
        tool.get("type") != "function"
        or not isinstance(function, dict)
        or not isinstance(function.get("name"), str)
    ):
        raise bad_request('every tool must be {"type": "function", "function": {"name": ...}}', "tools")
    return function


def _call_schema(function: dict[str, Any], key: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            key: function.get("parameters") or {"type": "object"},
        },
        "required": ["name", key],
        "additionalProperties": False,
    }


@dataclass(slots=True)
class Parsed:
    """What a piece of an answer turned out to be."""

    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Complete calls, in OpenAI's shape, with their index."""


class ToolCallReader:
    """Splits an answer that comes in pieces into text and tool calls.

    A call is told when it is complete (its JSON is whole); text that may be the start of one is held back until then.
    What looked like a call and is no valid one is text after all.
    """

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._held = ""
        self._count = 0
        self._plain = False
        """A llama3 answer that does not begin like a call is text to its end."""

    @property
    def num_calls(self) -> int:
        return self._count

    def push(self, text: str, *, last: bool) -> Parsed:
        """``last``: no text follows."""
        parsed = Parsed()
        self._held += text
        if self._form == "hermes":
            self._read_hermes(parsed, last)
        else:
            self._read_llama3(parsed, last)
        return parsed

    def _read_hermes(self, parsed: Parsed, last: bool) -> None:
        while True:
            start = self._held.find(OPEN)
            if start < 0:
                keep = 0 if last else _overlap(self._held, OPEN)
                self._tell(parsed, self._held[: len(self._held) - keep])
                self._held = self._held[len(self._held) - keep :]
                return
            self._tell(parsed, self._held[:start])
            self._held = self._held[start:]
            end = self._held.find(CLOSE)
            if end < 0 and not last:
                return
            stop = len(self._held) if end < 0 else end + len(CLOSE)
            inner = self._held[len(OPEN) : stop if end < 0 else end]
            call = self._call(inner, "arguments")
            if call is None:
                parsed.content += self._held[:stop]
            else:
                parsed.calls.append(call)
            self._held = self._held[stop:]

    def _read_llama3(self, parsed: Parsed, last: bool) -> None:
        stripped = self._held.removeprefix("<|python_tag|>").lstrip()
        if self._plain or (
            stripped and not stripped.startswith("{") and not "<|python_tag|>".startswith(stripped)
        ):
            self._plain = True
            parsed.content, self._held = self._held, ""
        elif last and self._held:
            call = self._call(stripped, "parameters")
            if call is None:
                parsed.content = self._held
            else:
                parsed.calls.append(call)
            self._held = ""

    def _tell(self, parsed: Parsed, text: str) -> None:
        """Text between calls that is only white space belongs to the format."""
        if text.strip() or (text and not self._count and not parsed.calls):
            parsed.content += text

    def _call(self, text: str, key: str) -> dict[str, Any] | None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments = value.get(key, value.get("arguments", {}))
        call = {
            "index": self._count,
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {
                "name": value["name"],
                "arguments": arguments
                if isinstance(arguments, str)
                else json.dumps(arguments, ensure_ascii=False),
            },
        }
        self._count += 1
        return call


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` that ``mark`` begins with."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
