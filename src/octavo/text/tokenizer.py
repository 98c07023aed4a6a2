"""``Tokenizer``: text to token ids and back, loaded from a Hugging Face folder or from a GGUF file's metadata.

Decoding does not go through the tokenizers package: each token has fixed *bytes* (``token_bytes``), an answer's
bytes are those of its tokens, and its text is their UTF-8 with U+FFFD for what is broken. So a stream and the whole
can never disagree, and a stream costs the same at each token (see ``detokenizer.py``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from octavo.core.errors import ModelError, RequestError
from octavo.text.chat_template import ChatTemplate
from octavo.text.gguf_header import read_gguf_header
from octavo.text.gguf_tokenizer import build_gguf_tokenizer, gguf_bos_token_id, gguf_eos_token_ids

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """Text to token ids and back. Safe to share between threads once loaded."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        chat_template: str | None,
    ) -> None:
        """``eos_token_ids``: the model's own end token first, then others that end an answer."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(index for index, token in added.items() if token.special)
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        """Tokens; a model's logits may be wider (padding)."""
        self._pieces = _Pieces(backend)
        self._chat_template = None
        if chat_template is not None:
            self._chat_template = ChatTemplate(
                chat_template,
                bos_token=self._token_or_empty(bos_token_id),
                eos_token=self._token_or_empty(self.eos_token_id),
            )

    @property
    def eos_token_id(self) -> int | None:
        return self.eos_token_ids[0] if self.eos_token_ids else None

    @property
    def strips_leading_space(self) -> bool:
        """Whether one leading space of a text is the tokenizer's own (SentencePiece) and not the writer's."""
        return self._pieces.strips_leading_space

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    @property
    def chat_template(self) -> str | None:
        """The template's source."""
        return None if self._chat_template is None else self._chat_template.source

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids. ``add_special_tokens``: begin/end tokens as the model wants them; False for a rendered chat.

        Special tokens spelled out in ``text`` become those tokens. Raises RequestError for text that is not Unicode.
        """
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError(f"the prompt is not valid Unicode text: {error}", param="prompt") from error
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; ids outside the vocabulary have none."""
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        text = b"".join(self.token_bytes(index) for index in ids if index not in skipped).decode(
            "utf-8", "replace"
        )
        return text[1:] if self.strips_leading_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes this token adds to a text; empty outside the vocabulary."""
        return self._pieces[token_id]

    def token_str(self, token_id: int) -> str:
        """The token's text for people (logprobs): U+FFFD where it is part of a character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **kwargs: Any
    ) -> str:
        """The prompt that the model was trained to see for this conversation; encode it without special tokens.

        Raises RequestError where the model has no template or the template refuses the messages.
        """
        if self._chat_template is None:
            raise RequestError(
                "the model has no chat template; send a plain prompt (octavo generate --raw)",
                param="messages",
            )
        return self._chat_template.render(messages, add_generation_prompt=add_generation_prompt, **kwargs)

    def _token_or_empty(self, token_id: int | None) -> str:
        token = None if token_id is None else self._backend.id_to_token(token_id)
        return token or ""


class _Pieces(dict[int, bytes]):
    """Token id -> bytes, filled when first asked: a vocabulary of 150,000 would cost 0.1 s to fill at load."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        super().__init__()
        self._backend = backend
        self._byte_of = _byte_level_alphabet()
        decoder = {} if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        steps = decoder.get("decoders", [decoder])
        kinds = [step.get("type") for step in steps]
        if kinds == ["ByteLevel"]:
            self._byte_level, self.strips_leading_space = True, False
        elif kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
            self._byte_level, self.strips_leading_space = False, "Strip" in kinds
        else:
            raise ModelError(
                f"the tokenizer's decoder {kinds} is not supported (byte-level BPE and SentencePiece BPE are)",
                param="model",
            )

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        piece = b"" if token is None else self._bytes_of(token)
        if token is not None:
            self[token_id] = piece
        return piece

    def _bytes_of(self, token: str) -> bytes:
        if self._byte_level:
            # An added token is spelled as it is; one that has a character outside the alphabet is never mapped.
            try:
                return bytes([self._byte_of[character] for character in token])
            except KeyError:
                return token.encode()
        if match := _BYTE_PIECE.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace("▁", " ").encode()


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte. Printable Latin-1 stands for itself; the other bytes take the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def load_tokenizer(source: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder or of a GGUF file. Raises ModelError where there is none we can run."""
    if source.is_dir():
        return _from_folder(source)
    if not source.exists():
        raise ModelError(f"{source} does not exist", param="model")
    return tokenizer_from_gguf(read_gguf_header(source).metadata)


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """For a caller that has read the header already."""
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        build_gguf_tokenizer(metadata),
        bos_token_id=gguf_bos_token_id(metadata),
        eos_token_ids=gguf_eos_token_ids(metadata),
        chat_template=template if isinstance(template, str) else None,
    )


def _from_folder(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.exists():
        raise ModelError(
            f"{folder} has no tokenizer.json; save the model's fast tokenizer there with save_pretrained",
            param="model",
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises the bare class
        raise ModelError(f"{file} cannot be read: {error}", param="model") from error
    config = _json(folder / "tokenizer_config.json")
    eos = _token_id(backend, config.get("eos_token"))
    ends = [] if eos is None else [eos]
    for name in ("generation_config.json", "config.json"):
        listed = _json(folder / name).get("eos_token_id")
        ends += [
            index for index in (listed if isinstance(listed, list) else [listed]) if isinstance(index, int)
        ]
    return Tokenizer(
        backend,
        bos_token_id=_token_id(backend, config.get("bos_token")),
        eos_token_ids=tuple(dict.fromkeys(ends)),
        chat_template=_folder_chat_template(folder, config),
    )


def _json(file: Path) -> dict[str, Any]:
    """The object in ``file``; empty where there is no such file."""
    if not file.exists():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}", param="model") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} holds a {type(value).__name__}, not an object", param="model")
    return value


def _token_id(backend: tokenizers.Tokenizer, token: Any) -> int | None:
    """``token`` is a string, an object with the string in ``content``, or missing."""
    content = token.get("content") if isinstance(token, dict) else token
    index: int | None = backend.token_to_id(content) if isinstance(content, str) else None
    return index


def _folder_chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """A template in a file of its own wins over the one in the configuration, as in transformers."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = _json(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
