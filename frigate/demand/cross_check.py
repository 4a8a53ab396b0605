"""What the other sensors say of one: the count that they expect there, and which counts they contradict.

Each sensor is estimated as a place without one, from trips calibrated to the other sensors and, with enough of them,
from the sensors around it (`levels`) and those with the same course of the day and the same chance in their counts:
neither depends on what the counts are multiplied by. Counted and expected are compared in logarithms. How far apart
they usually are is told by most of the sensors, too high and too low separately, so that a few broken ones do not hide
themselves. Sensors that are contradicted are left out and the others asked again, until the same ones are left out
twice.

n sensors, N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from frigate.demand.calibration import SensorView
from frigate.demand.count_profiles import week_mean
from frigate.demand.estimate import trip_flows, trip_levels
from frigate.demand.levels import MIN_SENSORS as MIN_SENSORS_AROUND
from frigate.demand.levels import Estimates, left_out_levels
from frigate.demand.settings import DemandSettings

if TYPE_CHECKING:
    from frigate.demand.trip_model import TripModel

ASKED_WITH = DemandSettings(sets=4)
MIN_SENSORS = 12  # fewer say too little of one another
FOLDS = 8  # parts of the sensors, each estimated from the other parts
ROUNDS = 6
OFFSET = 0.1  # of the mean count, added before the logarithm: how much a quiet street counts
TOP = 0.95  # of the counts: those above do not count in that mean
RHYTHMS = 5  # components of the course of the day
LITTLE = 0.02  # of the mean, added before the logarithm of the course of the day
WITHIN = 4.0  # standard deviations that are told apart
MIDDLE = 0.8  # of the sensors that are too high, and too low: the others may be broken
MIDDLE_SPREADS = 1.2816  # standard deviations that 80 % of a half are within
REACH = 6.0  # median absolute deviations of the logarithms of the counts
FAR_SPREADS = 6.0  # standard deviations from which a count is contradicted
FAR_FACTOR = 5.0  # and the factor
NOTHING_COUNTED = 0.6  # of both: a sensor that only ever counts 0 is likelier to be broken

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class CrossCheck:
    """Each sensor against what the others say of it."""

    rows: Ints  # [n] the sensors
    counted: Floats  # [n] mean over the week, vehicles per step
    expected: Floats  # [n] the same according to the others
    suspicion: Floats  # [n] how far apart, in usual differences: above 0 if too high
    contradicted: Bools  # [n] too far for the sensor to be used
    influence: Floats  # [n] share of all vehicles, summed over the nodes, whose number rests on this sensor


def cross_check(trips: TripModel, sensors: Bools, *, roughness: Floats, unfit: Bools | None = None) -> CrossCheck:
    """Ask the sensors [N] about one another. Those that are `unfit` [N] are not asked.

    `roughness` [N] is as from `count_profiles.roughness`.
    """
    usual = trips.usual(sensors).astype(np.float64)
    rows = np.flatnonzero(np.isfinite(usual).all(0))
    counted = np.asarray(week_mean(usual)[rows], np.float64)
    fit = np.ones(len(rows), bool) if unfit is None else ~unfit[rows]
    if fit.sum() < MIN_SENSORS:
        nothing = np.zeros(len(rows))
        unknown = np.full(len(rows), np.nan)
        return CrossCheck(rows, counted, unknown, nothing, nothing > 0, _influence(trips, rows, fit))
    own = _own(usual, rows, roughness)
    near = fit & _within_reach(counted, fit)  # those that are not are asked about, but at first have no say
    kept = near if near.sum() >= MIN_SENSORS else fit
    asked = _ask(trips, rows, counted, kept, own)
    for _ in range(ROUNDS - 1):
        others = fit & ~asked.contradicted
        if np.array_equal(others, kept) or others.sum() < MIN_SENSORS:
            break
        kept = others
        asked = _ask(trips, rows, counted, kept, own)
    return replace(asked, influence=_influence(trips, rows, kept))


def _within_reach(counted: Floats, fit: Bools) -> Bools:
    """[n] the sensors whose counts are not far from all others': such a one would spoil what the others say."""
    logs = np.log(np.maximum(counted, 1e-9))
    some = logs[fit & (counted > 0)]
    if not len(some):
        return fit
    middle = float(np.median(some))
    usual = max(float(np.median(np.abs(some - middle))), 0.1)
    return np.abs(logs - middle) < REACH * usual


def _ask(trips: TripModel, rows: Ints, counted: Floats, kept: Bools, own: Floats) -> CrossCheck:
    """Estimate every sensor from those that are kept, other than itself."""
    offset = OFFSET * float(np.minimum(counted[kept], np.quantile(counted[kept], TOP)).mean())
    held_out = _held_out(trips, rows[kept])
    if kept.sum() >= MIN_SENSORS_AROUND and trips.places is not None and counted[kept].any():
        around = left_out_levels(
            trips.places,
            rows[kept],
            counted[kept],
            held_out,
            asked=rows,
            own=own,
            offset=offset,
            keys=trips.graph.node_key,
        )
        expected, spread = around.mean, around.spread
    else:
        expected = np.log(held_out.level[rows] + offset)
        spread = np.ones(len(rows))
    apart = np.log(counted + offset) - expected
    apart = apart - np.median(apart[kept])
    suspicion = _in_usual_differences(apart / spread, kept)
    strict = np.where(counted > 0, 1.0, NOTHING_COUNTED)
    far = (np.abs(suspicion) > strict * FAR_SPREADS) & (np.abs(apart) > strict * np.log(FAR_FACTOR))
    far &= held_out.level[rows] > 0  # of a place that no trip passes on the usual roads, they can say nothing
    level = np.maximum(np.exp(np.log(counted + offset) - apart) - offset, 0)
    return CrossCheck(rows, counted, level, suspicion, far, np.zeros(len(rows)))


def _influence(trips: TripModel, rows: Ints, kept: Bools) -> Floats:
    """[n] vehicles times nodes that each sensor stands for: those that pass several sensors are split between them."""
    found = np.zeros(len(rows))
    sensors = np.zeros(trips.network.num_nodes, bool)
    sensors[rows[kept]] = True
    if not kept.any():
        return found
    usual = trips.usual(sensors)
    for one in trips.sets:
        view = SensorView.of(one.through_node, sensors)
        passed = trip_flows(view, week_mean(usual)[sensors], trips.settings) * np.asarray(one.through_node.sum(axis=1))
        stood_for = view.by_sensor @ (passed * view.per_trip[:, 0])
        found[kept] += stood_for / max(float(passed.sum()), 1e-9) / len(trips.sets)
    return found


def _own(usual: Floats, rows: Ints, roughness: Floats) -> Floats:
    """[N,C] what each sensor's counts say of it, whatever they are multiplied by: course of the day, and chance."""
    means = np.maximum(week_mean(usual)[rows], 1e-9)
    course = np.log(usual[:, rows] / means + LITTLE)
    course = course - course.mean(0)
    _, _, components = np.linalg.svd(course - course.mean(1, keepdims=True), full_matrices=False)
    rough = roughness[rows]
    some = np.where(np.isfinite(rough), rough, np.nanmedian(rough) if np.isfinite(rough).any() else 1)
    logs = np.log(some + 1e-3)
    columns = [*(components[:RHYTHMS] * np.sqrt(len(rows))), (logs - logs.mean()) / max(float(logs.std()), 1e-6)]
    own = np.zeros((usual.shape[1], len(columns)))
    counts = means > 1e-9  # of the others nothing is known
    own[rows[counts]] = np.clip(np.stack(columns, axis=1), -WITHIN, WITHIN)[counts]
    return own


def _in_usual_differences(apart: Floats, kept: Bools) -> Floats:
    """Differences against the usual ones: too high and too low are apart, since counts are skewed."""
    suspicion = np.zeros(len(apart))
    for side in (apart > 0, apart <= 0):
        usual = np.abs(apart[side & kept])
        if len(usual):
            one = float(np.quantile(usual, MIDDLE)) / MIDDLE_SPREADS
            suspicion[side] = apart[side] / max(one, 1e-6)
    return suspicion


def _held_out(trips: TripModel, rows: Ints) -> Estimates:
    """What the trips say of each node; at a sensor of `rows`, from a part of the sensors without it."""
    sensors = np.zeros(trips.network.num_nodes, bool)
    sensors[rows] = True
    whole = trip_levels(trips.sets, trips.usual(sensors), trips.settings)
    level = whole.level.astype(np.float64)
    spread = whole.spread.astype(np.float64)
    rows = rows[np.argsort(trips.graph.node_key[rows], kind="stable")]
    for fold in range(FOLDS):
        hidden = rows[fold::FOLDS]
        visible = sensors.copy()
        visible[hidden] = False
        without = trip_levels(trips.sets, trips.usual(visible), trips.settings)
        level[hidden], spread[hidden] = without.level[hidden], without.spread[hidden]
    return Estimates(level, spread)
