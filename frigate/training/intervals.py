"""How sure a run's forecasts are: intervals that hold at places nobody measures, and at sensors.

Fitted once, when training is over, to forecasts of sensors that were left out in turn (`out_of_fold`), and stored with
the run. A predictive distribution says how wide a forecast is relative to others (`predictive`); how far out intervals
must reach on its scale comes from the sensors' scores (`conformal`), in groups of cells: how busy, and how sure demand
is. N nodes, H steps ahead, K hourly bins, W parts of a week, n seen nodes of the run, G groups.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import between_bins, week_parts
from frigate.config import is_a, made_of, require
from frigate.demand.estimate import Demand
from frigate.demand.tables import NEW_ROADS, usual_flow
from frigate.errors import SettingsError
from frigate.training.conformal import ScoreTable, highest_level, least_sensors
from frigate.training.predictive import (
    Cells,
    CountLaw,
    GaugeLaw,
    Law,
    fit_counts,
    fit_gauges,
)
from frigate.training.promise import Promise

DEFAULT_LEVEL = 90.0  # percent: of stored forecasts, evaluations and pages
BUSY_GROUPS = 6  # of cells, by the size that is expected
CLOSURE = 0.5  # of a predicted change is in doubt where no closure is on record: simulated closures, docs/intervals.md
CLOSURES = np.arange(0, 2.05, 0.1)  # values to choose from where there are
CLOSURE_LEVEL = 90.0
OWN_PRIOR = 24  # usual cells that a sensor's own errors are added to

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]


def parse_level(level: float) -> float:
    """A level in percent; SettingsError if it is none."""
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0 < level < 100:
        raise SettingsError(f"level = {level!r}: give a percentage above 0 and below 100, such as 90")
    if level < 1:
        raise SettingsError(f"level = {level:g}: that is {level:g} percent. Did you mean {100 * level:g}?")
    return float(level)


@dataclass(frozen=True)
class Surroundings:
    """What is known of each node besides its forecasts."""

    sensor: NDArray[np.bool_]  # [N] has readings that the model knows
    usual: NDArray[np.float32] | None  # [K,N] usual flow; None without demand
    week: NDArray[np.float32] | None  # [W,N] its factor in each part of the week
    spread: Floats  # [N]
    hops: Ints  # [N] roads to the nearest sensor
    own: Floats  # [N] see `Cells`
    step_s: int

    @classmethod
    def of(
        cls, sensors: NDArray[np.bool_], hops: Ints, demand: Demand | None, *, step_s: int, own: Floats | None = None
    ) -> Surroundings:
        """Of the nodes that `sensors` [N] are read at. `hops` are to the nearest of them."""
        known = sensors if demand is None else sensors & demand.sensors
        return cls(
            sensor=known,
            usual=None if demand is None else usual_flow(demand),
            week=None if demand is None else demand.week,
            spread=np.zeros(len(sensors)) if demand is None else np.where(known, 0, demand.node_spread),
            hops=hops,
            own=np.zeros(len(sensors)) if own is None else np.where(known, own, 0),
            step_s=step_s,
        )

    def cells(self, forecast: Floats, clock: Ints, rerouted: Floats, *, first_step: int = 1) -> Cells:
        """The cells of a forecast [H,N], with local times [H,3] and flow on the roads then over usual flow [H,N]."""
        usual = forecast
        if self.usual is not None and self.week is not None:
            first, second, share = between_bins(clock, self.step_s)
            usual = (1 - share[:, None]) * self.usual[first] + share[:, None] * self.usual[second]
            usual = usual * self.week[week_parts(clock, self.step_s)] * rerouted
        step = first_step + np.arange(len(forecast))[:, None]
        return Cells(forecast, usual, self.spread, self.hops, step, rerouted, self.own)


@dataclass(frozen=True)
class Calibration:
    """Intervals of one kind of node: without a sensor, or with one."""

    law: Law
    edges: NDArray[np.float64]  # [B-1] of the sizes, between busy groups
    sureness: NDArray[np.float64] | None  # [B] the spread that divides each busy group: sure, then unsure
    scores: ScoreTable  # G is B, or 2 B

    def groups(self, cells: Cells) -> Ints:
        busy = np.asarray(np.searchsorted(self.edges, self.law.size(cells)))
        if self.sureness is None:
            return busy
        return np.asarray(2 * busy + (np.broadcast_to(cells.spread, busy.shape) > self.sureness[busy]))

    def band(self, cells: Cells, level: float) -> tuple[Floats, Floats]:
        return self.law.band(cells, self.scores.quantile(level)[self.groups(cells)])

    def held(self, cells: Cells, truth: Floats, levels: Sequence[float]) -> NDArray[np.bool_]:
        """[L,n] whether the true values of flat cells are in their intervals at each of these levels."""
        score, group = self.law.score(cells, truth), self.groups(cells)
        within = np.stack([score <= self.scores.quantile(level)[group] for level in levels])
        return within | (truth == np.rint(cells.forecast)) if isinstance(self.law, CountLaw) else within

    def borrows(self, cells: Cells, level: float) -> NDArray[np.bool_]:
        """The cells whose group has too few sensors of its own for this level."""
        return np.asarray(self.scores.borrows(level)[self.groups(cells)])


@dataclass(frozen=True)
class Intervals:
    """Intervals of a run's forecasts, at any level."""

    places: Calibration  # without a sensor
    sensors: Calibration | None  # None: no sensor has readings to calibrate with
    own: NDArray[np.float64]  # [n] see `Cells`; of the seen nodes of the run
    promise: Promise | None = None  # at sensors; None: too few readings to promise anything

    def band(self, cells: Cells, sensor: NDArray[np.bool_], level: float) -> tuple[Floats, Floats, tuple[str, ...]]:
        """The lower and upper ends [H,N] of a forecast's intervals at this level in percent, and notices.

        NaN where there is no forecast.
        """
        level = self.checked(level)
        shape = cells.forecast.shape
        lower = np.full(shape, np.nan)
        upper = np.full(shape, np.nan)
        there = np.isfinite(cells.forecast)
        borrowing = 0
        for calibration, where in self._kinds(there, np.broadcast_to(sensor, shape)):
            some = cells.take(where)
            lower[where], upper[where] = calibration.band(some, level)
            if calibration is self.places:
                alone = np.zeros(shape, bool)
                alone[where] = calibration.borrows(some, level)
                borrowing = int(alone.any(axis=tuple(range(alone.ndim - 1))).sum())
        return lower, upper, self._notices(borrowing, level)

    def held(
        self, cells: Cells, sensor: NDArray[np.bool_], truth: Floats, levels: Sequence[float]
    ) -> NDArray[np.bool_]:
        """[L,H,N] whether these true values are in the intervals of a forecast at each of these levels in percent."""
        shape = cells.forecast.shape
        found = np.zeros((len(levels), *shape), bool)
        for calibration, where in self._kinds(np.isfinite(cells.forecast), np.broadcast_to(sensor, shape)):
            found[:, where] = calibration.held(cells.take(where), truth[where], levels)
        return found

    def checked(self, level: float) -> float:
        """The level; SettingsError if the sensors are too few for it."""
        level = parse_level(level)
        count = self._count()
        if not self.allows(level):
            raise SettingsError(
                f"level = {level:g}: the run's {count} sensors give at most {math.floor(highest_level(count))} %. "
                f"Give a lower level, or train with at least {least_sensors(level)} sensors"
            )
        return level

    def allows(self, level: float) -> bool:
        """Whether there are enough sensors for this level, in percent."""
        return self._count() >= least_sensors(level)

    def _count(self) -> int:
        return min(each.scores.all_sensors for each in (self.places, self.sensors) if each is not None)

    def _kinds(
        self, there: NDArray[np.bool_], sensor: NDArray[np.bool_]
    ) -> list[tuple[Calibration, NDArray[np.bool_]]]:
        if self.sensors is None:
            return [(self.places, there)]
        return [(self.places, there & ~sensor), (self.sensors, there & sensor)]

    def _notices(self, borrowing: int, level: float) -> tuple[str, ...]:
        if not borrowing:
            return ()
        return (
            f"fewer than {least_sensors(level)} sensors are like {borrowing:,} of the nodes: their intervals rest on "
            "sensors of all kinds.",
        )

    @property
    def version(self) -> str:
        """Another one with any other numbers."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        sensors = None if self.sensors is None else _calibration_json(self.sensors)
        return {
            "places": _calibration_json(self.places),
            "sensors": sensors,
            "own": [float(f"{each:.3g}") for each in self.own.tolist()],
            "promise": None if self.promise is None else asdict(self.promise),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], *, nodes: int, quantity: str) -> Intervals:
        """Intervals of a run with this many seen nodes; an error that says what is wrong."""
        names = {"places", "sensors", "own", "promise"}
        require(set(data) == names, "intervals", list(data), f"give {', '.join(sorted(names))}")
        own = _numbers(data["own"], "own", nodes)
        places = _read_calibration(data["places"], quantity)
        sensors = None if data["sensors"] is None else _read_calibration(data["sensors"], quantity)
        promise = None if data["promise"] is None else Promise.from_json(data["promise"])
        return cls(places, sensors, own, promise)


def fit_intervals(
    left_out: tuple[Cells, Floats, Ints],
    read: tuple[Cells, Floats, Ints],
    *,
    nodes: int,
    quantity: str,
) -> Intervals | None:
    """Intervals from sensors that were left out of the forecast, and from those that were read.

    Each has flat cells, the true values, and the number of each cell's sensor among the run's seen nodes. None: there
    is nothing to calibrate with.
    """
    if len(left_out[1]) == 0:
        return None
    places = _calibrate(*left_out, quantity=quantity, divided=True)
    own = np.zeros(nodes)
    sensors = None
    if len(read[1]):
        first = _calibrate(*read, quantity=quantity, divided=False)
        cells, truth, sensor = read
        for row in np.unique(sensor).tolist():
            at = np.flatnonzero(sensor == row)
            own[row] = _short(first.law.own(cells.take(at), truth[at], OWN_PRIOR))
        cells = replace(cells, own=own[sensor])
        sensors = _calibrate(cells, truth, sensor, quantity=quantity, divided=False, law=first.law)
    return Intervals(places, sensors, own)


def _calibrate(
    cells: Cells, truth: Floats, sensor: Ints, *, quantity: str, divided: bool, law: Law | None = None
) -> Calibration:
    changed = np.abs(np.log(np.clip(cells.rerouted, 1e-2, 1e2))) > NEW_ROADS
    usual = np.flatnonzero(~changed) if (~changed).any() else np.arange(len(truth))
    some = cells.take(usual)
    values = truth[usual]
    of = sensor[usual]
    if law is None:
        _, which, count = np.unique(of, return_inverse=True, return_counts=True)
        weight = 1 / count[which]
        law = fit_counts(some, values, weight, closure=0.0) if quantity == "count" else fit_gauges(some, values, weight)
    size = law.size(some)
    quantiles = np.quantile(size, np.arange(1, BUSY_GROUPS) / BUSY_GROUPS)
    edges: NDArray[np.float64] = np.unique([_short(edge) for edge in quantiles])
    busy = np.searchsorted(edges, size)
    sureness: NDArray[np.float64] | None = None
    if divided:
        middle = [np.median(some.spread[busy == b]) if (busy == b).any() else 0.0 for b in range(len(edges) + 1)]
        sureness = np.array([_short(each) for each in middle])
    made = Calibration(law, edges, sureness, _no_scores())
    groups = (len(edges) + 1) * (1 if sureness is None else 2)
    made = replace(made, scores=ScoreTable.of(law.score(some, values), of, made.groups(some), groups))
    if isinstance(law, GaugeLaw):
        return made
    closure = _closure(made, law, cells.take(changed), truth[changed], sensor[changed])
    return replace(made, law=replace(law, closure=closure))


def _closure(made: Calibration, law: CountLaw, cells: Cells, truth: Floats, sensor: Ints) -> float:
    """The least doubt of the change with which the cells on changed roads are covered as often as they should be."""
    _, which, count = np.unique(sensor, return_inverse=True, return_counts=True)
    if len(count) < least_sensors(CLOSURE_LEVEL):
        return CLOSURE
    weight = 1 / (count[which] * (len(count) + 1))
    reach = made.scores.quantile(CLOSURE_LEVEL)[made.groups(cells)]
    for closure in CLOSURES.tolist():
        inside = replace(law, closure=closure).score(cells, truth) <= reach
        if weight[inside].sum() >= CLOSURE_LEVEL / 100:
            break
    return float(round(closure, 1))


def _short(number: float) -> float:
    """Three digits: a group's border is no cell's own number, which rounding would put on either side of it."""
    return float(f"{number:.3g}")


def _no_scores() -> ScoreTable:
    nothing = np.zeros(0, np.int64)
    return ScoreTable.of(np.zeros(0), nothing, nothing, 0)


def _calibration_json(calibration: Calibration) -> dict[str, Any]:
    scores = calibration.scores
    return {
        "law": asdict(calibration.law),
        "edges": calibration.edges.tolist(),
        "sureness": None if calibration.sureness is None else calibration.sureness.tolist(),
        "score": scores.score.tolist(),
        "share": np.round(scores.share, 5).tolist(),
        "share_of_all": np.round(scores.share_of_all, 5).tolist(),
        "sensors": scores.sensors.tolist(),
        "all_sensors": scores.all_sensors,
    }


def _read_calibration(data: dict[str, Any], quantity: str) -> Calibration:
    names = {"law", "edges", "sureness", "score", "share", "share_of_all", "sensors", "all_sensors"}
    require(set(data) == names, "calibration", list(data), f"give {', '.join(sorted(names))}")
    stored = {name: tuple(value) if isinstance(value, list) else value for name, value in data["law"].items()}
    law: Law = made_of(CountLaw, stored) if quantity == "count" else made_of(GaugeLaw, stored)
    edges = _numbers(data["edges"], "edges")
    score = _numbers(data["score"], "score")
    for name, values in (("edges", edges), ("score", score)):
        require(bool((np.diff(values) > 0).all()), name, data[name], "must increase")
    groups = len(edges) + 1
    sureness = None if data["sureness"] is None else _numbers(data["sureness"], "sureness", groups)
    groups *= 1 if sureness is None else 2
    require(len(data["share"]) == groups, "share", len(data["share"]), f"give {groups}")
    share = np.stack([_read_shares(row, len(score)) for row in data["share"]])
    counts = [*data["sensors"], data["all_sensors"]]
    ok = len(counts) == groups + 1 and all(is_a(each, "int") and each >= 0 for each in counts)
    require(ok, "sensors", counts, "give whole numbers")
    require(counts[-1] == max(1, *counts), "all_sensors", counts[-1], "must be the largest, and at least 1")
    of_all = _read_shares(data["share_of_all"], len(score))
    return Calibration(
        law, edges, sureness, ScoreTable(score, share, of_all, np.array(counts[:-1], np.int64), counts[-1])
    )


def _read_shares(values: Any, count: int) -> NDArray[np.float64]:
    shares = _numbers(values, "share", count)
    ok = ((shares >= 0) & (shares <= 1)).all() and (np.diff(shares) >= 0).all()
    require(bool(ok), "share", values, "must increase from 0 to 1")
    return shares


def _numbers(values: Any, name: str, count: int | None = None) -> NDArray[np.float64]:
    ok = isinstance(values, list) and all(is_a(each, "float") for each in values)
    require(ok and count in (None, len(values)), name, str(values)[:60], "give a list of numbers")
    return np.array(values, np.float64)
