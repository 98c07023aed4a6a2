"""The door: a request that can never fit is refused before it is queued, with the numbers that say why."""

from __future__ import annotations

from octavo.core.errors import ContextLengthError, RequestError
from octavo.core.request import Request


def check(request: Request, model_len: int, pool_len: int, max_num_seqs: int) -> None:
    """Raise RequestError for an empty prompt or for more answers than rows, ContextLengthError for a request that can
    never fit.

    ``model_len`` and ``pool_len``: tokens of the longest sequence that model and pool can hold. A request that names
    max_tokens must fit with all of them; one that does not must have room for one token.
    """
    prompt = len(request.prompt_token_ids)
    if prompt == 0:
        raise RequestError("the prompt is empty; it must have at least 1 token", param="prompt")
    if request.sampling.n > max_num_seqs:
        raise RequestError(
            f"n is {request.sampling.n}, but at most {max_num_seqs} sequences run at once (--max-num-seqs);"
            " ask for fewer answers or raise --max-num-seqs",
            param="n",
        )
    named = request.sampling.max_tokens
    wanted = prompt + (1 if named is None else named)
    longest = min(model_len, pool_len)
    if wanted <= longest:
        return
    flag = "--kv-cache-memory-bytes" if pool_len < model_len else "--max-model-len"
    output = "at least 1 for the output" if named is None else f"{named:,} for the output (max_tokens)"
    raise ContextLengthError(
        f"the maximum context length is {longest:,} tokens (--max-model-len allows {model_len:,}, the pool holds"
        f" {pool_len:,}), but the request needs {wanted:,}: {prompt:,} in the prompt and {output};"
        f" shorten it or raise {flag}",
        param=flag,
    )
