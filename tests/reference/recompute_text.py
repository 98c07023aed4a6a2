"""What transformers makes of text: token ids, decoded text, rendered chats, and the pieces of other families.

    python tests/reference/recompute_text.py --write    # store it in tests/pure/text/golden.json
    python tests/reference/recompute_text.py --check    # recompute and compare; exit 1 on any difference

Needs transformers; ``src`` must be importable.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import Regex, pre_tokenizers
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.integrations.gguf import gguf_tokenizer_mapping
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import reference.native_part  # noqa: F401 - before the loaders
from octavo.execution.embedded import embedded_model_path

GOLDEN = Path(__file__).parents[1] / "pure" / "text" / "golden.json"
TEXTS = [
    "What is the capital of France?",
    "def f(x: int) -> str:\n    return f'{x:>8}'  # pad\n",
    "for(int i=0;i<10;++i){a[i]+=0x1F;}\t\t// tab",
    "naïve café Zürich — “quoted” … ½",
    "日本語のテキストと中文混在、한국어도.",
    "👩‍👩‍👧‍👦 family 🎉🏳️‍🌈 e\u0301",
    "   leading and trailing   ",
    "\n\n\n  \t mixed\r\n whitespace \u00a0nbsp\u2003em",
    "1234567890 3.14159 2024-05-06 1,000,000 ٣٤٥ ②",
    "it's we're I'LL don't CAN'T 'tis",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<|im_start|> spaced <|im_end |> broken <file_sep>x",
    "",
    "a",
    " ",
    "\u0000\u0001\ufffd\ufeff",
    "a" * 48,
    "https://example.org/a_b?c=d&e=%20f#g",
    "SELECT * FROM t WHERE x<>'y';",
    "Ünïcödé ΑΒΓ абв אבג عربى हिन्दी ไทย",
    "\\begin{equation} e^{i\\pi}+1=0 \\end{equation}",
    "CamelCaseIdentifier snake_case_identifier SCREAMING_CASE",
    "e\u0301\u0301𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff",
]
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi\n<b>&amp;'quoted'"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "  Bye 👋 "},
    ],
]


def smollm2() -> dict[str, Any]:
    file = embedded_model_path()
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    # transformers takes GPT-2's pieces for every name it does not know; the model was trained with digits apart.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    strings = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        decoded = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        strings.append({"text": text, "ids": ids, "decoded": decoded})
    chats = [
        {
            "messages": messages,
            "add_generation_prompt": prompt,
            "text": tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt),
        }
        for messages in CHATS
        for prompt in (True, False)
    ]
    return {"strings": strings, "chats": chats}


def pieces(pattern: str | None) -> list[list[str]]:
    """Pieces of each text, in the byte-level alphabet; GPT-2's where there is no pattern."""
    if pattern is None:
        steps: pre_tokenizers.PreTokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        steps = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    return [[piece for piece, _ in steps.pre_tokenize_str(text)] for text in TEXTS]


def recompute() -> dict[str, Any]:
    llama3 = TikTokenConverter.__init__.__defaults__
    assert llama3 is not None
    return {
        "smollm2": smollm2(),
        "pieces": {
            "gpt-2": pieces(None),
            "llama3": pieces(next(value for value in llama3 if isinstance(value, str) and "{1,3}" in value)),
            "qwen2": pieces(QWEN2),
            "tekken": pieces(gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS["tekken"]),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true")
    action.add_argument("--check", action="store_true")
    values = recompute()
    if parser.parse_args().write:
        GOLDEN.write_text(json.dumps(values, separators=(",", ":")) + "\n", encoding="utf-8")
        return 0
    if json.loads(GOLDEN.read_text(encoding="utf-8")) == values:
        return 0
    print(f"{GOLDEN} differs from what transformers computes", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
