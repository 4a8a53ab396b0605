"""Usual counts of each sensor, by kind of day and hour.

Counts are of one step. A snapshot that is longer than an hour tells of every hour that it covers (`bins_told_of`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import BINS, HOURS, PART_S, WEEK_PARTS, between_bins, bins_told_of, week_parts
from frigate.city.split import Period
from frigate.city.stream import RoadNetworkStream
from frigate.demand.calibration import Floats
from frigate.errors import CityError

DAYS_AS_USUAL = 4.0  # that a sensor's part of the week begins with, against the days that it was counted on
TINY = 1e-4  # lower bound on flows, against division by zero and log(0)
DAYS = np.repeat([5.0, 2.0], HOURS)  # [K] days in a week on which each hour of a weekday or weekend occurs


def week_mean(hourly: Floats) -> Floats:
    """[N] the weekly mean, from means by kind of day and hour [K,N]."""
    mean: Floats = DAYS @ hourly / DAYS.sum()
    return mean


def usual_counts(
    stream: RoadNetworkStream, sensors: NDArray[np.bool_], period: Period | None = None
) -> NDArray[np.float64]:
    """The mean count [K,N] of each sensor by kind of day and hour; NaN where there are no readings."""
    if stream.quantity != "count":
        raise CityError(f'demand is estimated from counts; this city measures "{stream.quantity}"')
    first, stop = period or (0, stream.num_snapshots)
    rows = np.flatnonzero(sensors)
    values = stream.values[first:stop, rows].astype(np.float64)
    observed = stream.usual_readings(first, stop)[:, rows]
    told_of = bins_told_of(stream.wall_clock[first:stop], stream.step_s)
    hourly = np.full((BINS, stream.num_nodes), np.nan)
    for b in np.flatnonzero(told_of.any(0)):
        at = told_of[:, b]
        count = observed[at].sum(0)
        total = np.where(observed[at], values[at], 0).sum(0)
        hourly[b, rows[count > 0]] = (total / np.maximum(count, 1))[count > 0]
    return hourly


def fill_empty_hours(hourly: Floats) -> Floats:
    """[K,N] usual counts, with a value in every hour for each node that has one in any; other nodes stay NaN.

    An hour without readings gets the node's mean times the profile of all nodes in the table: pass only those that
    whatever is made of it may know of.
    """
    known = np.isfinite(hourly)
    means = np.where(known, hourly, 0)
    weights = DAYS[:, None] * known
    level = (weights * means).sum(0) / np.maximum(weights.sum(0), TINY)
    # Each hour's count relative to the mean, over the nodes with readings in that hour; 1 if there are none.
    profile = means.sum(1) / np.maximum((level * known).sum(1), TINY)
    profile[~known.any(1)] = 1.0
    filled: Floats = np.where(known, hourly, level * profile[:, None])
    filled[:, ~known.any(0)] = np.nan
    return filled


def usual_week(
    stream: RoadNetworkStream, sensors: NDArray[np.bool_], usual: Floats, period: Period | None = None
) -> NDArray[np.float32]:
    """[W,N] counts of each sensor in each part of the week, against its usual counts [K,N]; NaN where unknown.

    Saturday is not Sunday, and Friday evening is no weekday's. A few days say little, so they count beside
    DAYS_AS_USUAL days with the usual counts.
    """
    first, stop = period or (0, stream.num_snapshots)
    rows = np.flatnonzero(sensors)
    clock = stream.wall_clock[first:stop]
    low, high, share = between_bins(clock, stream.step_s)
    week = np.full((WEEK_PARTS, stream.num_nodes), np.nan, np.float32)
    parts = week_parts(clock, stream.step_s)
    table = usual[:, rows]
    observed = stream.usual_readings(first, stop)[:, rows]
    for part in np.unique(parts):
        at = np.flatnonzero(parts == part)
        expected = table[low[at]] + share[at, None] * (table[high[at]] - table[low[at]])
        known = observed[at] & np.isfinite(expected)
        counted = np.where(known, stream.values[first + at][:, rows], 0).sum(0)
        usually = np.where(known, expected, 0).sum(0)
        days = known.sum(0) * min(stream.step_s, PART_S) / PART_S
        factor = (days * counted / np.maximum(usually, TINY) + DAYS_AS_USUAL) / (days + DAYS_AS_USUAL)
        week[part, rows] = np.where(usually > 0, factor, np.nan)
    return week


def roughness(
    stream: RoadNetworkStream, sensors: NDArray[np.bool_], usual: Floats, period: Period | None = None
) -> NDArray[np.float64]:
    """[N] how much each sensor's counts differ from one snapshot to the next, against the usual [K,N]; NaN elsewhere.

    Vehicles arrive by chance: where few pass, counts are rough. What a count is multiplied by does not matter.
    """
    first, stop = period or (0, stream.num_snapshots)
    rows = np.flatnonzero(sensors & np.isfinite(usual).all(0))
    low, high, share = between_bins(stream.wall_clock[first:stop], stream.step_s)
    observed = stream.usual_readings(first, stop)
    found = np.full(stream.num_nodes, np.nan)
    for n in rows.tolist():
        table = usual[:, n]
        expected = table[low] + share * (table[high] - table[low])
        known = observed[:, n] & (expected > TINY)
        ratio = np.where(known, stream.values[first:stop, n], np.nan) / np.where(known, expected, 1)
        jump = np.abs(np.diff(ratio)) * np.sqrt(expected[1:] / max(float(expected.mean()), TINY))
        jump = jump[np.isfinite(jump)]
        if len(jump):
            found[n] = float(np.median(jump)) or float(jump.mean())
    return found


def usual_medians(
    stream: RoadNetworkStream, sensors: NDArray[np.bool_], period: Period | None = None
) -> NDArray[np.float32]:
    """The median count [K,N] of each sensor by kind of day and hour; NaN where there are no readings."""
    first, stop = period or (0, stream.num_snapshots)
    rows = np.flatnonzero(sensors)
    medians = np.full((BINS, stream.num_nodes), np.nan, np.float32)
    told_of = bins_told_of(stream.wall_clock[first:stop], stream.step_s)
    observed = stream.usual_readings(first, stop)
    for b in np.flatnonzero(told_of.any(0)):
        at = np.flatnonzero(told_of[:, b])
        cells = np.ix_(at, rows)
        values = np.sort(np.where(observed[cells], stream.values[first:stop][cells], np.inf), axis=0)
        count = np.isfinite(values).sum(0)
        low, high = (values[np.maximum(middle, 0), np.arange(len(rows))] for middle in ((count - 1) // 2, count // 2))
        medians[b, rows[count > 0]] = ((low + high) / 2)[count > 0]
    return medians
