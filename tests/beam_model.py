"""A beam search over the "model" of ``memory_model``, as plain as possible: lists of tokens, no rows, no blocks.

The rules are those of transformers (which the golden values check on a real model) and, for groups, the formula of
diverse beam search (Vijayakumar et al. 2016): a group takes the best by log-probability + strength x dissimilarity,
dissimilarity being minus the number of earlier groups' beams that have the token at this step.
"""

from __future__ import annotations

import numpy as np

from memory_model import follow
from octavo.core.beam_params import BeamParams

VOCABULARY = 3


def step_logprobs(tag: int) -> list[float]:
    """Of each token after a prefix; float32 numbers, no two alike but by chance."""
    return [
        float(np.float32(-((follow(tag, token) * 7919 % 9973) + 1) / 2500)) for token in range(VOCABULARY)
    ]


def stops(tag: int, token: int) -> bool:
    """Whether an answer ends with this token."""
    return token == 2 and follow(tag, token) % 3 == 0


def tag_of(tokens: list[int]) -> int:
    tag = 0
    for token in tokens:
        tag = follow(tag, token)
    return tag


def expected_beams(
    prompt: list[int], beam: BeamParams, max_tokens: int, n: int
) -> list[tuple[list[int], float]]:
    """(tokens, score) of the n best, best first."""
    per_group = beam.width // beam.groups
    running: list[list[tuple[list[int], float]]] = [[([], 0.0)] for _ in range(beam.groups)]
    finished: list[list[tuple[float, list[int]]]] = [[] for _ in range(beam.groups)]
    for length in range(1, max_tokens + 1):
        used: list[int] = []
        for group in range(beam.groups):
            options = []
            for rank, (tokens, logprob) in enumerate(running[group]):
                tag = tag_of(prompt + tokens)
                for token, step in enumerate(step_logprobs(tag)):
                    total = logprob + step
                    key = (-(total - beam.diversity_penalty * used.count(token)), rank, -step, token)
                    options.append((key, [*tokens, token], total, stops(tag, token)))
            options.sort()
            ends = [place for place, option in enumerate(options) if option[3] or length == max_tokens]
            for place in ends:
                if place < per_group:
                    _, tokens, total, _ = options[place]
                    finished[group].append((total / length**beam.length_penalty, tokens))
            finished[group] = sorted(finished[group], key=lambda one: -one[0])[:per_group]
            on = [(option[1], option[2]) for place, option in enumerate(options) if place not in ends]
            running[group] = on[:per_group]
            if running[group] and len(finished[group]) == per_group:
                far = beam.early_stopping == "never" and beam.length_penalty > 0
                hope = running[group][0][1] / (max_tokens if far else length) ** beam.length_penalty
                if beam.early_stopping is True or hope <= finished[group][-1][0]:
                    running[group] = []
            used += [tokens[-1] for tokens, _ in running[group]]
    pooled = sorted((one for group in finished for one in group), key=lambda one: -one[0])
    return [(tokens, score) for score, tokens in pooled[:n]]
