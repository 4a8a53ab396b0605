"""How much of the change that a closed road makes is left over when the forecast change is subtracted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

AFFECTED_PER_H, AFFECTED_SHARE = (
    60.0,
    0.2,
)  # vehicles an hour, and of the flow before: nodes that change by more than both

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LeftOfChange:
    """Sums of |true change - forecast change| over those of |true change|: 1 is a forecast that knows of no closure."""

    affected: NDArray[np.bool_]  # [N] scored nodes that change much
    everywhere: float  # at all scored nodes
    at_affected: float  # NaN where there are none


def left_of_change(before: Floats, after: Floats, forecast: Floats, scored: NDArray[np.bool_]) -> LeftOfChange:
    """Score a forecast of what a closure does.

    Parameters
    ----------
    before, after
        [N] true vehicles an hour, as means over the hours of the closure.
    forecast
        [N] the change that was forecast, in vehicles an hour.
    scored
        [N] the nodes to look at.
    """
    change = after - before
    left, size = np.abs(change - forecast), np.abs(change)
    affected = scored & (size > AFFECTED_PER_H) & (size > AFFECTED_SHARE * before)

    def share(nodes: NDArray[np.bool_]) -> float:
        total = float(size[nodes].sum())
        return float(left[nodes].sum()) / total if total > 0 else float("nan")

    return LeftOfChange(affected, share(scored), share(affected))
