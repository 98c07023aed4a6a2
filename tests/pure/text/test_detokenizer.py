"""A stream of tokens and the whole of them are the same text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level, spm

from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.tokenizer import Tokenizer

TOKENIZERS = {"byte-level": byte_level(), "sentencepiece": spm()}
kinds = st.sampled_from(sorted(TOKENIZERS))
token_ids = st.lists(st.integers(0, 280), max_size=40)


def streamed(tokenizer: Tokenizer, ids: list[int], tail: list[int], skip: bool) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer, tail, skip)
    return "".join([detokenizer.push(index) for index in ids]) + detokenizer.flush()


@given(kinds, token_ids, st.booleans())
def test_stream_equals_whole(kind: str, ids: list[int], skip: bool) -> None:
    tokenizer = TOKENIZERS[kind]
    assert streamed(tokenizer, ids, [], skip) == tokenizer.decode(ids, skip)


@given(kinds, st.text(min_size=1), st.text())
def test_a_prompt_and_its_answer_join(kind: str, prompt: str, answer: str) -> None:
    tokenizer = TOKENIZERS[kind]
    tail = tokenizer.encode(prompt.replace("▁", "_"), add_special_tokens=False)
    ids = tokenizer.encode(answer.replace("▁", "_"), add_special_tokens=False)
    assert tokenizer.decode(tail) + streamed(tokenizer, ids, tail, True) == tokenizer.decode(tail + ids)


@given(kinds, st.text())
def test_no_broken_character_on_the_way(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    text = text.replace("▁", "_").replace("\ufffd", "?")
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.push(index) for index in tokenizer.encode(text)]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == text
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("character", ["é", "€", "👋"])
def test_a_character_comes_with_its_last_byte(character: str) -> None:
    spelled = character.encode()
    tokenizer = TOKENIZERS["sentencepiece"]
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.push(3 + byte) for byte in spelled]
    assert pieces == [""] * (len(spelled) - 1) + [character]


def test_an_unfinished_character_is_flushed_as_such() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZERS["sentencepiece"])
    assert detokenizer.push(3 + 0xF0) == ""
    assert detokenizer.flush() == "\ufffd"


def test_the_answer_finishes_the_prompts_character() -> None:
    first, second = (3 + byte for byte in "é".encode())
    assert streamed(TOKENIZERS["sentencepiece"], [second], [first], True) == "é"


def test_leading_space_is_kept_after_a_prompt_alone() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = tokenizer.encode("hello", add_special_tokens=False)
    assert streamed(tokenizer, ids, [], True) == "hello"
    assert streamed(tokenizer, ids, ids, True) == " hello"
