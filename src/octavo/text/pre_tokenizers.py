"""How text is cut into pieces before byte-level BPE merges them, by the name a GGUF file gives it.

Each pattern is the published one of its model family; a piece is never merged with its neighbour, so a wrong
pattern yields wrong tokens silently. That is why an unknown name is an error, not a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from octavo.core.errors import ModelError

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One family's recipe."""

    pattern: str
    """Oniguruma regular expression; each match is a piece."""
    split_digits: bool = False
    """Whether each digit is a piece of its own before ``pattern`` is applied."""
    ignore_merges: bool = False
    """Whether a piece that is in the vocabulary is taken whole, without looking at the merges."""
    normalize_nfc: bool = False
    """Whether the text is brought to Unicode's composed form first."""
    adds_bos: bool = False
    """Whether a begin-of-text token is put first where the file does not say."""

    def build(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.split_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)

    def build_normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.normalize_nfc else None


_GPT2 = PreTokenizer(GPT2)
_SMOLLM = PreTokenizer(GPT2, split_digits=True)
_LLAMA3 = PreTokenizer(LLAMA3, ignore_merges=True, adds_bos=True)
_QWEN2 = PreTokenizer(QWEN2, normalize_nfc=True)
_TEKKEN = PreTokenizer(TEKKEN, ignore_merges=True, adds_bos=True)

PRE_TOKENIZERS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _SMOLLM,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "smaug-bpe": PreTokenizer(LLAMA3),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "tekken": _TEKKEN,
}
"""Value of ``tokenizer.ggml.pre`` -> recipe."""


def pre_tokenizer_named(name: str) -> PreTokenizer:
    """Raises ModelError, naming ``name``, where we do not know the pattern."""
    if name not in PRE_TOKENIZERS:
        raise ModelError(
            f"the model's pre-tokenizer {name!r} is not supported (known: {', '.join(sorted(PRE_TOKENIZERS))}); "
            "a Hugging Face folder of the same model carries its own pattern in tokenizer.json",
            param="model",
        )
    return PRE_TOKENIZERS[name]
