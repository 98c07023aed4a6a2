"""Token ids and texts against transformers, and what a tokenizer must refuse."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import SPM_PIECES, byte_level, byte_level_metadata, spm, spm_metadata

from octavo.core.errors import ModelError, RequestError
from octavo.text.pre_tokenizers import PRE_TOKENIZERS
from octavo.text.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_gguf

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden.json").read_text(encoding="utf-8"))
BYTE_LEVEL, SPM = byte_level(), spm()
STRINGS = GOLDEN["smollm2"]["strings"]


@pytest.fixture(scope="module")
def smollm2(embedded_model: Path) -> Tokenizer:
    return load_tokenizer(embedded_model)


@pytest.mark.model
@pytest.mark.parametrize("case", STRINGS, ids=[repr(case["text"])[:20] for case in STRINGS])
def test_smollm2_equals_transformers(smollm2: Tokenizer, case: dict[str, Any]) -> None:
    assert smollm2.encode(case["text"], add_special_tokens=False) == case["ids"]
    assert smollm2.decode(case["ids"]) == case["decoded"]


@pytest.mark.model
@pytest.mark.parametrize("case", GOLDEN["smollm2"]["chats"])
def test_smollm2_chat_equals_transformers(smollm2: Tokenizer, case: dict[str, Any]) -> None:
    rendered = smollm2.apply_chat_template(
        case["messages"], add_generation_prompt=case["add_generation_prompt"]
    )
    assert rendered == case["text"]


@pytest.mark.model
def test_smollm2_special_tokens(smollm2: Tokenizer) -> None:
    assert (smollm2.bos_token_id, smollm2.eos_token_ids, smollm2.vocab_size) == (1, (2,), 49152)
    assert smollm2.encode("hi") == smollm2.encode("hi", add_special_tokens=False)
    assert smollm2.decode([1, 2]) == ""
    assert smollm2.decode([1, 2], skip_special_tokens=False) == "<|im_start|><|im_end|>"


@pytest.mark.model
def test_smollm2_loads_quickly(embedded_model: Path) -> None:
    """0.2 s on an idle core; the gguf package's reader alone takes 3 s. Processor time: neighbours do not count."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        load_tokenizer(embedded_model)
        best = min(best, time.process_time() - start)
    assert best < 1.0


@pytest.mark.parametrize("name", GOLDEN["pieces"])
def test_pieces_equal_the_published_patterns(name: str) -> None:
    steps = PRE_TOKENIZERS[name].build()
    found = [[piece for piece, _ in steps.pre_tokenize_str(case["text"])] for case in STRINGS]
    assert found == GOLDEN["pieces"][name]


def test_smollm_takes_each_digit_alone() -> None:
    pieces = [piece for piece, _ in PRE_TOKENIZERS["smollm"].build().pre_tokenize_str("x 12½ y")]
    assert pieces == ["x", "Ġ", "1", "2", "Â½", "Ġy"]


def test_byte_level_merges() -> None:
    tokenizer = byte_level()
    names = [tokenizer.token_str(index) for index in tokenizer.encode("hello wé<tool call><|im_end|>")]
    assert names == ["hello", " w", "é", "<tool call>", "<|im_end|>"]


def test_qwen2_composes_characters() -> None:
    tokenizer = byte_level(**{"tokenizer.ggml.pre": "qwen2"})
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "é"


def test_llama3_takes_known_pieces_whole() -> None:
    """With ignore_merges a word of the vocabulary needs no merges that lead to it."""
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.tokens"][255 + 4] = "xyz"  # the product of "he llo" is gone, "xyz" has no merge
    metadata["tokenizer.ggml.merges"] = ["h e", "l l", "ll o"]
    whole = tokenizer_from_gguf({**metadata, "tokenizer.ggml.pre": "llama-bpe"})
    assert whole.encode("xyz", add_special_tokens=False) == [259]
    assert len(tokenizer_from_gguf(metadata).encode("xyz", add_special_tokens=False)) == 3


@pytest.mark.parametrize(
    ("changes", "begins", "ends"),
    [
        ({}, False, False),
        ({"tokenizer.ggml.pre": "llama-bpe"}, True, False),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False, False),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}, True, True),
    ],
)
def test_begin_and_end_tokens(changes: dict[str, Any], begins: bool, ends: bool) -> None:
    tokenizer = byte_level(**changes)
    ids = tokenizer.encode("he")
    assert ids[: -1 if ends else None][begins:] == tokenizer.encode("he", add_special_tokens=False)
    assert (ids[0] == tokenizer.bos_token_id, ids[-1] == tokenizer.eos_token_id) == (begins, ends)


def test_every_end_token_is_found() -> None:
    metadata = byte_level_metadata(**{"tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.eot_token_id": 7})
    im_end = metadata["tokenizer.ggml.tokens"].index("<|im_end|>")
    assert tokenizer_from_gguf(metadata).eos_token_ids == (5, 7, im_end)


ids_and_beyond = st.lists(st.integers(-2, 300), max_size=30)


@given(ids_and_beyond, st.booleans())
def test_decode_equals_the_package_byte_level(ids: list[int], skip: bool) -> None:
    tokenizer = BYTE_LEVEL
    known = [index for index in ids if index >= 0]
    assert tokenizer.decode(ids, skip) == tokenizer._backend.decode(known, skip_special_tokens=skip)


@given(st.text(), st.booleans())
def test_text_survives(text: str, sentencepiece: bool) -> None:
    tokenizer = SPM if sentencepiece else BYTE_LEVEL
    text = text.replace("▁", "_")  # SentencePiece cannot tell it from a space
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


def merged_by_score(text: str) -> list[str]:
    """SentencePiece's rule, written plainly: merge the neighbours that yield the highest score, leftmost first."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        found = [
            (SPM_PIECES[left + right], -place)
            for place, (left, right) in enumerate(itertools.pairwise(parts))
            if left + right in SPM_PIECES
        ]
        if not found:
            return parts
        place = -max(found)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


@given(st.text(alphabet="hello wrdé", min_size=1, max_size=24))
def test_sentencepiece_merges_by_score(text: str) -> None:
    tokenizer = SPM
    tokens = spm_metadata()["tokenizer.ggml.tokens"]
    assert [tokens[i] for i in tokenizer.encode(text, add_special_tokens=False)] == merged_by_score(text)


def test_sentencepiece_falls_back_to_bytes() -> None:
    tokenizer = spm()
    assert tokenizer.encode("ю") == [1, tokenizer.encode("h")[1], 3 + 0xD1, 3 + 0x8E]
    assert tokenizer.token_bytes(3 + 0xD1) == b"\xd1"


def test_text_that_is_not_unicode() -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        byte_level().encode("\ud800")


def test_no_chat_template() -> None:
    with pytest.raises(RequestError, match=r"no chat template.*--raw"):
        byte_level().apply_chat_template([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.pre": "klingon"}, "'klingon' is not supported"),
        ({"tokenizer.ggml.model": "t5"}, "'t5' is not supported"),
        ({"tokenizer.ggml.tokens": []}, "no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": None}, "no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["a qq"]}, "do not fit together"),
        ({"tokenizer.ggml.merges": ["justone"]}, "merge 0 is 'justone'"),
        ({"tokenizer.ggml.token_type": [1]}, "265 tokens but 1 token types"),
        ({"tokenizer.ggml.bos_token_id": 999, "tokenizer.ggml.add_bos_token": True}, "999 is outside"),
    ],
)
def test_unusable_metadata_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        byte_level(**changes)


def hf_folder(folder: Path, **config: Any) -> Path:
    byte_level(**{"tokenizer.ggml.add_bos_token": True})._backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_hugging_face_folder(tmp_path: Path) -> None:
    hf_folder(
        tmp_path, bos_token="<|begin|>", eos_token={"content": "<|im_end|>"}, chat_template="{{ bos_token }}C"
    )
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [263, 7]}')
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (262, (263, 7))
    assert tokenizer.encode("hello") == [262, 259]
    assert tokenizer.apply_chat_template([]) == "<|begin|>C"


def test_a_template_file_wins(tmp_path: Path) -> None:
    hf_folder(
        tmp_path, chat_template=[{"name": "default", "template": "A"}, {"name": "rag", "template": "R"}]
    )
    assert load_tokenizer(tmp_path).apply_chat_template([]) == "A"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "B"}')
    assert load_tokenizer(tmp_path).apply_chat_template([]) == "B"
    (tmp_path / "chat_template.jinja").write_text("C")
    assert load_tokenizer(tmp_path).apply_chat_template([]) == "C"


def test_folder_without_a_usable_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(ModelError, match="cannot be read"):
        load_tokenizer(tmp_path)
    hf_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds a list"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        load_tokenizer(tmp_path / "absent.gguf")
