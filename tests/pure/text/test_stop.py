"""Stop strings: the pieces in which a text comes make no difference, and nothing of a stop string gets out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level

from octavo.text.stop import StopChecker, TextStream


def one_shot(text: str, stops: list[str]) -> tuple[str, bool]:
    """The rule of StopChecker, character by character: complete first; of those, the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def pushed(pieces: list[str], stops: list[str], include_stop: bool = False) -> tuple[list[str], bool]:
    checker = StopChecker(stops, include_stop)
    emitted = []
    for piece in pieces:
        text, stopped = checker.push(piece)
        emitted.append(text)
        if stopped:
            return emitted, True
    return [*emitted, checker.flush()], False


small_texts = st.lists(st.text(alphabet="ab\n", max_size=4), max_size=12)
small_stops = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=4)


@given(small_texts, small_stops)
def test_pieces_make_no_difference(pieces: list[str], stops: list[str]) -> None:
    emitted, stopped = pushed(pieces, stops)
    assert ("".join(emitted), stopped) == one_shot("".join(pieces), stops)


@given(small_texts, small_stops)
def test_nothing_is_held_longer_than_needed(pieces: list[str], stops: list[str]) -> None:
    """What is held back after a piece is the start of some stop string."""
    checker = StopChecker(stops)
    whole = emitted = ""
    for piece in pieces:
        whole += piece
        text, stopped = checker.push(piece)
        if stopped:
            break
        emitted += text
        held = whole[len(emitted) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_stop_across_pieces() -> None:
    assert pushed(["Hello W", "OR", "LD!"], ["WORLD"]) == (["Hello ", "", ""], True)
    assert pushed(["Hello W", "OR", "LD!"], ["WORLD"], include_stop=True) == (["Hello ", "", "WORLD"], True)
    assert pushed(["Hello W", "OR", "K"], ["WORLD"]) == (["Hello ", "", "WORK", ""], False)


def test_what_was_held_comes_out_at_the_end() -> None:
    assert pushed(["a EN"], ["END"]) == (["a ", "EN"], False)


def test_the_string_complete_first_wins() -> None:
    assert pushed(["xabc", "d"], ["abcd", "bc"]) == (["xa"], True)
    assert pushed(["xabc"], ["bc", "abc"]) == (["x"], True)


def test_nothing_follows_a_stop() -> None:
    checker = StopChecker(["."])
    assert checker.push("a.b") == ("a", True)
    assert checker.push("c") == ("", True)
    assert checker.flush() == ""


def test_text_stream_stops_across_tokens() -> None:
    tokenizer = byte_level()
    stream = TextStream(tokenizer, stop=["o wé"])
    results = [stream.push(index) for index in tokenizer.encode("hello wé more")]
    assert results[:3] == [("hell", False), ("", False), ("", True)]
    assert all(result == ("", True) for result in results[3:])


def test_text_stream_without_stop_gives_the_whole() -> None:
    tokenizer = byte_level()
    stream = TextStream(tokenizer, stop=["xyz"])
    text = "".join(stream.push(index)[0] for index in tokenizer.encode("hello x"))
    assert text + stream.flush()[0] == "hello x"
