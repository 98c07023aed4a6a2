"""What ``LLM.generate`` returns, in the shape that users of vLLM know."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.core.plan import TokenLogprobs


@dataclass(slots=True)
class CompletionOutput:
    """One answer."""

    text: str
    token_ids: list[int]
    """The generated tokens, a final stop token included (its text is not)."""
    finish_reason: str | None
    """stop, length, abort or error; None while it runs."""
    logprobs: list[TokenLogprobs] | None = None
    index: int = 0
    cumulative_logprob: float | None = None
    """Sum over its tokens, where their log-probabilities were asked for or it is a beam."""
    beam_score: float | None = None
    """Of a beam: ``cumulative_logprob`` over its length to the power of the length penalty. The best comes first."""


@dataclass(slots=True)
class RequestMetrics:
    """Seconds and counts of one request, all its answers together."""

    ttft_s: float
    """From adding the request to its first token."""
    tokens_per_s: float
    """Output tokens after the first per second after the first; 0.0 where there are fewer than two."""
    latency_s: float
    """From adding the request to its last token."""
    blocks_used: int
    """Most blocks that the request held at once; a block that several of its answers share counts once."""
    blocks_total: int
    """Blocks of the pool."""
    preemptions: int


@dataclass(slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    """Prompt tokens whose keys and values were found in the pool."""
    metrics: RequestMetrics
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One a prompt token; the first is None, as nothing predicts it."""
    finished: bool = field(default=True)
