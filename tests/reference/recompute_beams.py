"""What transformers' beam search answers with the real model, in float32 on the CPU.

    python tests/reference/recompute_beams.py --write    # store it in tests/reference/golden
    python tests/reference/recompute_beams.py --check    # recompute and compare; exit 1 on any difference
    python tests/reference/recompute_beams.py --check --every 3    # every third search: what CI has time for

Needs what ``recompute.py`` needs. Diverse groups are not here: transformers 5 keeps them outside of its own code.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

import reference.native_part  # noqa: E402, F401 - before the loaders
from octavo.execution.embedded import embedded_model_path  # noqa: E402
from octavo.execution.loading import load_model  # noqa: E402
from reference.beams import MAX_TOKENS, NAMES, SETTINGS  # noqa: E402
from reference.prompts import PROMPTS  # noqa: E402
from reference.recompute import differences, save_folder, tokenised  # noqa: E402

PATH = Path(__file__).parent / "golden" / "beams.json"


@torch.inference_mode()
def searched(model: Any, prompt: list[int], settings: dict[str, Any], ends: list[int]) -> dict[str, Any]:
    """The beams, best first, each up to its end token, and their scores."""
    width = settings["width"]
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=MAX_TOKENS,
        num_beams=width,
        num_return_sequences=width,
        length_penalty=settings["length_penalty"],
        early_stopping=settings["early_stopping"],
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    answers = []
    for sequence, indices in zip(output.sequences.tolist(), output.beam_indices.tolist(), strict=True):
        length = sum(index >= 0 for index in indices)
        answers.append(sequence[len(prompt) : len(prompt) + length])
    return {
        "token_ids": answers,
        "scores": [round(float(score), 5) for score in output.sequences_scores],
    }


def all_answers(every: int) -> dict[str, Any]:
    """Of every ``every``-th pair of prompt and settings, counted through all of them."""
    gguf = embedded_model_path()
    loaded = load_model(gguf, "f32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_folder(loaded, Path(folder))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        prompts = {name: tokenised(tokenizer, PROMPTS[name]) for name in NAMES}
        cases = list(itertools.product(prompts, SETTINGS))[::every]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # one search a thread: each sum keeps its order
            searches = pool.map(
                lambda case: searched(model, prompts[case[0]], SETTINGS[case[1]], list(loaded.eos_token_ids)),
                cases,
            )
            answers = dict(zip(cases, searches, strict=True))
    for (name, setting), answer in answers.items():
        print(f"{name}, {setting}: {tokenizer.decode(answer['token_ids'][0])!r}", file=sys.stderr)
        found.setdefault(name, {"prompt_token_ids": prompts[name]})[setting] = answer
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="recompute one search of N (with --check)"
    )
    arguments = parser.parse_args()
    if arguments.write and arguments.every != 1:
        parser.error("--write needs all searches: leave --every out")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)  # one order of every sum, on every machine
    found = all_answers(arguments.every)
    different: list[str] = []
    if arguments.write:
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
        PATH.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    else:
        golden = json.loads(PATH.read_text(encoding="utf-8"))
        if arguments.every != 1:
            golden = {name: {key: golden[name][key] for key in answers} for name, answers in found.items()}
        different = differences(golden, found, "beams")
    print("\n".join(different) or f"{'written' if arguments.write else 'equal'}: {PATH.name}")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
