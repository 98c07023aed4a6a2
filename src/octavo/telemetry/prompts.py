"""The prompts of a recording, and what caches that forget nothing would have found of them. Exact, and unbounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.core.events import Preempted
from octavo.memory import HashChain
from octavo.telemetry.recording_reader import Added, Recording, Stepped


@dataclass(slots=True, eq=False)
class Prompt:
    """One request of a recording."""

    request_id: str
    tokens: NDArray[np.int32]
    salt: str | None
    cached_tokens: int | None = None
    """Found in the pool when it was first let in; None if it never was, or nothing was looked up."""
    output: list[int] = field(default_factory=list)
    """Of its first answer."""


def read_prompts(recording: Recording) -> list[Prompt]:
    """In the order of their arrival. Raises ConfigError for a damaged file."""
    prompts: list[Prompt] = []
    leaders: dict[str, Prompt] = {}
    for item in recording.items():
        if isinstance(item, Added):
            request = item.request
            prompts.append(Prompt(request.request_id, request.prompt_token_ids, request.cache_salt))
            leaders[request.runs()[0].request_id] = prompts[-1]
        elif isinstance(item, Stepped):
            record = item.record
            for event in record.events:
                if isinstance(event, Preempted) and event.tokens_discarded and event.request_id in leaders:
                    del leaders[event.request_id].output[-event.tokens_discarded :]
            for start in record.plan.started:
                prompt = leaders.get(start.request.request_id)
                looked_up = start.request.sampling.prompt_logprobs is None
                if prompt is not None and prompt.cached_tokens is None and looked_up:
                    prompt.cached_tokens = start.cached_tokens
            sampling = np.flatnonzero(record.plan.samples).tolist()
            for place, token in zip(sampling, record.result.token_ids.tolist(), strict=True):
                if (prompt := leaders.get(record.request_ids[place])) is not None:
                    prompt.output.append(token)
    return prompts


class Endless:
    """A cache that forgets nothing, asked for each prompt in turn."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._behind: dict[bytes, list[NDArray[np.int32]]] = {}
        """What came behind each block, or behind nothing: blocks, the last of them perhaps partial."""

    def visit(self, prompt: Prompt) -> tuple[int, int]:
        """Leading tokens of this prompt that earlier ones had, in whole blocks and token by token; at least one token
        of it is computed. Later ones will find it and its answer."""
        size, tokens = self._size, prompt.tokens
        chain = HashChain(prompt.salt)
        # The last token of an answer is never computed.
        whole = np.concatenate((tokens, np.array(prompt.output[:-1], np.int32)))
        chain.extend(whole, size)
        names = [chain.root, *chain.digests]
        blocks = (len(tokens) - 1) // size
        found = next((i for i in range(blocks) if names[i + 1] not in self._behind), blocks)
        rest = tokens[found * size : min((found + 1) * size, len(tokens) - 1)]
        more = max((common_prefix(rest, other) for other in self._behind.get(names[found], ())), default=0)
        for i, name in enumerate(names):
            if i >= found:
                behind = self._behind.setdefault(name, [])
                if len(whole) > i * size:
                    behind.append(whole[i * size : (i + 1) * size])
        return found * size, found * size + more


def ever_found(prompts: Iterable[Prompt], block_size: int) -> list[tuple[int, int]]:
    """``Endless.visit`` of each."""
    cache = Endless(block_size)
    return [cache.visit(prompt) for prompt in prompts]


def common_prefix(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Leading tokens that are alike."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
