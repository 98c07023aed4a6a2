"""The lines an engine prints when it starts: what the pool holds, and what that means for concurrency."""

from __future__ import annotations

from octavo.memory import sizing

TYPICAL_TOKENS = 512
"""A length of requests, so that the lines mean something before any request came."""


def boot_lines(
    *,
    device: str,
    tokens: int,
    max_model_len: int,
    pool_bytes: int,
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
) -> list[str]:
    """The first two lines are the ones that people grep in vLLM's log; the third says what they leave out.

    The second divides the pool by the longest request that is allowed, not by the requests that come: at a typical
    length far more fit, and then the number of rows is the limit. Where not even one of the longest fits, a fourth says
    so.
    """
    fitting = tokens / max_model_len
    typical = min(TYPICAL_TOKENS, max_model_len, tokens)
    at_typical = sizing.concurrency(sizing.blocks_for(typical, block_size), num_blocks, max_num_seqs)
    binding = (
        f"--max-num-seqs {max_num_seqs} binds below {tokens // max_num_seqs:,} tokens per request, the pool above"
        if tokens // max_num_seqs < max_model_len
        else f"--max-num-seqs {max_num_seqs} binds at every length"
    )
    lines = [
        f"{device} KV cache size: {tokens:,} tokens",
        f"Maximum concurrency for {max_model_len:,} tokens per request: {fitting:.2f}x",
        f"Pool: {num_blocks:,} blocks of {block_size} tokens, {pool_bytes / 2**20:,.1f} MiB (--kv-cache-memory-bytes); "
        f"{at_typical.running:,} requests of {typical} tokens run at once; {binding}",
    ]
    if tokens < max_model_len:
        lines.append(
            f"The pool is smaller than --max-model-len {max_model_len:,}: a request may have at most {tokens:,} tokens"
            " (--kv-cache-memory-bytes)"
        )
    return lines
