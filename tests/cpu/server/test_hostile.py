"""Hostile schemas, patterns, grammars and messages: each becomes a request or a 400, in a stated time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hostile_requests
from octavo.core.errors import OctavoError
from octavo.llm.build import build_session
from octavo.llm.options import EngineOptions
from octavo.server.errors import ApiError
from octavo.server.prepare import Job, Preparer
from octavo.server.protocol import ChatRequest, decode
from octavo.server.settings import ServerOptions
from server_process import ServerProcess

SECONDS_MAX = 15.0
"""What docs/server.md promises for a constraint that is wrong or too large."""
EXAMPLES = int(os.environ.get("OCTAVO_HOSTILE_EXAMPLES", "150"))
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
fuzz_few = settings(fuzz, max_examples=max(EXAMPLES // 3, 1))


@pytest.fixture(scope="module")
def preparer(model: str) -> Preparer:
    return Preparer(build_session(EngineOptions(model, num_blocks=400)), ServerOptions())


@pytest.fixture(scope="module")
def worker() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def prepared(preparer: Preparer, worker: ThreadPoolExecutor, body: dict[str, Any]) -> Job | None:
    """The job, or None where it was refused. Anything else fails, a time-out too."""

    def prepare() -> Job | None:
        try:
            request, _ = decode(json.dumps(body).encode(), ChatRequest)
            return preparer.chat(request)
        except ApiError as error:
            assert error.status == 400
            return None
        except OctavoError:
            return None

    return worker.submit(prepare).result(SECONDS_MAX)


@fuzz
@given(fields=hostile_requests.formats)
def test_a_hostile_constraint_is_compiled_or_refused(
    preparer: Preparer, worker: ThreadPoolExecutor, fields: dict[str, Any]
) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, **fields}
    job = prepared(preparer, worker, body)
    if job is not None:
        (request,) = job.requests
        assert request.constraint is not None


@fuzz
@given(body=hostile_requests.conversations)
def test_hostile_messages_are_rendered_or_refused(
    preparer: Preparer, worker: ThreadPoolExecutor, body: dict[str, Any]
) -> None:
    job = prepared(preparer, worker, {**body, "max_tokens": 2})
    if job is not None:
        (request,) = job.requests
        assert len(request.prompt_token_ids) > 0


@fuzz_few
@given(body=st.one_of(hostile_requests.formats, hostile_requests.conversations), stream=st.booleans())
def test_a_server_answers_them_and_the_next_one(
    server: ServerProcess, body: dict[str, Any], stream: bool
) -> None:
    sent = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "stream": stream, **body}
    began = time.monotonic()
    response = server.http.post(
        "/v1/chat/completions", content=json.dumps(sent).encode(), timeout=SECONDS_MAX + 5
    )
    assert response.status_code in (200, 400, 413), response.text
    assert time.monotonic() - began < SECONDS_MAX + 2
    assert server.http.get("/health", timeout=2).status_code == 200
