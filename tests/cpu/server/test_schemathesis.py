"""Random requests made from our own OpenAPI document, right and wrong ones: every answer is one that it describes."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

schemathesis = pytest.importorskip("schemathesis")

from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

from server_process import ServerProcess  # noqa: E402

EXAMPLES = int(os.environ.get("OCTAVO_SCHEMA_EXAMPLES", "25"))
# Excluded: "what the schema allows is accepted". Ranges, vocabularies and contradictions are checked by code alone.
PATHS = (
    *(
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/version",
        "/load",
    ),
    *("/state", "/metrics", "/debug/prefix/{request_id}", "/reset_prefix_cache"),
)
WRONG, RIGHT = schemathesis.GenerationMode.NEGATIVE, schemathesis.GenerationMode.POSITIVE


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_in_the_document(server: ServerProcess, path: str) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    assert set(schema.raw_schema["paths"]) == set(PATHS)
    (method,) = schema[path]
    operation = schema[path][method]
    modes = (RIGHT, WRONG) if operation.body else (RIGHT,)
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

    @settings(
        max_examples=EXAMPLES if operation.body else 2, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=cases)
    def ask(case: Any) -> None:
        body = case.body
        if (
            isinstance(body, dict) and "messages" in body
        ):  # an answer that nothing limits is as long as the context
            body.setdefault("max_tokens", 4)
        if isinstance(body, dict):
            for name in ("max_tokens", "max_completion_tokens"):
                if isinstance(body.get(name), int):
                    body[name] = min(body[name], 8)
        case.call_and_validate(timeout=30, excluded_checks=[positive_data_acceptance])

    ask()
