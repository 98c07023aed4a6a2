"""Where a request may ask for a constrained answer, and as what it reaches the grammar compiler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from octavo.server.errors import bad_request
from octavo.server.protocol import GenerationRequest, ResponseFormat, StructuredOutputs
from octavo.text.grammar import Kind

ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ConstraintSource:
    kind: Kind
    source: Any
    param: str
    """The field that asked for it."""


def constraint_sources(body: GenerationRequest) -> Iterator[ConstraintSource]:
    """Every constraint of these fields; more than one is a contradiction. Raises ApiError (400)."""
    if body.response_format is not None and body.response_format.type != "text":
        yield _response_format(body.response_format)
    if body.structured_outputs is not None:
        yield _structured_outputs(body.structured_outputs)


def _response_format(given: ResponseFormat) -> ConstraintSource:
    param = "response_format"
    if given.type == "json_object":
        return ConstraintSource("json_schema", ANY_OBJECT, param)
    if given.type == "json_schema":
        if given.json_schema is None or given.json_schema.schema is None:
            raise bad_request("response_format of type json_schema needs json_schema.schema", param)
        return ConstraintSource("json_schema", _schema(given.json_schema.schema, param), param)
    if given.type == "grammar":
        if given.grammar is None:
            raise bad_request("response_format of type grammar needs the grammar", param)
        return ConstraintSource("lark", given.grammar, param)
    raise bad_request(
        f"response_format type {given.type!r} is not supported; use text, json_object, json_schema or grammar",
        param,
    )


def _structured_outputs(given: StructuredOutputs) -> ConstraintSource:
    param = "structured_outputs"
    found = []
    if given.json is not None:
        found.append(ConstraintSource("json_schema", _schema(given.json, param), param))
    if given.json_object:
        found.append(ConstraintSource("json_schema", ANY_OBJECT, param))
    if given.regex is not None:
        found.append(ConstraintSource("regex", given.regex, param))
    if given.choice is not None:
        if not given.choice:
            raise bad_request("structured_outputs.choice is empty", param)
        found.append(ConstraintSource("choice", given.choice, param))
    if given.grammar is not None:
        found.append(ConstraintSource("lark", given.grammar, param))
    if len(found) != 1:
        raise bad_request(
            "structured_outputs needs exactly one of json, json_object, regex, choice, grammar", param
        )
    return found[0]


def _schema(given: Any, param: str) -> Any:
    """A JSON schema is an object or a boolean; vLLM's field also takes one that is written as a string."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"{param}: the schema is not JSON: {error}", param) from None
    if not isinstance(given, (dict, bool)):
        raise bad_request(f"{param}: a schema is an object or a boolean", param)
    return given
