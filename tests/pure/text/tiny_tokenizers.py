"""Tokenizers of a few hundred tokens, as the metadata of a GGUF file would describe them."""

from __future__ import annotations

from typing import Any

from octavo.text.tokenizer import Tokenizer, tokenizer_from_gguf

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTE_CHARACTERS = [chr(byte) if byte in PRINTABLE else chr(0x100 + OTHERS.index(byte)) for byte in range(256)]
"""The character that stands for each byte in a byte-level vocabulary."""
MERGES = ["h e", "l l", "ll o", "he llo", "Ġ w", "Ã ©"]
BYTE_LEVEL_SPECIAL = ["<|begin|>", "<|im_end|>"]

SPM_PIECES = {
    "▁": -1.0, "h": -2.0, "e": -3.0, "l": -4.0, "o": -5.0, "w": -6.0, "r": -7.0, "d": -8.0, "é": -9.0,
    "he": 0.9, "ll": 0.8, "llo": 0.7, "hello": 0.6, "▁hello": 0.5, "▁w": 0.4, "or": 0.3, "ld": 0.2, "▁▁": 0.1,
}  # fmt: skip
"""Piece -> score: of two possible merges, the one that yields the higher score is made."""


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """Tokens: the 256 bytes, the merges' products, two control tokens, one user-defined token."""
    tokens = [
        *BYTE_CHARACTERS,
        *(merge.replace(" ", "") for merge in MERGES),
        *BYTE_LEVEL_SPECIAL,
        "<tool call>",
    ]
    begin = 256 + len(MERGES)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * begin + [3, 3, 4],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": begin,
        "tokenizer.ggml.eos_token_id": begin + 1,
        **changes,
    }


def spm_metadata(**changes: Any) -> dict[str, Any]:
    """Tokens: <unk>, <s>, </s>, the 256 byte pieces, then SPM_PIECES."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *SPM_PIECES]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(SPM_PIECES),
        "tokenizer.ggml.scores": [0.0] * 259 + list(SPM_PIECES.values()),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **changes,
    }


def byte_level(**changes: Any) -> Tokenizer:
    return tokenizer_from_gguf(byte_level_metadata(**changes))


def spm(**changes: Any) -> Tokenizer:
    return tokenizer_from_gguf(spm_metadata(**changes))
