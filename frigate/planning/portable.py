"""How far a count of a few days is from the mean over the week, and which days of the week are best.

A count of a few days is divided by what those days are against the week at the city's sensors; what is left is how much
days differ by chance. It is measured on the sensors' record where that is long enough, and assumed otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import DAY_S, SECOND, WEEKDAY
from frigate.city.stream import RoadNetworkStream
from frigate.demand.count_profiles import TINY

WEEK = 7
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SPREAD_OUT = (1, 5, 3, 6, 0, 4, 2)  # the days to count on where nothing is measured: evenly over the week
USUAL_SPREAD = 0.15  # standard deviation of the logarithm of one day's count, assumed where nothing is measured
LEAST_SPREAD = 0.02
MIN_SENSORS, MIN_WEEKS = 5, 2
COMPLETE = 0.9  # of a day's snapshots

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CountDays:
    """Which days a portable counter stands at a site, and how far its count is from the mean over the week."""

    days: int
    weekdays: tuple[str, ...]  # to count on; of more than a week, all
    spread: float  # standard deviation of the logarithm of the count against the true mean
    measured: bool  # on the record of the city's sensors; otherwise assumed

    def sentence(self) -> str:
        every = len(self.weekdays) == WEEK
        when = (
            f"any {self.days} days in a row"
            if every
            else " and ".join(part for part in (", ".join(self.weekdays[:-1]), self.weekdays[-1]) if part)
        )
        source = (
            "measured on this city's sensors" if self.measured else "assumed; the record is too short to measure it"
        )
        return f"Count on {when}: such a count is off by about {100 * self.spread:.0f} % ({source})."


def count_days(stream: RoadNetworkStream, days: int) -> CountDays:
    """The best weekdays for a count of so many days at the places without a sensor."""
    part = min(days, WEEK)
    totals = daily_totals(stream)
    weeks = (len(totals) + (first_weekday(stream) if len(totals) else 0)) // WEEK
    enough = np.isfinite(totals).sum(0) >= MIN_WEEKS * WEEK
    if weeks < MIN_WEEKS or enough.sum() < MIN_SENSORS:
        chosen = tuple(sorted(SPREAD_OUT[:part]))
        spread = USUAL_SPREAD / days**0.5
        return CountDays(days, tuple(WEEKDAYS[k] for k in chosen), spread, False)
    errors = _errors(totals[:, enough], first_weekday(stream))
    found = {chosen: _spread(errors, chosen) for chosen in combinations(range(WEEK), part)}
    best = min(found, key=lambda chosen: (found[chosen], chosen))
    spread = max(found[best] / (days / part) ** 0.5, LEAST_SPREAD)
    return CountDays(days, tuple(WEEKDAYS[k] for k in best), spread, True)


def first_weekday(stream: RoadNetworkStream) -> int:
    """The day of the week on which the record begins; 0 is Monday."""
    return int(stream.wall_clock[0, WEEKDAY])


def daily_totals(stream: RoadNetworkStream) -> Floats:
    """[days,sensors] the mean count of each local day; NaN where the day has gaps."""
    clock = stream.wall_clock
    if not len(clock) or stream.step_s > DAY_S:
        return np.zeros((0, 0))
    new = np.flatnonzero(np.diff(clock[:, SECOND], prepend=-1) < 0)
    begins = np.concatenate([[0], new]) if not len(new) or new[0] != 0 else new
    rows = np.flatnonzero(stream.sensors)
    per_day = DAY_S // stream.step_s
    found = []
    for first, stop in zip(begins, [*begins[1:], len(clock)], strict=True):
        observed = stream.observed[first:stop, rows]
        count = observed.sum(0)
        total = np.where(observed, stream.values[first:stop, rows], 0).sum(0, dtype=np.float64)
        found.append(np.where(count >= COMPLETE * per_day, total / np.maximum(count, 1), np.nan))
    return np.stack(found)


def _errors(totals: Floats, first: int) -> Floats:
    """[weeks,7,sensors] each day's count against the sensor's mean and the weekday's usual share of it."""
    weekday = (np.arange(len(totals)) + first) % WEEK
    by_weekday = np.stack([_mean(totals[weekday == k]) for k in range(WEEK)])
    mean = by_weekday.mean(0)
    counted = mean > 0  # on every day of the week
    usual = by_weekday[:, counted].sum(1) / max(float(mean[counted].sum()), TINY)  # [7]
    ratio = np.where(counted, totals / np.where(counted, mean, 1), np.nan) / np.maximum(usual[weekday, None], TINY)
    weeks = -(-(len(totals) + first) // WEEK)
    table = np.full((weeks * WEEK, totals.shape[1]), np.nan)
    table[first : first + len(totals)] = ratio
    return table.reshape(weeks, WEEK, -1)


def _mean(totals: Floats) -> Floats:
    """[sensors] the mean over days; NaN where no day is complete."""
    count = np.isfinite(totals).sum(0)
    return np.where(count > 0, np.nansum(totals, axis=0) / np.maximum(count, 1), np.nan)


def _spread(errors: Floats, weekdays: tuple[int, ...]) -> float:
    """Root mean square of the logarithm of the mean error of these weekdays, over weeks and sensors."""
    off = errors[:, list(weekdays)].mean(1)
    logs = np.log(off[np.isfinite(off) & (off > 0)])
    return float(np.sqrt((logs**2).mean())) if len(logs) else USUAL_SPREAD
