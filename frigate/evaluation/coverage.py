"""How often intervals hold: by hour and by place, at nodes without a sensor and at sensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.split import windows_in
from frigate.evaluation.metrics import Measure, bootstrap_weights, interval
from frigate.forecasting.forecaster import Forecaster
from frigate.training.promise import LEVEL, Drift, Tally
from frigate.training.run import RunOnCity
from frigate.training.trainer import spread

LEVELS = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0)
MAX_WINDOWS = 48  # of the test period, evenly spaced: places differ far more than hours do

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Coverage:
    """Intervals against the readings of some nodes."""

    share: Measure  # of hours and places inside, in percent; its interval resamples places
    places: int
    nearly_always: float  # percent of the places that are inside at 80 % of the hours or more
    nearly_never: float  # percent of those inside at less than 20 %
    width: float  # mean, in the user's unit
    score: float  # interval score: the width, and what readings outside add; less is better

    def to_json(self) -> dict[str, Any]:
        return {
            "coverage": self.share.to_json(),
            "places": self.places,
            "places_nearly_always": self.nearly_always,
            "places_nearly_never": self.nearly_never,
            "width": self.width,
            "score": self.score,
        }


@dataclass(frozen=True)
class LevelHeld:
    """How often intervals of a level held, in percent of hours and places."""

    level: float
    unseen: float | None
    at_sensors: float | None


@dataclass(frozen=True)
class IntervalScores:
    """The intervals of a run over its test period; None where no reading can be compared."""

    level: float  # in percent
    windows: int
    unseen: Coverage | None
    at_sensors: Coverage | None
    drift: Drift | None = None  # what was promised at sensors; None: nothing, or too little to compare
    calibration: tuple[LevelHeld, ...] = ()  # how often intervals of other levels held

    def to_json(self) -> dict[str, Any]:
        of_nodes = {"unseen": self.unseen, "at_sensors": self.at_sensors}
        found = {name: None if each is None else each.to_json() for name, each in of_nodes.items()}
        drift = None if self.drift is None else self.drift.to_json()
        calibration = [asdict(each) for each in self.calibration]
        return {"level": self.level, "windows": self.windows, **found, "drift": drift, "calibration": calibration}

    def line(self) -> str:
        """How often intervals hold, in one line."""
        of_nodes = {"at nodes without a sensor": self.unseen, "at sensors": self.at_sensors}
        said = []
        for where, each in of_nodes.items():
            if each is not None:
                known = np.isfinite(each.share.low)  # a single place gives no interval
                sure = f" [{each.share.low:.1f}, {each.share.high:.1f}]" if known else ""
                said.append(f"{each.share.value:.1f} %{sure} {where}")
        return f"{self.level:g} % intervals hold {', '.join(said)}." if said else ""


def score_intervals(forecaster: Forecaster, run: RunOnCity, *, level: float, seed: int = 0) -> IntervalScores:
    """Score the intervals of a run with at most MAX_WINDOWS forecasts of the test period."""
    stream = run.city.stream
    task = run.settings.task
    current = spread(windows_in(run.split.test, past=task.past, horizon=task.horizon), MAX_WINDOWS)
    nodes = np.flatnonzero(run.split.seen | run.split.unseen)
    sensor = run.split.seen[nodes]
    number = np.cumsum(sensor) - 1
    intervals = run.run.require_intervals(level)
    levels = [each for each in LEVELS if intervals.allows(each)]
    parts, tallies, held = [], [], np.zeros((len(levels), len(nodes)))
    for snapshot in current.tolist():
        values = forecaster.values(np.array([snapshot]))[0]
        all_cells, there = forecaster.cells(snapshot, values)
        known_cells, sensors_here = all_cells.of_nodes(nodes), there[nodes]
        lower, upper, _ = intervals.band(known_cells, sensors_here, level)
        ahead = slice(snapshot + 1, snapshot + 1 + task.horizon)
        truth = stream.values[ahead, nodes]
        known = stream.observed[ahead, nodes] & np.isfinite(upper)
        held += (intervals.held(known_cells, sensors_here, truth.astype(np.float64), levels) & known).sum(1)
        outside = np.maximum(lower - truth, 0) + np.maximum(truth - upper, 0)
        width = upper - lower
        sums = (known, known & (outside == 0), width, width + 2 / (1 - level / 100) * outside)
        parts.append(np.stack([np.where(known, each, 0).sum(0) for each in sums]))
        where = np.nonzero(known & sensor)
        of_node, count = number[where[1]], int(sensor.sum())
        tallies.append(Tally.of(values[:, nodes][where], truth[where], lower[where], upper[where], of_node, count))
    sums_of = np.asarray(np.sum(parts, axis=0, dtype=np.float64)) if parts else np.zeros((4, len(nodes)))
    unseen, seen = (_coverage(sums_of[:, of[nodes]], seed) for of in (run.split.unseen, run.split.seen))
    promise = intervals.promise if level == LEVEL else None
    drift = Drift.of(promise, sum(tallies[1:], tallies[0])) if tallies else None
    kinds = [sums_of[0, of[nodes]].sum() for of in (run.split.unseen, run.split.seen)]
    shares = [held[:, of[nodes]].sum(1) for of in (run.split.unseen, run.split.seen)]
    calibration = tuple(
        LevelHeld(
            each,
            *(100 * float(share[k] / cells) if cells else None for share, cells in zip(shares, kinds, strict=True)),
        )
        for k, each in enumerate(levels)
    )
    return IntervalScores(float(level), len(current), unseen, seen, drift, calibration)


def _coverage(sums: NDArray[np.float64], seed: int) -> Coverage | None:
    """Of nodes with [4,n] sums: cells, cells inside, width and score."""
    sums = sums[:, sums[0] > 0]
    if not sums.size:
        return None
    cells, inside, width, score = sums
    weights = bootstrap_weights(len(cells), seed=seed)
    draws = 100 * (weights @ inside) / (weights @ cells)
    share = inside / cells
    return Coverage(
        share=interval(100 * float(inside.sum() / cells.sum()), draws),
        places=len(cells),
        nearly_always=100 * float((share >= 0.8).mean()),
        nearly_never=100 * float((share < 0.2).mean()),
        width=float(width.sum() / cells.sum()),
        score=float(score.sum() / cells.sum()),
    )
