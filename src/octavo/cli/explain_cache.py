"""``octavo explain-cache``: what the prefix cache found in a recorded run, and which prompts nearly shared a prefix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from octavo.telemetry.near_misses import Group, Member
    from octavo.telemetry.prompts import Prompt
    from octavo.text.tokenizer import Tokenizer

EXAMPLES = 3
"""Prompts of a group whose differing part is shown."""
TOKENS_SHOWN = 16


@click.command("explain-cache")
@click.argument("path", metavar="RECORDING", type=click.Path(path_type=Path))
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="A Hugging Face folder or GGUF file whose tokenizer turns the differing tokens into text.",
)
@click.option("--block-size", type=int, help="Token slots of a block. Default: the recorded run's.")
@click.option("--groups", type=int, default=5, show_default=True, help="Groups of near misses to show.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def command(path: Path, model: Path | None, block_size: int | None, groups: int, as_json: bool) -> None:
    """What the prefix cache found in a recorded run, where prompts diverge, and what moving that to the end gains."""
    # Not at the top: --help loads no NumPy.
    from octavo.core.config import CacheConfig
    from octavo.telemetry.near_misses import near_misses
    from octavo.telemetry.prompts import read_prompts
    from octavo.telemetry.recording_reader import Recording

    recording = Recording(path)
    size = CacheConfig(1, block_size or recording.header.cache.block_size).block_size
    prompts = read_prompts(recording)
    facts = {"recording": str(path), "block_size": size, **_rates(prompts, size)}
    found = near_misses(prompts, size)
    tokenizer = None
    if model is not None:
        from octavo.text.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(model)
    facts["near_misses"] = len(found)
    facts["groups"] = [_group(one, tokenizer) for one in found[: max(groups, 0)]]
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo("\n".join(_lines(facts)))


def _rates(prompts: list[Prompt], size: int) -> dict[str, Any]:
    from octavo.telemetry.prompts import ever_found

    tokens = sum(len(one.tokens) for one in prompts)
    ever = ever_found(prompts, size)
    hits = {
        "achieved": sum(one.cached_tokens or 0 for one in prompts),
        "without_evictions": sum(blocks for blocks, _ in ever),
        "by_token": sum(by_token for _, by_token in ever),
    }
    return {
        "requests": len(prompts),
        "prompt_tokens": tokens,
        "cached_tokens": hits,
        "hit_rates": {name: count / tokens if tokens else 0.0 for name, count in hits.items()},
    }


def _group(group: Group, tokenizer: Tokenizer | None) -> dict[str, Any]:
    typical = group.typical
    examples = [_part(group.leader, typical.front, typical.leader_start, tokenizer)]
    # Those that differ where most do, so that the parts can be compared.
    alike = [one for one in group.members if one.front == typical.front]
    examples += [_example(one, tokenizer) for one in alike[: EXAMPLES - 1]]
    return {
        "prompts": len(group.members) + 1,
        "prompt_tokens": group.tokens,
        "position": typical.front,
        "differing_tokens": typical.start - typical.front,
        "alike_again": typical.length,
        "examples": examples,
        "found_before": group.before,
        "found_after": group.after,
        "gain": group.after - group.before,
    }


def _example(member: Member, tokenizer: Tokenizer | None) -> dict[str, Any]:
    return _part(member.prompt, member.front, member.start, tokenizer)


def _part(prompt: Prompt, front: int, start: int, tokenizer: Tokenizer | None) -> dict[str, Any]:
    tokens: list[int] = prompt.tokens[front:start].tolist()
    text = None if tokenizer is None else tokenizer.decode(tokens, skip_special_tokens=False)
    return {"request_id": prompt.request_id, "tokens": tokens, "text": text}


def _lines(facts: dict[str, Any]) -> list[str]:
    rates, hits = facts["hit_rates"], facts["cached_tokens"]
    lines = [
        f"{facts['recording']}: {facts['requests']:,} requests, {facts['prompt_tokens']:,} prompt tokens, "
        f"blocks of {facts['block_size']}",
        f"Found in the pool: {rates['achieved']:.1%} ({hits['achieved']:,} tokens); a pool without limit would have "
        f"found {rates['without_evictions']:.1%}, and with blocks of one token {rates['by_token']:.1%}",
    ]
    if not facts["groups"]:
        return [*lines, "No near misses: no prompts hold the same text behind a part that differs"]
    shown, all_ = len(facts["groups"]), facts["near_misses"]
    counted = "1 group" if all_ == 1 else f"{all_:,} groups"
    lines.append(f"Near misses: {shown} of {counted}" if shown < all_ else f"Near misses: {counted}")
    for number, group in enumerate(facts["groups"], start=1):
        lines += [
            "",
            f"{number}. {group['prompts']:,} prompts differ from token {group['position']:,} on, for "
            f"{group['differing_tokens']:,} tokens, and are alike again for {group['alike_again']:,}:",
            *(f"     {one['request_id']}: {_shown(one)}" for one in group["examples"]),
            f"   found of each other: {group['found_before']:,} of {group['prompt_tokens']:,} tokens; with this part "
            f"at the end of the prompt: {group['found_after']:,} ({group['gain']:+,})",
        ]
    return lines


def _shown(example: dict[str, Any]) -> str:
    tokens = example["tokens"]
    numbers = " ".join(map(str, tokens[:TOKENS_SHOWN])) + (" ..." if len(tokens) > TOKENS_SHOWN else "")
    return f"[{numbers}]" if example["text"] is None else f"{example['text']!r} [{numbers}]"
