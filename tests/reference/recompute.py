"""What transformers computes for the models of our tests, in float32 on the CPU.

    python tests/reference/recompute.py --write    # store it in tests/reference/golden
    python tests/reference/recompute.py --check    # recompute and compare; exit 1 on any difference

Needs torch 2.13.0, transformers, and Octavo's own Python dependencies; ``src`` and ``tests`` must be importable. The
weights of the real model reach transformers as a folder saved from our loader, and are also compared, number by number,
with those that transformers reads from the GGUF file itself.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

import reference.native_part  # noqa: E402, F401 - before the loaders
from octavo.execution.embedded import embedded_model_path  # noqa: E402
from octavo.execution.loading import LoadedModel, load_model  # noqa: E402
from octavo.execution.loading.names import weight_names  # noqa: E402
from reference.prompts import PROMPTS  # noqa: E402
from tiny_models import TINY_MODELS, save_safetensors, write_hf  # noqa: E402

GOLDEN = Path(__file__).parent / "golden"
TINY_TOKENS = 150
"""Positions of a tiny model: beyond the 64 from which llama3 and yarn stretch."""
TINY_POSITIONS = (0, 1, 20, 63, 100, 149)
TINY_COLUMNS = 32
NEW_TOKENS = 32
LOGIT_STEPS = (0, 7, 31)
"""Generated tokens whose ten largest logits are stored."""
TOLERANCE = 1e-3
"""Of logits, absolute, between two runs of transformers (they are of order 10)."""
RELATIVE_TOLERANCE = 4e-5
"""PyTorch sums in another order where it has no AVX-512: a beam's score of -54 was off by 2.2e-5 of itself."""


def tiny_token_ids() -> np.ndarray[Any, Any]:
    """The fixed input of every tiny model."""
    return (np.arange(TINY_TOKENS) * 37 + 11) % 256


def rounded(values: Any) -> list[float]:
    return [round(float(value), 5) for value in values]


@torch.inference_mode()
def tiny_logits(folder: Path) -> dict[str, Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    window = getattr(model.config, "sliding_window", None)
    count = TINY_TOKENS if not window else min(TINY_TOKENS, window)
    logits = model(torch.from_numpy(tiny_token_ids()[None, :count])).logits[0]
    positions = [position for position in TINY_POSITIONS if position < count]
    return {
        "positions": positions,
        "logits": [rounded(logits[position, :TINY_COLUMNS]) for position in positions],
        "argmax": logits.argmax(dim=1).tolist(),
    }


def save_folder(model: LoadedModel, folder: Path) -> None:
    """The model as a Hugging Face folder in float32, from what our loader read."""
    a, weights = model.architecture, model.weights
    tensors = {}
    for name in weight_names(a):
        tensors[name.hugging_face] = (
            weights.vector(name.canonical) if len(name.shape) == 1 else weights.matrix(name.canonical).array()
        )
    save_safetensors(folder / "model.safetensors", tensors)
    config = transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=a.hidden_size,
        intermediate_size=a.intermediate_size,
        num_hidden_layers=a.num_layers,
        num_attention_heads=a.num_heads,
        num_key_value_heads=a.num_kv_heads,
        head_dim=a.head_dim,
        vocab_size=a.vocab_size,
        max_position_embeddings=a.max_position_embeddings,
        rms_norm_eps=a.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": a.rope_theta},
        tie_word_embeddings=a.tied,
    )
    config.save_pretrained(folder)


def compare_weights(ours: torch.nn.Module, gguf: Path) -> None:
    """Raises where transformers' own reading of the GGUF file gives another number anywhere.

    Its checkpoint reader is called directly: ``from_pretrained`` wants the accelerate package for GGUF files.
    """
    theirs = load_gguf_checkpoint(
        str(gguf), return_tensors=True, model_to_load=ours, torch_dtype=torch.float32
    )
    mine = ours.state_dict()
    for name, values in theirs["tensors"].items():
        assert torch.equal(mine[name], values), f"{name} differs from what transformers reads from {gguf}"
    assert len(theirs["tensors"]) >= 9 * len(ours.model.layers) + 2
    print(
        f"weights: {len(theirs['tensors'])} tensors equal transformers' own reading of the file",
        file=sys.stderr,
    )


@torch.inference_mode()
def greedy(model: Any, prompt: list[int]) -> dict[str, Any]:
    """NEW_TOKENS tokens, end tokens taken as ordinary ones, and the ten largest logits before some of them."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    logits = torch.cat(output.logits)
    values, ids = torch.topk(logits, 10)
    return {
        "token_ids": output.sequences[0, len(prompt) :].tolist(),
        "top": [{"ids": ids[step].tolist(), "logits": rounded(values[step])} for step in LOGIT_STEPS],
        "gap_min": round(float((values[:, 0] - values[:, 1]).min()), 4),
    }


def tokenised(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def real_answers() -> dict[str, Any]:
    """For every prompt: its token ids, the answer's, and logits."""
    gguf = embedded_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    with tempfile.TemporaryDirectory() as folder:
        save_folder(load_model(gguf, "f32"), Path(folder))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        compare_weights(model, gguf)
        model.generation_config.eos_token_id = None
        prompts = {name: tokenised(tokenizer, messages) for name, messages in PROMPTS.items()}
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # one prompt a thread: each sum keeps its order
            found = pool.map(lambda prompt: greedy(model, prompt), prompts.values())
            answers = {
                name: {"prompt_token_ids": prompt, **answer}
                for (name, prompt), answer in zip(prompts.items(), found, strict=True)
            }
    for name, answer in answers.items():
        text = tokenizer.decode(answer["token_ids"])
        print(f"{name}: smallest gap of two logits {answer['gap_min']}: {text!r}", file=sys.stderr)
    return answers


def tiny_answers() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: tiny_logits(write_hf(model, Path(folder) / name)) for name, model in TINY_MODELS.items()
        }


def differences(stored: Any, found: Any, where: str) -> list[str]:
    """Where two structures differ; floats may by TOLERANCE, or by RELATIVE_TOLERANCE of themselves."""
    if isinstance(stored, float) and isinstance(found, float):
        near = math.isclose(stored, found, rel_tol=RELATIVE_TOLERANCE, abs_tol=TOLERANCE)
        return [] if near else [f"{where}: {stored} stored, {found} now"]
    if type(stored) is not type(found):
        return [f"{where}: {stored!r} stored, {found!r} now"]
    if isinstance(stored, dict):
        if stored.keys() != found.keys():
            return [f"{where}: {sorted(stored.keys() ^ found.keys())} on one side alone"]
        return [line for key in stored for line in differences(stored[key], found[key], f"{where}/{key}")]
    if isinstance(stored, list):
        if len(stored) != len(found):
            return [f"{where}: {len(stored)} stored, {len(found)} now"]
        pairs = enumerate(zip(stored, found, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{where}/{i}")]
    return [] if stored == found else [f"{where}: {stored!r} stored, {found!r} now"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)  # one order of every sum, on every machine
    different: list[str] = []
    for name, compute in (("tiny_models", tiny_answers), ("smollm2", real_answers)):
        path, found = GOLDEN / f"{name}.json", compute()
        if arguments.write:
            GOLDEN.mkdir(exist_ok=True)
            lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
            path.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
        else:
            different += differences(json.loads(path.read_text(encoding="utf-8")), found, name)
    print("\n".join(different) or f"{'written' if arguments.write else 'equal'}: {GOLDEN.name}")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
