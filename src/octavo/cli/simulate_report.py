"""A finished simulation in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.cli.simulate_output import table
from octavo.memory import sizing

if TYPE_CHECKING:
    from octavo.cli.simulate_run import Setup


def report_text(setup: Setup, found: dict[str, Any]) -> str:
    """``found`` as ``simulate_run.facts`` gives it."""
    return "\n".join(
        [
            *_settings(setup),
            "",
            *_requests(found, setup.unit),
            "",
            _times(found, setup.unit),
            "",
            *_pool(found),
        ]
    )


def _settings(setup: Setup) -> list[str]:
    cache, limits = setup.cache, setup.scheduler
    pool_mib = sizing.pool_bytes(cache.num_blocks, setup.spec, cache.block_size) / sizing.MIB
    lines = []
    if setup.profile is None:
        lines.append(f"{setup.spec.name}; every step takes 1")
    else:
        lines.append(f"{setup.spec.name} on {setup.profile.name}: {setup.profile.source}")
    caching = (
        "prefix caching"
        if cache.enable_prefix_caching and cache.allocator == "paged"
        else "no prefix caching"
    )
    named = limits.max_num_batched_tokens
    budget = "unlimited" if named is None else f"{named:,}"
    lines.append(
        f"Pool: {cache.num_blocks:,} blocks of {cache.block_size} = {cache.num_blocks * cache.block_size:,} tokens, "
        f"{pool_mib:,.0f} MiB; {setup.allocator}, {caching}; at most {limits.max_num_seqs} sequences and "
        f"{budget} tokens a step, {limits.max_model_len:,} tokens a request"
    )
    return lines


def _requests(found: dict[str, Any], unit: str) -> list[str]:
    each = "step" if unit == "steps" else "s"
    lines = [
        f"{found['requests_finished']:,} requests finished, {found['requests_refused']:,} refused (too long for model "
        f"or pool), {found['requests_unfinished']:,} unfinished; {found['steps']:,} steps, "
        f"{found['duration']:,.4g} {unit}",
        f"Throughput: {found['output_tokens_per_second']:,.4g} output tokens/{each}, "
        f"{found['prompt_tokens_per_second']:,.4g} prompt tokens/{each}, "
        f"{found['requests_per_second']:,.4g} requests/{each}",
    ]
    if found["turns_unasked"]:
        lines.insert(
            1, f"A refused turn ends its conversation: {found['turns_unasked']:,} later turns were not asked"
        )
    if "slo_attainment" in found:
        lines.append(
            f"SLO: {found['slo_attainment']:.1%} of the requests kept it, goodput "
            f"{found['goodput_per_second']:,.4g} requests/{each}"
        )
    return lines


def _times(found: dict[str, Any], unit: str) -> str:
    names = {
        "ttft": "first token",
        "tpot": "token after it",
        "e2e": "end to end",
        "normalized_latency": "end to end / tokens",
    }
    headers = list(found["ttft"])
    rows = [[label, *(f"{found[key][column]:.4g}" for column in headers)] for key, label in names.items()]
    return table([unit, *headers], rows)


def _pool(found: dict[str, Any]) -> list[str]:
    shares = ", ".join(f"{name} {100 * share:.2f} %" for name, share in found["pool_shares"].items())
    swapped = f"{found['tokens_swapped']:,} swapped, " if found["tokens_swapped"] else ""
    return [
        f"Running {found['running_mean']:.2f} on average, waiting {found['waiting_mean']:.2f}",
        f"Pool over time: {shares}",
        f"Held slots that hold a token: {100 * found['effective']:.2f} %",
        f"Slots of a sequence in a row in memory: {found['kv_run_tokens']:.1f} on average",
        f"Prefix hits: {100 * found['hit_rate']:.2f} % of the prompt tokens; "
        f"{found['blocks_evicted']:,} blocks evicted",
        *_lookups(found.get("lookups")),
        f"Preemptions: {found['preemptions']:,}; {found['tokens_recomputed']:,} tokens computed again, "
        f"{swapped}"
        f"{found['tokens_discarded']:,} discarded; {found['blocked_steps']:,} steps blocked by external fragmentation",
    ]


def _lookups(found: dict[str, Any] | None) -> list[str]:
    """Why blocks were not found, and what other pools would have found; nothing where none was looked up."""
    if found is None or not found["tokens"]:
        return []
    misses = ", ".join(
        f"{count:,} {name.replace('_', ' ')}" for name, count in found["misses"].items() if count
    )
    rates = found["hit_rates"]
    return [
        f"Prefix blocks: {found['hits']:,} of {found['blocks']:,} found; not found: {misses or 'none'}",
        f"A pool without limit would have found at least {100 * rates['without_evictions']:.2f} % of the prompt "
        f"tokens, with blocks of one token {100 * rates['by_token']:.2f} %",
    ]
