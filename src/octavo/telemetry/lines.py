"""Readable lines: one for each rare event, and the boot lines that people grep in an engine's log."""

from __future__ import annotations

from octavo.core.events import (
    AdmissionPaused,
    AdmissionResumed,
    Admitted,
    BeamsDecided,
    Blocked,
    Copied,
    Damaged,
    Evicted,
    Finished,
    Forked,
    PoolState,
    Preempted,
    RareEvent,
    Refused,
    Spilled,
)


def event_line(event: RareEvent) -> str:
    """One line that says who, how much and why."""
    match event:
        case Admitted():
            again = "Resumed" if event.resumed else "Admitted"
            loaded = f" ({event.loaded_tokens} in the second tier)" if event.loaded_tokens else ""
            return (
                f"{again} {event.request_id}: row {event.row}, {event.prompt_tokens} tokens to hold, "
                f"{event.cached_tokens} of them cached{loaded}, {event.blocks} blocks"
            )
        case Preempted():
            swapped = f", {event.tokens_swapped} swapped out" if event.tokens_swapped else ""
            return (
                f"Preempted {event.request_id}: {event.requester} needed a block; "
                f"{event.blocks_released} blocks released, "
                f"{event.tokens_to_recompute} tokens to recompute, {event.tokens_discarded} discarded{swapped}; "
                f"pool {pool_text(event.pool_before)} -> {pool_text(event.pool_after)}"
            )
        case Refused():
            return f"Refused {event.request_id}: {event.message}"
        case Blocked():
            return (
                f"Blocked {event.request_id} by external fragmentation: needs {event.slots_needed} contiguous slots, "
                f"{event.slots_free} are free in {event.runs_free} runs, the largest {event.largest_run}"
            )
        case Evicted():
            return f"Evicted {len(event.blocks)} cached blocks to make room"
        case Spilled():
            blocks = "block" if len(event.blocks) == 1 else "blocks"
            return f"Spilled {len(event.blocks)} evicted {blocks} to the second tier"
        case Damaged():
            return (
                f"Damaged blocks in the second tier: {event.request_id} computes {event.tokens} tokens again"
            )
        case Forked():
            return (
                f"Forked {event.request_id} from {event.parent_id}: row {event.row} shares {event.blocks} blocks, "
                f"{event.tokens} tokens need not be computed"
            )
        case BeamsDecided():
            best = event.answers[0]
            return (
                f"Beams decided of {event.request_id}: {len(event.answers)} answers, the best of score "
                f"{best.score:.4f} with {len(best.token_ids)} tokens"
            )
        case Copied():
            return f"Copied {len(event.copies)} shared blocks before they are written to"
        case AdmissionPaused():
            return (
                f"Admission paused: {event.preemptions} preemptions within {event.window} steps; "
                f"{event.running} requests run on, {event.waiting} wait (--thrash-preemptions)"
            )
        case AdmissionResumed():
            return f"Admission resumed after {event.steps} steps: {event.waiting} requests wait"
        case Finished():
            return (
                f"Finished {event.request_id}: {event.reason.name.lower()} after {event.output_tokens} tokens, "
                f"{event.preemptions} preemptions"
            )


def pool_text(state: PoolState) -> str:
    """Blocks by state, in words."""
    return f"{state.live} live, {state.cached} cached, {state.free} free"
