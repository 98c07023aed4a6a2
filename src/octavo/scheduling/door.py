"""The door: a request that can never fit is refused before it is queued, with the numbers that say why."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.errors import ContextLengthError, RequestError
from octavo.core.request import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """What model, pool and settings can hold at most."""

    model_len: int
    """Tokens of the longest sequence of the model."""
    pool_len: int
    """The same of the empty pool."""
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int | None
    """Tokens of a step; None is unlimited."""
    can_fork: bool

    def longest_search(self, prompt: int, width: int) -> int:
        """Tokens that each beam may reach when they share no block but the full ones of the prompt."""
        shared = prompt // self.block_size
        each = (self.num_blocks - shared) // width
        return min(self.model_len, (shared + each) * self.block_size)


def check(request: Request, limits: Limits) -> None:
    """Raise RequestError for an empty prompt or more answers than rows, ContextLengthError for what can never fit.

    A request that names max_tokens must fit with all of them; one that does not must have room for one token.
    """
    prompt = len(request.prompt_token_ids)
    if prompt == 0:
        raise RequestError("the prompt is empty; it must have at least 1 token", param="prompt")
    sampling = request.sampling
    if sampling.beam is not None:
        _check_rows("the beam width", sampling.beam.width, "beam_width", limits)
        _check_search(sampling.beam.width, limits)
    else:
        _check_rows("n", sampling.n, "n", limits)
    named = sampling.max_tokens
    wanted = prompt + (1 if named is None else named)
    pool_len, held = limits.pool_len, f"{limits.pool_len:,}"
    if sampling.beam is not None:
        pool_len = limits.longest_search(prompt, sampling.beam.width)
        held = f"{pool_len:,} for each of {sampling.beam.width} beams"
    longest = min(limits.model_len, pool_len)
    if wanted <= longest:
        return
    flag = "--kv-cache-memory-bytes" if pool_len < limits.model_len else "--max-model-len"
    output = "at least 1 for the output" if named is None else f"{named:,} for the output (max_tokens)"
    raise ContextLengthError(
        f"the maximum context length is {longest:,} tokens (--max-model-len allows {limits.model_len:,}, the pool holds"
        f" {held}), but the request needs {wanted:,}: {prompt:,} in the prompt and {output};"
        f" shorten it or raise {flag}",
        param=flag,
    )


def _check_rows(what: str, rows: int, param: str, limits: Limits) -> None:
    if rows > limits.max_num_seqs:
        raise RequestError(
            f"{what} is {rows}, but at most {limits.max_num_seqs} sequences run at once (--max-num-seqs);"
            " ask for fewer answers or raise --max-num-seqs",
            param=param,
        )


def _check_search(width: int, limits: Limits) -> None:
    if not limits.can_fork:
        raise RequestError(
            "a beam search shares blocks between its beams, which only --allocator paged can",
            param="--allocator",
        )
    budget = limits.max_num_batched_tokens
    if budget is not None and width > budget:
        raise RequestError(
            f"the beam width is {width}, but a step has {budget} tokens (--max-num-batched-tokens), and all beams of a"
            " search take theirs in one step; choose fewer beams or raise --max-num-batched-tokens",
            param="beam_width",
        )
