"""Chat messages in the shape that chat templates expect."""

from __future__ import annotations

import json
from typing import Any

from octavo.server.errors import bad_request
from octavo.server.protocol import Message


def plain_message(message: Message, place: int) -> dict[str, Any]:
    """A message as a template sees it: text parts joined, arguments of tool calls as objects, no null fields.

    Raises ApiError (400) for content that is no text.
    """
    where = f"messages[{place}]"
    plain: dict[str, Any] = {"role": message.role, "content": _text(message.content, where)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    if message.tool_calls is not None:
        plain["tool_calls"] = [_tool_call(call, where) for call in message.tool_calls]
    elif message.content is None and message.role != "assistant":
        raise bad_request(f"{where}.content is missing", "messages")
    return plain


def _text(content: str | list[dict[str, Any]] | None, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if part.get("type") not in ("text", "input_text") or not isinstance(part.get("text"), str):
            raise bad_request(
                f"{where}.content has a part of type {part.get('type')!r}; this server reads text alone",
                "messages",
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _tool_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request(f"{where}.tool_calls: every call needs function.name", "messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise bad_request(
                f"{where}.tool_calls: the arguments of {function['name']} are not JSON", "messages"
            ) from None
    return {**call, "function": {**function, "arguments": arguments}}


def cut_after(rendered: str, content: str) -> str:
    """The conversation up to the end of its last message, which the answer is to continue. Raises ApiError (400)."""
    wanted = content.rstrip()
    place = rendered.rfind(wanted)
    if not wanted or place < 0:
        raise bad_request(
            "continue_final_message: the last message is not found in the rendered chat", "messages"
        )
    return rendered[: place + len(wanted)]
