"""From measured steps to a ``FittedProfile``: least squares with coefficients that cannot be negative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ConfigError
from octavo.simulation.cost_model import FittedProfile
from octavo.simulation.features import PlanFeatures

TERMS = ("constant", "tokens", "sequences", "kv_tokens", "pairs")
"""Terms that are fitted by default. ``sampled`` and ``copied_blocks`` hardly vary on their own in a measurement."""
KNOTS = (8, 32, 128)
"""A step's linear layers cost the same up to some number of tokens (the weights are read anyway) and then more with
each: a rising, convex curve, which hinges at these token counts follow wherever its bend is."""


def non_negative_least_squares(
    matrix: NDArray[np.float64], target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The x >= 0 that minimises |matrix x - target| (Lawson and Hanson's active sets); float64 [columns]."""
    columns = matrix.shape[1]
    x = np.zeros(columns)
    passive = np.zeros(columns, np.bool_)
    tolerance = 1e-12 * max(float(np.abs(matrix.T @ target).max(initial=0.0)), 1e-300)
    for _ in range(30 * columns):
        gradient = matrix.T @ (target - matrix @ x)
        if passive.all() or float(gradient[~passive].max()) <= tolerance:
            break
        passive[int(np.where(passive, -np.inf, gradient).argmax())] = True
        while True:
            trial = np.zeros(columns)
            trial[passive] = np.linalg.lstsq(matrix[:, passive], target, rcond=None)[0]
            if (trial[passive] > 0).all():
                break
            blocking = passive & (trial <= 0)
            step = float((x[blocking] / np.maximum(x[blocking] - trial[blocking], 1e-300)).min())
            x = x + step * (trial - x)
            passive &= x > 1e-15
            x[~passive] = 0.0
            if not passive.any():
                break
        x = trial
    return x


def columns(steps: Sequence[PlanFeatures], terms: Sequence[str], knots: Sequence[int]) -> NDArray[np.float64]:
    """float64 [steps, terms + knots]."""
    table = np.array(steps, np.float64).reshape(-1, len(PlanFeatures._fields))
    by_name = {"constant": np.ones(len(table)), **dict(zip(PlanFeatures._fields, table.T, strict=True))}
    over = [np.maximum(by_name["tokens"] - knot, 0.0) for knot in knots]
    return np.stack([*(by_name[term] for term in terms), *over], axis=1)


def fit(
    name: str,
    source: str,
    measured: Sequence[tuple[PlanFeatures, float]],
    *,
    terms: Sequence[str] = TERMS,
    knots: Sequence[int] = KNOTS,
) -> FittedProfile:
    """Fit (step, seconds) rows. Relative errors count, so that short steps, of which there are most, fit as well.

    Raises ConfigError for fewer rows than coefficients or a time that is not above 0.
    """
    if len(measured) < len(terms) + len(knots):
        raise ConfigError(
            f"{len(measured)} measured steps cannot fix {len(terms) + len(knots)} coefficients",
            param="--profile",
        )
    seconds = np.array([second for _, second in measured])
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise ConfigError("a measured step took no time or no finite one", param="--profile")
    matrix = columns([step for step, _ in measured], terms, knots) / seconds[:, None]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)  # terms differ by ten orders of magnitude
    found = non_negative_least_squares(matrix / scale, np.ones(len(seconds))) / scale
    names = [*terms, *(f"tokens_over_{knot}" for knot in knots)]
    error = float(np.abs(matrix @ found - 1.0).mean())
    return FittedProfile(
        name, source, dict(zip(names, found.tolist(), strict=True)), len(measured), error, tuple(knots)
    )
