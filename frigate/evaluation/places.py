"""How good a model is place by place: against the best simple forecast that is possible there, and by how busy it is.

Without a sensor, only what other places tell can be a simple forecast; with one, also the place's own past.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.split import Split
from frigate.evaluation.metrics import VOLUMES, Scores
from frigate.text import percent

Floats = NDArray[np.float64]
MUCH = 0.8  # of the other's error, or less: much better


@dataclass(frozen=True)
class PlaceSkill:
    """The model's error at each place against that of the best simple forecast possible there."""

    where: str  # "without a sensor" or "at sensors"
    baseline: str
    places: int
    better: float  # percent of the places where the model's error is lower
    much_better: float  # percent where it is at least a fifth lower
    middle: float  # the error over the other's, at the middle place

    def line(self) -> str:
        return (
            f"{self.where.capitalize()}, the error is lower than that of {self.baseline} at {self.better:.0f} % of "
            f"{self.places:,} places, and at the middle one {percent(abs(1 - self.middle))} "
            f"{'lower' if self.middle <= 1 else 'higher'}."
        )


@dataclass(frozen=True)
class VolumeClass:
    """Hourly counts of about the same size."""

    name: str  # vehicles an hour
    hours: int
    good: float  # percent with a GEH below 5
    mean: float  # GEH

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def skill_of_places(
    scores: Mapping[str, Scores], split: Split, *, model: str, possible: Mapping[str, Sequence[str]]
) -> tuple[tuple[PlaceSkill, ...], Floats]:
    """Of each kind of place, and [N] the error of the best simple forecast there; NaN where nothing is compared.

    `possible` names the simple forecasts that can be made "without a sensor" and "at sensors".
    """
    nodes_of = {"without a sensor": split.unseen, "at sensors": split.seen}
    ours = node_means(scores[model], 1)
    beside = np.full(len(ours), np.nan)
    found = []
    for where, names in possible.items():
        nodes = nodes_of[where] & np.isfinite(ours)
        if not names or not nodes.any():
            continue
        errors = {name: node_means(scores[name], 1) for name in names}
        best = min(names, key=lambda name: scores[name].mae_draws(nodes)[0])
        beside[nodes] = errors[best][nodes]
        known = nodes & (errors[best] > 0)
        ratio = ours[known] / errors[best][known]
        if known.any():
            found.append(
                PlaceSkill(
                    where=where,
                    baseline=best,
                    places=int(known.sum()),
                    better=100 * float((ratio < 1).mean()),
                    much_better=100 * float((ratio <= MUCH).mean()),
                    middle=float(np.median(ratio)),
                )
            )
    return tuple(found), beside


def volume_classes(scores: Scores, nodes: NDArray[np.bool_]) -> tuple[VolumeClass, ...]:
    """The hourly counts of some nodes by their size; () for gauges, and where an hour is no whole number of steps."""
    sums = scores.volume_sums[:, :, nodes].sum(2)
    return tuple(
        VolumeClass(name, int(hours), 100 * float(good / hours), float(total / hours))
        for name, (hours, good, total) in zip(VOLUMES, sums.tolist(), strict=True)
        if hours
    )


def node_geh(scores: Scores) -> Floats | None:
    """[N] the mean GEH of each node's hourly counts; None without any."""
    hours, _, total = scores.volume_sums.sum(0)
    if not hours.any():
        return None
    return np.where(hours > 0, total / np.maximum(hours, 1), np.nan)


def node_means(scores: Scores, what: int) -> Floats:
    """[N] mean per cell of one of the sums of `Scores.cell_sums`; NaN if a node has no cells."""
    cells = scores.cell_sums.sum(1)
    return np.where(cells[0] > 0, cells[what] / np.maximum(cells[0], 1), np.nan)
