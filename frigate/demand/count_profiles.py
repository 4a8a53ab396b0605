"""Usual counts of each sensor, by kind of day and hour."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import BINS, hourly_bins
from frigate.city.split import Period
from frigate.city.stream import RoadNetworkStream
from frigate.demand.calibration import Floats
from frigate.errors import CityError

TINY = 1e-4  # lower bound on flows, against division by zero and log(0)


def week_mean(hourly: Floats) -> Floats:
    """[N] the weekly mean, from means by kind of day and hour [K,N]."""
    mean: Floats = np.repeat([5.0, 2.0], 24) @ hourly / 168
    return mean


def usual_counts(
    stream: RoadNetworkStream, sensors: NDArray[np.bool_], period: Period | None = None
) -> NDArray[np.float64]:
    """The mean count [K,N] of each sensor by kind of day and hour; NaN at other nodes and sensors without readings.

    A bin in which a sensor has no readings is filled with the sensor's mean times the other sensors' profile.
    """
    if stream.quantity != "count":
        raise CityError(f'demand is estimated from counts; this city measures "{stream.quantity}"')
    first, stop = period or (0, stream.num_snapshots)
    rows = np.flatnonzero(sensors)
    values, observed = stream.values[first:stop, rows].astype(np.float64), stream.observed[first:stop, rows]
    bins = hourly_bins(stream.wall_clock)[first:stop]
    total, count = np.zeros((BINS, len(rows))), np.zeros((BINS, len(rows)))
    for b in np.unique(bins):
        total[b] = np.where(observed[bins == b], values[bins == b], 0).sum(0)
        count[b] = observed[bins == b].sum(0)
    hourly = np.full((BINS, stream.num_nodes), np.nan)
    readings = count.sum(0)
    known, counted = count > 0, readings > 0
    means = total / np.maximum(count, 1)
    # Each bin's level relative to the mean, over the sensors with readings in that bin; 1 if there are none.
    rough = total.sum(0) / np.maximum(readings, 1)
    profile = (means * known).sum(1) / np.maximum((rough * known).sum(1), TINY)
    profile[~known.any(1)] = 1.0
    hourly[:, rows[counted]] = np.where(known, means, rough * profile[:, None])[:, counted]
    return hourly


def usual_medians(
    stream: RoadNetworkStream, sensors: NDArray[np.bool_], period: Period | None = None
) -> NDArray[np.float32]:
    """The median count [K,N] of each sensor by kind of day and hour; NaN where there are no readings."""
    first, stop = period or (0, stream.num_snapshots)
    rows = np.flatnonzero(sensors)
    medians = np.full((BINS, stream.num_nodes), np.nan, np.float32)
    bins = hourly_bins(stream.wall_clock)[first:stop]
    for b in np.unique(bins):
        at = first + np.flatnonzero(bins == b)
        values = np.sort(np.where(stream.observed[np.ix_(at, rows)], stream.values[np.ix_(at, rows)], np.inf), axis=0)
        count = np.isfinite(values).sum(0)
        low, high = (values[np.maximum(middle, 0), np.arange(len(rows))] for middle in ((count - 1) // 2, count // 2))
        medians[b, rows[count > 0]] = ((low + high) / 2)[count > 0]
    return medians
