"""Local time: time zones, the days and hours of a city, and when its snapshots begin.

Inside, times are seconds since 1970 UTC; outside, ISO-8601 in the city's time zone. A local time is given in seconds as
well: the wall clock's, counted from 1970-01-01 00:00 local time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from frigate.errors import CityError

HOUR_S = 3600
DAY_S = 86_400
QUARTER_S = 900  # clocks only change on a quarter of an hour
ZONE_DAYS = (-25_567, 84_006)  # since 1970: the years 1900 to 2200
HOURS = 24
KINDS_OF_DAY = ("weekday", "weekend")
BINS = HOURS * len(KINDS_OF_DAY)  # bin = 24 * kind of day + hour
PART_S = 3 * HOUR_S
PARTS = DAY_S // PART_S  # of a day
WEEK_PARTS = 7 * PARTS  # part of the week = 8 * weekday + part of the day
WALL_CLOCK = ("second", "weekday", "kind")  # of the day; 0 is Monday; index into KINDS_OF_DAY
SECOND, WEEKDAY, KIND = range(len(WALL_CLOCK))

Array = TypeVar("Array", bound=Any)  # of numpy or torch


@dataclass(frozen=True)
class Steps:
    """When snapshots begin: each one step after the last, by the wall clock.

    If the step divides every clock change, as an hour does in most zones, snapshots are `step_s` seconds apart. If not,
    they begin at the same times of day before and after a change.
    """

    start_s: int  # of snapshot 0, seconds since 1970 UTC
    step_s: int
    timezone: str = "UTC"

    @staticmethod
    def from_midnight(time_s: int, step_s: int, timezone: str) -> Steps:
        """Steps that start at midnight of the local day that contains a time."""
        local_s = time_s + int(utc_offsets_s(np.array([time_s]), timezone)[0])
        return Steps(int(_utc_s(np.array([local_s // DAY_S * DAY_S]), timezone)[0]), step_s, timezone)

    def times_s(self, first: int, stop: int) -> NDArray[np.int64]:
        """Starts of the snapshots from `first` up to `stop`, seconds since 1970 UTC."""
        number = np.arange(first, stop, dtype=np.int64)
        even = self.start_s + self.step_s * number
        if not len(even) or not self._stretched(min(self.start_s, int(even[0])), max(self.start_s, int(even[-1]))):
            return even
        return _utc_s(self.local_start_s + self.step_s * number, self.timezone)

    def time_s(self, snapshot: int) -> int:
        """Start of one snapshot."""
        return int(self.times_s(snapshot, snapshot + 1)[0])

    def snapshot_at(self, time_s: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices of the snapshots that contain these times."""
        even = (time_s - self.start_s) // self.step_s
        if not len(time_s) or not self._stretched(
            min(self.start_s, int(time_s.min())), max(self.start_s, int(time_s.max()))
        ):
            return even
        beyond = 2 + 3 * 3600 // self.step_s  # clocks hardly ever change by more than three hours
        first = int(even.min()) - beyond
        starts_s = self.times_s(first, int(even.max()) + beyond)
        return np.searchsorted(starts_s, time_s, side="right") - 1 + first

    def _stretched(self, first_s: int, last_s: int) -> bool:
        """Whether the step does not divide a clock change between two times."""
        if 1800 % self.step_s == 0 or self.timezone == "UTC":  # clocks change by multiples of half an hour
            return False
        days = np.clip(np.arange(first_s // DAY_S - 1, last_s // DAY_S + 2), *ZONE_DAYS) * DAY_S
        offsets = np.unique(utc_offsets_s(days, self.timezone))
        return bool(((offsets - offsets[0]) % self.step_s).any())

    @property
    def local_start_s(self) -> int:
        """The start by the wall clock: a whole step from midnight, even if a clock change skips that time."""
        local_s = self.start_s + int(utc_offsets_s(np.array([self.start_s]), self.timezone)[0])
        whole = local_s // self.step_s * self.step_s
        return whole if int(_utc_s(np.array([whole]), self.timezone)[0]) == self.start_s else local_s


def _utc_s(local_s: NDArray[np.int64], timezone: str) -> NDArray[np.int64]:
    """UTC of local times: the first of two if ambiguous, and the moment of the clock change if skipped."""
    tz = zone(timezone)
    day_0 = datetime(1970, 1, 1)
    read = []
    for s in local_s.tolist():
        first = (day_0 + timedelta(seconds=s)).replace(tzinfo=tz)
        late = int(first.timestamp())
        early = int(first.replace(fold=1).timestamp())
        if early < late:  # skipped: the clocks change between these two, on a quarter of an hour
            quarters = np.arange(-(-early // QUARTER_S) * QUARTER_S, late + 1, QUARTER_S)
            late = int(quarters[np.argmax(utc_offsets_s(quarters, timezone) == s - early)])
        read.append(late)
    return np.array(read, np.int64)


def wall_clock(local_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """[...,3] what a model is told of local times (seconds since 1970-01-01 00:00): the columns of WALL_CLOCK."""
    day, second = np.divmod(local_s, DAY_S)
    weekday = (day + 3) % 7  # 1970-01-01 was a Thursday
    return np.stack([second, weekday, np.where(weekday >= 5, KINDS_OF_DAY.index("weekend"), 0)], axis=-1)


def hourly_bins(clock: Array) -> Array:
    """[...] the bin of wall-clock times [...,3]: 24 * kind of day + hour."""
    bins: Array = clock[..., SECOND] // 3600 + HOURS * clock[..., KIND]
    return bins


def bins_told_of(clock: NDArray[np.int64], step_s: int) -> NDArray[np.bool_]:
    """[S,BINS] the hourly bins that each snapshot tells of: every hour that it covers at least half of, and that of its
    midpoint. All are of the kind of day that it begins on, which is how `between_bins` reads them.

    Parameters
    ----------
    clock
        [S,3] the wall-clock time at the start of each snapshot.
    step_s
        Length of a snapshot.
    """
    length_s = min(step_s, DAY_S)
    begin = clock[:, SECOND, None]  # [S,1]
    hour = np.arange(HOURS)
    told = (begin + length_s // 2) // 3600 % HOURS == hour
    for opens in (3600 * hour, 3600 * hour + DAY_S):  # it may end on the next day
        told |= np.minimum(begin + length_s, opens + 3600) - np.maximum(begin, opens) >= 1800
    of_kind = clock[:, KIND, None] == np.arange(len(KINDS_OF_DAY))  # [S,2]
    bins: NDArray[np.bool_] = (told[:, None] & of_kind[:, :, None]).reshape(-1, BINS)
    return bins


def between_bins(clock: Array, step_s: int) -> tuple[Array, Array, Array]:
    """The two hourly bins to interpolate between: those whose midpoints bracket the midpoint of a snapshot.

    Parameters
    ----------
    clock
        [...,3] the wall-clock time at the start of each snapshot.
    step_s
        Length of a snapshot.

    Returns
    -------
    first, second, share
        [...] the two bins, both of the snapshot's kind of day, and the weight of the second.
    """
    middle = clock[..., SECOND] + step_s // 2 - 1800
    hour = middle // 3600
    of_kind = HOURS * clock[..., KIND]
    return hour % HOURS + of_kind, (hour + 1) % HOURS + of_kind, (middle - 3600 * hour) / 3600


def week_parts(clock: Array, step_s: int) -> Array:
    """[...] the part of the week of snapshots that start at these times [...,3]: of that day, by their midpoints."""
    middle = (clock[..., SECOND] + step_s // 2) % DAY_S
    parts: Array = PARTS * clock[..., WEEKDAY] + middle // PART_S
    return parts


def local_iso(time_s: int, timezone_name: str) -> str:
    """ISO-8601 in a time zone, from seconds since 1970 UTC."""
    return iso(time_s, zone(timezone_name))


def utc_iso(time_s: float) -> str:
    """ISO 8601 with Z."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="auto").replace("+00:00", "Z")


def iso(time_s: int, at: tzinfo) -> str:
    return datetime.fromtimestamp(time_s, UTC).astimezone(at).isoformat()


def zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise CityError(
            f'time zone "{name}" is not known. Give an IANA name such as "Europe/Luxembourg" or "UTC"'
        ) from None


def utc_offsets_s(times_s: NDArray[np.int64], timezone: str) -> NDArray[np.int64]:
    """Local time minus UTC at each time, looked up once per quarter of an hour."""
    tz = zone(timezone)
    quarters, back = np.unique(times_s // QUARTER_S, return_inverse=True)
    local = (datetime.fromtimestamp(int(quarter) * QUARTER_S, tz) for quarter in quarters)
    offsets = [(time.utcoffset() or timedelta()) // timedelta(seconds=1) for time in local]
    return np.array(offsets, np.int64)[back].reshape(times_s.shape)
