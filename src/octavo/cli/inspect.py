"""``octavo inspect``: the sizes of a model and what a pool would hold, without reading its weights."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from octavo.cli.options import engine_flags, engine_options
from octavo.core.errors import ConfigError
from octavo.core.model_spec import DTYPE_BYTES, KV_SCALE_BYTES, ModelSpec


@click.command("inspect")
@click.argument("model_argument", metavar="[MODEL]", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@engine_flags
def command(model_argument: str | None, as_json: bool, **flags: Any) -> None:
    """Sizes of a model: bytes a token, tokens a GiB, what a pool would hold."""
    from octavo.llm.build import boot, open_model, size_pool  # not at the top: --help loads no model code
    from octavo.memory import sizing

    if model_argument and flags["model"]:
        raise ConfigError(f"two models: {model_argument} and --model {flags['model']}", param="--model")
    options = engine_options(**{**flags, "model": model_argument or flags["model"]})
    model = open_model(options)
    spec, sizes = model.spec, size_pool(options, model.spec)
    facts = {
        **asdict(spec),
        "kv_bytes_per_token": spec.kv_bytes_per_token,
        "block_size": options.block_size,
        "block_bytes": sizing.block_bytes(spec, options.block_size),
        "tokens_per_gib": sizing.tokens_per_gib(spec),
        "num_blocks": sizes.num_blocks,
        "pool_bytes": sizes.pool_bytes,
        "block_table_bytes": sizing.table_bytes(
            options.max_num_seqs, sizes.max_model_len, options.block_size
        ),
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    for line in model.notes:
        click.echo(line, err=True)
    click.echo(
        f"{spec.name}: {spec.num_parameters:,} parameters, {spec.weight_dtype} weights\n"
        f"{spec.num_layers} layers, {spec.num_heads} heads on {spec.num_kv_heads} key-value heads of {spec.head_dim}, "
        f"vocabulary {spec.vocab_size:,}, context {spec.max_model_len:,} tokens\n"
        f"A token: 2 x {spec.num_layers} layers x {spec.num_kv_heads} kv heads x {_head(spec)} = "
        f"{spec.kv_bytes_per_token:,} bytes; a block of {options.block_size}: {facts['block_bytes']:,} bytes\n"
        f"A GiB: {facts['tokens_per_gib']:,} tokens"
    )
    for line in boot(spec, options, sizes):
        click.echo(line)


def _head(spec: ModelSpec) -> str:
    """What one head's key, or value, takes: its elements and its scale."""
    element, scale = DTYPE_BYTES[spec.kv_dtype], KV_SCALE_BYTES[spec.kv_dtype]
    if scale:
        return f"({spec.head_dim} x {element} byte + {scale} of its scale)"
    return f"{spec.head_dim} x {element} bytes"
