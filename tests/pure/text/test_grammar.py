"""Masks from schemas and grammars: exactly the tokens that can follow, and an end where nothing can."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from octavo.core.errors import RequestError
from octavo.text.grammar import MAX_SOURCE_CHARS, GrammarCompiler, Kind
from octavo.text.tokenizer import Tokenizer, load_tokenizer

SECONDS_MAX = 10.0
"""Far above what any compilation takes on a machine with nothing else to do."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_models.write_tokenizer(folder)
    return load_tokenizer(Path(folder))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    # Two columns of padding, as some models have.
    return GrammarCompiler(tokenizer, tokenizer.vocab_size + 2)


def allowed(grammars: GrammarCompiler, kind: Kind, source: Any, before: list[int]) -> set[int]:
    """Tokens that may follow ``before``."""
    mask = grammars.compile(kind, source, param="p").start(np.array(before, np.int32))
    logits = np.zeros(grammars._vocab_size, np.float32)
    mask.apply(logits)
    return set(np.flatnonzero(logits == 0).tolist())


def test_exactly_what_can_follow(grammars: GrammarCompiler, tokenizer: Tokenizer) -> None:
    eos = tokenizer.eos_token_id
    assert {tokenizer.token_str(token) for token in allowed(grammars, "choice", ["the", "a"], [])} == {
        "the", "th", "t", "a",
    }  # fmt: skip
    assert allowed(grammars, "regex", "ab?", [ord("a")]) == {ord("b"), eos}
    assert allowed(grammars, "regex", "ab", [ord("a"), ord("b")]) == {eos}
    assert allowed(grammars, "regex", "ab", [ord("a"), ord("b"), eos]) == {eos}, "nothing follows the end"
    assert allowed(grammars, "json_schema", {"type": "boolean"}, []) == {ord("t"), ord("f")}
    assert ord("{") in allowed(grammars, "json_schema", {"type": "object"}, [])
    assert allowed(grammars, "lark", 'start: "x" start | "y"', [ord("x")]) == {ord("x"), ord("y")}


def test_a_wrong_token_ends_the_request_and_nothing_else(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    assert allowed(grammars, "regex", "ab", [ord("z")]) == {tokenizer.eos_token_id}


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "("),
        ("lark", "start: nowhere"),
        ("lark", ""),
        ("json_schema", {"type": "nonsense"}),
        ("json_schema", {"$ref": "#/nowhere"}),
        ("json_schema", {"$ref": "http://127.0.0.1:1/x"}),
        ("regex", "a" * (MAX_SOURCE_CHARS + 1)),
        ("json_schema", {"allOf": [{"pattern": "^(a+)+$"}] * 1000}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_mistakes_are_told_in_time(grammars: GrammarCompiler, kind: Kind, source: Any) -> None:
    began = time.monotonic()
    with pytest.raises(RequestError) as found:
        grammars.compile(kind, source, param="response_format")
    assert found.value.param == "response_format"
    assert time.monotonic() - began < SECONDS_MAX


KEYWORDS = (
    *(
        "type",
        "properties",
        "items",
        "enum",
        "const",
        "anyOf",
        "allOf",
        "oneOf",
        "not",
        "$ref",
        "pattern",
        "minLength",
    ),
    *(
        "maxLength",
        "minItems",
        "maxItems",
        "required",
        "additionalProperties",
        "minimum",
        "format",
        "prefixItems",
    ),
)
LEAVES = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.sampled_from(
    ["object", "array", "string", "integer", "#", "#/items", "(a|b)*", "[a-z]{1,200}", "date", ""]
)  # fmt: skip
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150)
@given(schema=SCHEMAS)
def test_any_schema_is_a_mask_or_a_mistake_in_time(grammars: GrammarCompiler, schema: Any) -> None:
    began = time.monotonic()
    try:
        constraint = grammars.compile("json_schema", schema, param="p")
    except RequestError as error:
        assert error.param == "p"
    else:
        mask = constraint.start(np.zeros(0, np.int32))
        for _ in range(20):
            logits = np.zeros(grammars._vocab_size, np.float32)
            mask.apply(logits)
            assert (logits == 0).any(), "something can always follow"
            mask.advance(int(logits.argmax()))
    assert time.monotonic() - began < SECONDS_MAX


@settings(max_examples=100)
@given(text=st.text(alphabet='start:|()*"ab\n~%/[]{}0', max_size=40), kind=st.sampled_from(["regex", "lark"]))
def test_any_text_is_a_grammar_or_a_mistake(grammars: GrammarCompiler, text: str, kind: Kind) -> None:
    try:
        grammars.compile(kind, text, param="p").start(np.zeros(0, np.int32))
    except RequestError as error:
        assert error.param == "p"


@pytest.mark.model
def test_what_exceeds_the_limits_at_its_first_token_is_refused(embedded_model: Path) -> None:
    """It compiles, but no mask over a real vocabulary can be made of it: an answer would be empty without a reason."""
    tokenizer = load_tokenizer(embedded_model)
    with pytest.raises(RequestError, match=r"p is not valid: .*too many expressions"):
        GrammarCompiler(tokenizer, tokenizer.vocab_size).compile("regex", "a{2147483647}", param="p")


def test_a_parser_that_gives_up_at_the_first_token_is_told(grammars: GrammarCompiler) -> None:
    with pytest.raises(RequestError, match=r"p is not valid: Parser Error: Current row has .* max is 2000"):
        grammars.compile("lark", "start: " + " ".join(['"a"?'] * 3000), param="p")
    assert grammars.compile("lark", "start: " + " ".join(['"a"?'] * 300), param="p")


def test_an_answer_whose_constraint_gave_up_is_not_complete(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    def answer(constraint: Any, wanted: str) -> list[int]:
        mask, tokens = constraint.start(np.zeros(0, np.int32)), []
        while not tokens or tokens[-1] != tokenizer.eos_token_id:
            logits = np.zeros(grammars._vocab_size, np.float32)
            for token in map(ord, wanted):
                logits[token] = 1.0
            mask.apply(logits)
            tokens.append(int(logits.argmax()))
            mask.advance(tokens[-1])
        return tokens

    fine = grammars.compile("lark", 'start: "x" "a"? "a"?', param="p")
    whole = answer(fine, "xa")
    assert not fine.gave_up(np.array(whole, np.int32))
    hard = grammars.compile("lark", 'start: "zz" | "xx" ' + " ".join(['"a"?'] * 3000), param="p")
    short = answer(hard, "z")
    assert bytes(short[:-1]) == b"zz"
    assert not hard.gave_up(np.array(short, np.int32))
    cut = answer(hard, "x")
    assert bytes(cut[:-1]) == b"xx"
    assert hard.gave_up(np.array(cut, np.int32))
    assert not hard.gave_up(np.array(short, np.int32)), "the same constraint, another answer"
