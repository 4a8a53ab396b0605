"""What a sensor's own record says against it, without any other sensor or any map.

    a run          one value without a break: above 0 (of a gauge, any) for STUCK_S; a count of 0 for ZERO_S in which,
                   by its mean, it should have counted at least ZERO_EXPECTED
    a total        its counts hardly ever fall: they are a running total, not the vehicles of a step
    a night        it counts as much at night as by day where the other sensors do not: its clock may be off
    a jump         its days count JUMP times as much, or as little, from one day on, against those of the other sensors

A snapshot without a reading, or one in which the node was shut by a closure, does not end a run and is no part of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import DAY_S, HOUR_S
from frigate.city.stream import RoadNetworkStream

STUCK_S = 6 * HOUR_S
STUCK_READINGS = 12  # of a gauge; fewer equal readings mean nothing
STUCK_COUNTS = 24  # in a large network, some sensor reads the same small count 12 times in a row by chance
ZERO_S = DAY_S  # a road may be empty all night
ZERO_EXPECTED = 30.0  # vehicles; so many cannot be missing by chance
TOTAL_CHANGES = 48  # changes of value from which a running total can be told
TOTAL_FALLS = 0.06  # share of them that fall: a counter that starts again at midnight falls once a day
NIGHT_H, DAY_H = (1, 5), (7, 20)  # hours
NIGHT_SHARE = 0.9  # of the mean by day
NIGHT_OTHERS = 0.45  # at most, of the median sensor
NIGHT_COUNTED = 400.0  # vehicles at night, from which it cannot be chance
JUMP = 3.0
JUMP_DAYS = 5  # on each side
JUMP_SPREADS = 5.0  # median absolute deviations of the days
JUMP_COUNTED = 200.0  # vehicles a day at the higher level, from which it cannot be chance
JUMP_LITTLE = 0.1  # of its mean day, added before the logarithm
WHOLE_DAY = 0.8  # of a day's readings
MOST = 0.5  # of its readings: a sensor that is broken for longer has no usual count

BLOCK_CELLS = 16_000_000  # read from the file at a time

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ValueRun:
    """A run of one value."""

    first: int  # snapshot
    last: int
    readings: int
    value: float


@dataclass(frozen=True)
class Jump:
    """A jump of the level, against the days of the other sensors."""

    snapshot: int  # the first of the new level
    factor: float  # new level / old level


@dataclass(frozen=True)
class Faults:
    """What a sensor's own record says against it."""

    runs: tuple[ValueRun, ...] = ()  # in order of time
    running_total: bool = False
    night: float | None = None  # its mean at night against its mean by day, where that is a fault
    jump: Jump | None = None
    broken_share: float = 0.0  # of its readings that are in a run

    @property
    def longest(self) -> ValueRun | None:
        return max(self.runs, key=lambda run: run.readings, default=None)

    @property
    def unfit(self) -> str:
        """Why nothing should be learned from the sensor, or ""."""
        if self.running_total:
            return "its counts hardly ever fall: it sends a running total"
        if self.night is not None:
            return f"it counts {self.night:.0%} as much at night as by day: its clock may be off"
        run = self.longest
        if run is not None and self.broken_share > MOST:
            return f"it reads {run.value:g} without a break for most of the time"
        return ""


def find_faults(stream: RoadNetworkStream, rows: Ints, period: tuple[int, int] | None = None) -> list[Faults]:
    """What the record of each of these sensors says against it, in these snapshots (default: all)."""
    first, stop = period or (0, stream.num_snapshots)
    clock = stream.wall_clock[first:stop]
    hour = clock[:, 0] // HOUR_S
    nights, days = ((hour >= begin) & (hour < end) for begin, end in (NIGHT_H, DAY_H))
    day_of = (stream.times_s[first:stop] + stream.utc_offset_s[first:stop]) // DAY_S
    day_of -= day_of[0] if len(day_of) else 0
    of_count = stream.quantity == "count"
    found = []
    night = np.full((2, len(rows)), np.nan)  # mean at night against the mean by day, and vehicles at night
    daily = np.full((int(day_of[-1]) + 1 if len(day_of) else 0, len(rows)), np.nan)
    for k, values, observed in sensor_columns(stream, rows, (first, stop)):
        read = np.flatnonzero(observed)
        runs = broken_runs(values[read], read + first, step_s=stream.step_s, quantity=stream.quantity)
        total = of_count and _is_running_total(values[read])
        share = sum(run.readings for run in runs) / max(1, len(read))
        found.append(Faults(runs, total, broken_share=share))
        if of_count and not total:
            fine = observed.copy()
            for run in runs:
                fine[run.first - first : run.last + 1 - first] = False
            night[:, k] = _night(values, fine & nights, fine & days)
            daily[:, k] = _daily(values, fine, day_of, stream.step_s)
    if not of_count:
        return found
    at_fault = _nights_at_fault(night)
    jumps = _jumps(daily * (DAY_S / stream.step_s))
    for k, faults in enumerate(found):
        jump = None
        if k in jumps:
            day, factor = jumps[k]
            jump = Jump(first + int(np.searchsorted(day_of, day)), factor)
        found[k] = Faults(faults.runs, faults.running_total, at_fault.get(k), jump, faults.broken_share)
    return found


def broken_cells(stream: RoadNetworkStream, rows: Ints) -> Bools:
    """[S,N] the readings of these sensors that are in a run of one value."""
    cells = np.zeros((stream.num_snapshots, stream.num_nodes), bool)
    for k, values, observed in sensor_columns(stream, rows):
        read = np.flatnonzero(observed)
        for run in broken_runs(values[read], read, step_s=stream.step_s, quantity=stream.quantity):
            cells[run.first : run.last + 1, rows[k]] = observed[run.first : run.last + 1]
    return cells


def sensor_columns(
    stream: RoadNetworkStream, rows: Ints, period: tuple[int, int] | None = None
) -> Iterator[tuple[int, Floats, Bools]]:
    """Each sensor's place in `rows`, values and mask [S]; read in blocks because the file may be larger than memory.

    Readings made while the node was shut are not in the mask.
    """
    first, stop = period or (0, stream.num_snapshots)
    usual = stream.usual_readings(first, stop)
    block = max(1, BLOCK_CELLS // max(1, stop - first))
    for begin in range(0, len(rows), block):
        some = rows[begin : begin + block]
        values = stream.values[first:stop, some].T.astype(np.float64)
        observed = usual[:, some].T.copy()
        yield from zip(range(begin, begin + len(some)), values, observed, strict=True)


def broken_runs(values: Floats, read: Ints, *, step_s: int, quantity: str) -> tuple[ValueRun, ...]:
    """The runs of one value in a sensor's readings, made in the snapshots `read`."""
    starts = np.flatnonzero(np.diff(values, prepend=np.nan))
    lengths = np.diff(starts, append=len(values))
    by_hours = math.ceil(STUCK_S / step_s)
    if quantity == "count":
        zeros = lengths >= max(STUCK_COUNTS, math.ceil(ZERO_S / step_s))
        zeros &= float(values.mean() if len(values) else 0) * lengths >= ZERO_EXPECTED
        same = lengths >= max(STUCK_COUNTS, by_hours)
        broken = np.where(values[starts] == 0, zeros, same)
    else:
        broken = lengths >= max(STUCK_READINGS, by_hours)
    if len(starts) == 1 and len(values) >= STUCK_READINGS and (values[0] != 0 or quantity != "count"):
        broken[:] = True  # nothing else was ever read
    return tuple(
        ValueRun(int(read[start]), int(read[start + length - 1]), int(length), float(values[start]))
        for start, length in zip(starts[broken].tolist(), lengths[broken].tolist(), strict=True)
    )


def _is_running_total(values: Floats) -> bool:
    changes = np.diff(values)
    changes = changes[changes != 0]
    return len(changes) >= TOTAL_CHANGES and float((changes < 0).mean()) <= TOTAL_FALLS


def _night(values: Floats, at_night: Bools, by_day: Bools) -> tuple[float, float]:
    if not at_night.any() or not by_day.any() or not values[by_day].any():
        return math.nan, math.nan
    return float(values[at_night].mean() / values[by_day].mean()), float(values[at_night].sum())


def _nights_at_fault(night: Floats) -> dict[int, float]:
    """The sensors whose nights are as busy as their days, where those of the others are not."""
    share, counted = night
    if not np.isfinite(share).any() or np.nanmedian(share) > NIGHT_OTHERS:
        return {}
    found = np.flatnonzero((share >= NIGHT_SHARE) & (counted >= NIGHT_COUNTED))
    return {k: float(share[k]) for k in found.tolist()}


def _daily(values: Floats, observed: Bools, day_of: Ints, step_s: int) -> Floats:
    """[days] the mean count of each day; NaN for one with few readings."""
    count = np.bincount(day_of, observed)
    total = np.bincount(day_of, np.where(observed, values, 0))
    daily: Floats = np.where(count * step_s >= WHOLE_DAY * DAY_S, total / np.maximum(count, 1), np.nan)
    return daily


def _jumps(daily: Floats) -> dict[int, tuple[int, float]]:
    """The sensors whose level jumps: the first day of the new level, and new level / old level.

    `daily` [days,V] are vehicles a day.
    """
    known = np.isfinite(daily)
    enough = known.sum(0) >= 2 * JUMP_DAYS
    if not enough.any():
        return {}
    mean = np.where(known, daily, 0).sum(0) / np.maximum(known.sum(0), 1)
    logs = np.log(daily + JUMP_LITTLE * mean + np.finfo(float).tiny)
    some = logs[:, enough]
    centred = some - np.nanmedian(some, axis=0)
    whole = np.isfinite(centred).any(axis=1)
    city = np.zeros(len(daily))
    city[whole] = np.nanmedian(centred[whole], axis=1)
    found = {}
    for k in np.flatnonzero(enough & (mean > 0)).tolist():
        days = np.flatnonzero(known[:, k])
        course = logs[days, k] - city[days]
        best = max(
            range(JUMP_DAYS, len(days) - JUMP_DAYS + 1),
            key=lambda at: abs(float(course[:at].mean() - course[at:].mean())),
        )
        before, after = course[:best], course[best:]
        change = float(np.median(after) - np.median(before))
        spread = float(np.median(np.abs(np.concatenate([before - np.median(before), after - np.median(after)]))))
        counts = [max(float(np.median(daily[some, k])), 1.0) for some in (days[:best], days[best:])]
        if abs(change) >= max(math.log(JUMP), JUMP_SPREADS * spread) and max(counts) >= JUMP_COUNTED:
            others = float(np.median(city[days[best:]]) - np.median(city[days[:best]]))
            found[k] = int(days[best]), counts[1] / counts[0] / math.exp(others)
    return found
