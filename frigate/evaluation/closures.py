"""Scores the forecast effect of a closed road: how much of the true change is left after subtracting it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Affected nodes change by more than this many vehicles per hour, and by more than this share of the flow before.
AFFECTED_PER_H = 60.0
AFFECTED_SHARE = 0.2

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LeftOfChange:
    """Sum of |true change - forecast change| over sum of |true change|: 1 if the forecast ignores the closure."""

    affected: NDArray[np.bool_]  # [N] scored nodes that change much
    everywhere: float  # at all scored nodes
    at_affected: float  # NaN if there are none


def left_of_change(before: Floats, after: Floats, forecast: Floats, scored: NDArray[np.bool_]) -> LeftOfChange:
    """Score the forecast effect of a closure.

    Parameters
    ----------
    before, after
        [N] true vehicles per hour, means over the hours of the closure.
    forecast
        [N] the forecast change in vehicles per hour.
    scored
        [N] the nodes to score.
    """
    change = after - before
    left = np.abs(change - forecast)
    size = np.abs(change)
    affected = scored & (size > AFFECTED_PER_H) & (size > AFFECTED_SHARE * before)

    def share(nodes: NDArray[np.bool_]) -> float:
        total = float(size[nodes].sum())
        return float(left[nodes].sum()) / total if total > 0 else float("nan")

    return LeftOfChange(affected, share(scored), share(affected))
