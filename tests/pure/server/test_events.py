"""Server-sent events: one line each, whatever the text."""

from __future__ import annotations

import json
import sys

from hypothesis import given
from hypothesis import strategies as st

from octavo.server.events import event


def test_no_character_ends_a_line() -> None:
    every = "".join(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))
    ends = "".join(character for character in every if len(f"a{character}b".splitlines()) > 1)
    assert len(ends) > 8
    for text in (ends, ends * 3, every):
        sent = event({"text": text}).decode()
        assert sent.endswith("\n\n")
        (line,) = sent[:-2].splitlines()
        assert json.loads(line.removeprefix("data: ")) == {"text": text}


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    line = event([text]).decode()
    assert json.loads(line.removeprefix("data: ")) == [text]
