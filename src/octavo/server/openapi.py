"""``GET /openapi.json``: the API described by the very types that requests are decoded with."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo import __version__
from octavo.server.errors import TYPES
from octavo.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

OBJECT: dict[str, Any] = {"type": "object"}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"enum": sorted(set(TYPES.values()))},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}
GENERATION = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "choices": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "object", "required": ["index", "finish_reason"]},
        },
        "usage": {
            "type": "object",
            "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"],
        },
    },
}
REQUEST_ID = {"name": "request_id", "in": "path", "required": True, "schema": {"type": "string"}}
BODIES = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation(
    summary: str,
    answer: dict[str, Any],
    *,
    body: type[msgspec.Struct] | None = None,
    errors: tuple[int, ...] = (),
) -> dict[str, Any]:
    """``answer``: media types of the 200; ``errors``: the statuses that this route has beyond the common ones."""
    responses: dict[str, Any] = {"200": {"description": "Done.", "content": answer}}
    for status in (*errors, 401, 405):
        responses[str(status)] = {
            "description": TYPES[status],
            "content": _json({"$ref": "#/components/schemas/Error"}),
        }
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if body is not None:
        reference = {"$ref": f"#/components/schemas/{body.__name__}"}
        operation["requestBody"] = {"required": True, "content": _json(reference)}
    return operation


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    _, components = msgspec.json.schema_components(BODIES, ref_template="#/components/schemas/{name}")
    refusals = (400, 404, 413)
    generating = (*refusals, 500, 503, 504)
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    text = {"text/plain": {"schema": {"type": "string"}}}
    generation = _json(GENERATION) | stream
    paths = {
        "/v1/chat/completions": {
            "post": _operation("Answer a conversation.", generation, body=ChatRequest, errors=generating)
        },
        "/v1/completions": {
            "post": _operation("Complete prompts.", generation, body=CompletionRequest, errors=generating)
        },
        "/v1/models": {"get": _operation("The model.", _json(OBJECT))},
        "/tokenize": {"post": _operation("Token ids.", _json(OBJECT), body=TokenizeRequest, errors=refusals)},
        "/detokenize": {
            "post": _operation("Text of token ids.", _json(OBJECT), body=DetokenizeRequest, errors=refusals)
        },
        "/version": {"get": _operation("The version.", _json(OBJECT))},
        "/load": {"get": _operation("Requests being answered.", _json(OBJECT))},
        "/state": {"get": _operation("Pool and requests.", _json(OBJECT), errors=(503,))},
        "/metrics": {"get": _operation("Prometheus.", text)},
        "/debug/prefix/{request_id}": {
            "get": _operation("Why a prompt was not found.", _json(OBJECT), errors=(404, 503))
            | {"parameters": [REQUEST_ID]}
        },
        "/reset_prefix_cache": {"post": _operation("Forget cached blocks.", _json(OBJECT), errors=(503,))},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__},
        "paths": paths,
        "components": {"schemas": {**components, "Error": ERROR}},
    }
