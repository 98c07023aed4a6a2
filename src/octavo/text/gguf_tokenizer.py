"""Rebuilds a tokenizer from the metadata of a GGUF file: byte-level BPE (``gpt2``) or SentencePiece BPE (``llama``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from octavo.core.errors import ModelError
from octavo.text.pre_tokenizers import PreTokenizer, pre_tokenizer_named

_TURN_ENDERS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>")
"""Control tokens that end an answer even where the file names only another end token."""


class TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer that ``metadata`` describes. Raises ModelError for a missing key or an unknown kind."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _list(metadata, "tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"the file has {len(tokens):,} tokens but {len(types):,} token types", param="model")
    if kind == "gpt2":
        recipe = pre_tokenizer_named(metadata.get("tokenizer.ggml.pre", "default"))
        backend = _byte_level(metadata, tokens, recipe)
        adds_bos = recipe.adds_bos
    elif kind == "llama":
        backend = _sentencepiece(metadata, tokens, types)
        adds_bos = True
    else:
        raise ModelError(f"tokenizer kind {kind!r} is not supported (gpt2 and llama are)", param="model")
    _add_tokens(backend, tokens, types)
    _add_template(backend, metadata, tokens, adds_bos)
    return backend


def gguf_eos_token_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that end an answer, the model's own end token first."""
    tokens, types = metadata.get("tokenizer.ggml.tokens", []), metadata.get("tokenizer.ggml.token_type", [])
    names = ("eos", "eot", "eom")
    found = [metadata[key] for name in names if (key := f"tokenizer.ggml.{name}_token_id") in metadata]
    found += [
        index
        for index, kind in enumerate(types)
        if kind == TokenType.CONTROL and index < len(tokens) and tokens[index] in _TURN_ENDERS
    ]
    return tuple(dict.fromkeys(int(index) for index in found if 0 <= index < len(tokens)))


def gguf_bos_token_id(metadata: Mapping[str, Any]) -> int | None:
    index = metadata.get("tokenizer.ggml.bos_token_id")
    return (
        index if isinstance(index, int) and index < len(metadata.get("tokenizer.ggml.tokens", [])) else None
    )


def _list(metadata: Mapping[str, Any], key: str) -> list[Any]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value:
        raise ModelError(f"the GGUF file has no {key}: it carries no usable tokenizer", param="model")
    return value


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for index, token in enumerate(tokens):
        ids.setdefault(token, index)
    return ids


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], recipe: PreTokenizer) -> tokenizers.Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in _list(metadata, "tokenizer.ggml.merges")]
    for index, merge in enumerate(merges):
        if len(merge) != 2:
            raise ModelError(
                f"merge {index:,} is {merge[0]!r}, not two tokens with a space between", param="model"
            )
    model = _model(vocab=_ids(tokens), merges=merges, ignore_merges=recipe.ignore_merges)
    backend = tokenizers.Tokenizer(model)
    if (normalizer := recipe.build_normalizer()) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = recipe.build()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> tokenizers.Tokenizer:
    """Merges are not in the file; a piece's score is the priority of every merge that yields it."""
    scores = _list(metadata, "tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelError(f"the file has {len(tokens):,} tokens but {len(scores):,} scores", param="model")
    ids = _ids(tokens)
    merges = _merges_from_scores(ids, scores, types)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    model = _model(
        vocab=ids,
        merges=merges,
        unk_token=tokens[unknown] if 0 <= unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    decoding: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("▁"))
        decoding.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(decoding)
    return backend


def _merges_from_scores(
    ids: Mapping[str, int], scores: list[float], types: list[int]
) -> list[tuple[str, str]]:
    """Pairs (left, right), highest priority first. The byte and control pieces are never the product of a merge."""
    mergeable = [
        (-scores[index], index, token)
        for token, index in ids.items()
        if len(token) > 1 and types[index] in (TokenType.NORMAL, TokenType.USER_DEFINED)
    ]
    mergeable.sort()
    return [
        (token[:cut], token[cut:])
        for _, _, token in mergeable
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]


def _model(**settings: Any) -> models.BPE:
    try:
        return models.BPE(**settings)
    except Exception as error:  # the package raises the bare class
        raise ModelError(
            f"the model's vocabulary and merges do not fit together: {error}", param="model"
        ) from error


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Tokens that are matched in the text before anything else; control tokens are also left out of answers."""
    special = [
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN) and token
    ]
    plain = [
        AddedToken(token, special=False, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind == TokenType.USER_DEFINED and token
    ]
    backend.add_special_tokens(special)
    backend.add_tokens(plain)


def _add_template(
    backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], tokens: list[str], adds_bos: bool
) -> None:
    """The begin and end tokens that ``encode(add_special_tokens=True)`` puts around a text."""
    around: dict[str, int] = {}
    for name, default in (("bos", adds_bos), ("eos", False)):
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if metadata.get(f"tokenizer.ggml.add_{name}_token", default) and isinstance(index, int):
            if not 0 <= index < len(tokens):
                raise ModelError(
                    f"{name}_token_id {index} is outside the vocabulary of {len(tokens):,}", param="model"
                )
            around[name] = index
    if not around:
        return
    single = [*(["bos"] if "bos" in around else []), "$A", *(["eos"] if "eos" in around else [])]
    special = [{"id": name, "ids": [index], "tokens": [tokens[index]]} for name, index in around.items()]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
