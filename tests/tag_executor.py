"""``TagExecutor``: an executor that computes something one can check (see ``scheduler_model``)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

import beam_model
from memory_model import Slots, follow
from octavo.core.plan import Candidates, StepPlan, StepResult
from octavo.core.request import Request

VOCABULARY = 3
"""Few tokens, so that prefixes meet often."""


class TagExecutor:
    def __init__(self, blocks: int, size: int, lengths: dict[str, int]) -> None:
        self.slots = Slots(blocks, size)
        self.lengths = lengths
        self.tags: dict[int, list[int]] = {}
        self.damage: Collection[int] = ()
        """Blocks of the second tier that are damaged whenever they are read."""
        self.torn: set[int] = set()
        """Rows that were given a damaged block and have not computed since."""
        self.requests: dict[int, Request] = {}
        self.outputs: dict[str, list[int]] = {}

    def run(self, plan: StepPlan) -> StepResult:
        for row in plan.ended:
            self.torn.discard(row)
            del self.tags[row], self.requests[row]
        damaged = self.slots.transfer(plan.transfers, self.damage)
        self.slots.copy(plan.copies)
        wrong = plan.transfers[list(damaged), 1]
        for start in plan.started:
            assert start.row not in self.tags, "a row was given away twice"
            self.requests[start.row] = start.request
            self.outputs[start.request.request_id] = start.output_token_ids.tolist()
            known = np.concatenate((start.request.prompt_token_ids, start.output_token_ids))[
                : start.cached_tokens
            ]
            self.tags[start.row] = []
            self._follow(self.tags[start.row], known.tolist())
            if np.isin(plan.block_table[start.row, : -(-len(known) // self.slots.size)], wrong).any():
                self.torn.add(start.row)
        sampled, stopped, first = [], [], 0
        candidates: dict[int, Candidates] = {}
        for i, row in enumerate(plan.rows.tolist()):
            count, computed = int(plan.scheduled[i]), int(plan.computed[i])
            token = self._compute(plan.block_table[row], row, computed, plan.token_ids[first : first + count])
            first += count
            if plan.samples[i] and self.requests[row].sampling.beam is not None:
                candidates[row] = self._candidates(self.tags[row][-1])
                sampled.append(int(candidates[row].token_ids[0]))
                stopped.append(False)
            elif plan.samples[i]:
                name = self.requests[row].request_id
                self.outputs[name].append(token)
                sampled.append(token)
                stopped.append(len(self.outputs[name]) >= self.lengths[name])
        assert first == plan.num_tokens
        return StepResult(
            np.array(sampled, np.int32),
            np.array(stopped, np.bool_),
            candidates=candidates,
            damaged=damaged,
        )

    @staticmethod
    def _candidates(tag: int) -> Candidates:
        """The whole vocabulary: it is smaller than most searches ask for."""
        logprobs = np.array(beam_model.step_logprobs(tag), np.float32)
        order = np.argsort(-logprobs, kind="stable")
        ends = np.array([beam_model.stops(tag, token) for token in order.tolist()], np.bool_)
        return Candidates(order.astype(np.int32), logprobs[order], ends)

    @staticmethod
    def _follow(tags: list[int], tokens: list[int]) -> None:
        tag = tags[-1] if tags else 0
        for token in tokens:
            tag = follow(tag, token)
            tags.append(tag)

    def _compute(self, blocks: np.ndarray, row: int, computed: int, tokens: np.ndarray) -> int:
        tags = self.tags[row]
        if row in self.torn:  # some of its blocks were damaged: from there on it computes again
            self.torn.remove(row)
            assert computed < len(tags)
            del tags[computed:]
        assert len(tags) == computed, "a token was skipped or computed twice"
        assert self.slots.read(blocks, computed) == tags, "the pool does not hold this row's prefix"
        self._follow(tags, tokens.tolist())
        self.slots.write(blocks, computed, tags[computed:])
        return (tags[-1] + (self.requests[row].sampling.seed or 0)) % VOCABULARY
