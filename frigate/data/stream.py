"""A road network stream: readings, an observed mask, and the topology of every snapshot (paper, Definition 2).

Snapshot t covers [t, t + step) and is known at t + step. Windows are views into the stream, never copies. Days are
local days: if the step does not divide a clock change, the snapshot at the change is shorter or longer by that much.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from difflib import get_close_matches
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from frigate.data.network import RoadNetwork
from frigate.errors import CityError

DAY_S = 86_400
QUARTER_S = 900  # clocks only change on a quarter of an hour
ZONE_DAYS = (-25_567, 84_006)  # since 1970: the years 1900 to 2200
DIGEST_ROWS = 256  # snapshots hashed at a time: the file of readings may be larger than memory
GAUGE = re.compile(r"speed|velocity|occupancy|density|travel_?time|delay|temperature", re.IGNORECASE)
CALENDAR = ("day_sin", "day_cos", "week_sin", "week_cos", "weekend")


@dataclass(frozen=True)
class RoadNetworkStream:
    """Values and topologies of N nodes over S snapshots, one step apart.

    `values` is 0 where `observed` is False; a true 0 is observed.
    """

    values: NDArray[np.float32]  # [S,N]
    observed: NDArray[np.bool_]  # [S,N]
    topologies: tuple[RoadNetwork, ...]  # distinct, all with the same node table
    topology_of: NDArray[np.int64]  # [S] index into topologies
    start_s: int  # start of snapshot 0, seconds since 1970 UTC
    step_s: int
    utc_offset_s: NDArray[np.int64]  # [S] local time minus UTC; saves the compute path a time-zone database
    timezone: str = "UTC"
    quantity: str = "count"  # "count" is summed and never negative; anything else is a gauge
    unit: str = ""

    def __post_init__(self) -> None:
        S, N = self.values.shape
        if self.observed.shape != (S, N):
            raise CityError(f"values are {S} x {N} but observed is {self.observed.shape}")
        if self.topology_of.shape != (S,) or self.utc_offset_s.shape != (S,):
            raise CityError(f"every one of the {S} snapshots needs one topology and one UTC offset")
        if any(network.num_nodes != N for network in self.topologies):
            raise CityError(f"every topology needs the stream's {N} nodes")

    def __repr__(self) -> str:
        return f"<RoadNetworkStream: {self.summary()}>"

    def summary(self) -> str:
        """A one-line summary."""
        roads = f"{self.num_nodes:,} nodes, {self.network.num_edges:,} roads"
        if not self.num_snapshots:
            return f"{roads}, no readings"
        first, end = (self.local_time(time_s)[:16] for time_s in (self.start_s, int(self.times_s[-1]) + self.step_s))
        return (
            f"{roads}, {self.num_snapshots:,} snapshots of {self.step_s:,} s from {first} to {end} ({self.timezone}), "
            f"{self.quantity} at {int(self.sensors.sum()):,} sensors"
        )

    @property
    def num_snapshots(self) -> int:
        return len(self.values)

    @property
    def num_nodes(self) -> int:
        return int(self.values.shape[1])

    @property
    def network(self) -> RoadNetwork:
        """The topology of the last snapshot: the network as it is now."""
        return self.topologies[int(self.topology_of[-1]) if self.num_snapshots else -1]

    @property
    def main_network(self) -> RoadNetwork:
        """The topology of most snapshots."""
        return self.topologies[int(np.bincount(self.topology_of).argmax())] if self.num_snapshots else self.network

    @property
    def node_ids(self) -> NDArray[np.generic]:
        return self.topologies[0].node_ids

    @cached_property
    def sensors(self) -> NDArray[np.bool_]:
        """[N] nodes that ever have a reading."""
        return np.asarray(self.observed.any(axis=0))

    @cached_property
    def times_s(self) -> NDArray[np.int64]:
        """[S] start of each snapshot, seconds since 1970 UTC."""
        even = self.start_s + self.step_s * np.arange(self.num_snapshots, dtype=np.int64)
        later_s = self.utc_offset_s - self.utc_offset_s[:1]
        return even - later_s if (later_s % self.step_s).any() else even

    @property
    def steps(self) -> Steps:
        """When snapshots begin, including those before and after the record."""
        return Steps(self.start_s, self.step_s, self.timezone)

    @property
    def end_s(self) -> int:
        """End of the last snapshot."""
        return self.steps.time_s(self.num_snapshots)

    @cached_property
    def calendar(self) -> NDArray[np.float32]:
        """[S,C] the features in CALENDAR, at the local start time of each snapshot."""
        return calendar(self.times_s + self.utc_offset_s)

    def snapshot_at(self, time_s: int) -> int:
        """The index of the snapshot that contains a time, which may be before or after the record."""
        if self.num_snapshots and self.start_s <= time_s <= self.times_s[-1]:
            return int(np.searchsorted(self.times_s, time_s, side="right")) - 1
        return int(self.steps.snapshot_at(np.array([time_s]))[0])

    def slice(self, first: int, stop: int) -> RoadNetworkStream:
        """The snapshots from `first` up to `stop`, as views."""
        part = slice(first, stop)
        return replace(
            self,
            values=self.values[part],
            observed=self.observed[part],
            topology_of=self.topology_of[part],
            utc_offset_s=self.utc_offset_s[part],
            start_s=int(self.times_s[first]) if first < self.num_snapshots else self.steps.time_s(first),
        )

    def on(self, network: RoadNetwork) -> RoadNetworkStream:
        """The same readings on another network in *every* snapshot, as if it had always been that way.

        Nodes are matched by id and place. Readings of nodes that are missing or absent there are dropped.
        """
        column = network.same_nodes(self.topologies[0])
        if np.array_equal(column, np.arange(self.num_nodes)):
            values, observed = self.values, self.observed & network.present
        else:
            values = self.values[:, column]
            observed = self.observed[:, column] & (column >= 0) & network.present
        if not np.array_equal(observed, self.observed):
            values = np.where(observed, values, 0)
        topology_of = np.zeros(self.num_snapshots, np.int64)
        return replace(self, values=values, observed=observed, topologies=(network,), topology_of=topology_of)

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that change with any reading."""
        digest = hashlib.sha256()
        for first in range(0, self.num_snapshots, DIGEST_ROWS):
            for array in (self.values, self.observed):
                digest.update(np.ascontiguousarray(array[first : first + DIGEST_ROWS]).data)
        return digest.hexdigest()[:16]

    def local_time(self, time_s: int) -> str:
        """A time as ISO-8601 in the city's time zone. Inside the record this needs no time-zone database."""
        snapshot = int(np.searchsorted(self.times_s, time_s, side="right")) - 1
        if snapshot < 0 or time_s > self.times_s[-1] + self.step_s:
            return local_iso(time_s, self.timezone)
        return _iso(time_s, timezone(timedelta(seconds=int(self.utc_offset_s[snapshot]))))


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
    tz, day_0 = zone(timezone), datetime(1970, 1, 1)
    read = []
    for s in local_s.tolist():
        first = (day_0 + timedelta(seconds=s)).replace(tzinfo=tz)
        late, early = int(first.timestamp()), int(first.replace(fold=1).timestamp())
        if early < late:  # skipped: the clocks change between these two, on a quarter of an hour
            quarters = np.arange(-(-early // QUARTER_S) * QUARTER_S, late + 1, QUARTER_S)
            late = int(quarters[np.argmax(utc_offsets_s(quarters, timezone) == s - early)])
        read.append(late)
    return np.array(read, np.int64)


def calendar(local_s: NDArray[np.int64]) -> NDArray[np.float32]:
    """[...,C] sine and cosine of the time of day and of the week, and whether it is a weekend."""
    day = 2 * np.pi * (local_s % DAY_S) / DAY_S
    weekday_s = (local_s + 3 * DAY_S) % (7 * DAY_S)  # 1970-01-01 was a Thursday; 0 is Monday 00:00
    week = 2 * np.pi * weekday_s / (7 * DAY_S)
    weekend = weekday_s >= 5 * DAY_S
    return np.stack([np.sin(day), np.cos(day), np.sin(week), np.cos(week), weekend], axis=-1).astype(np.float32)


def local_iso(time_s: int, timezone_name: str) -> str:
    """ISO-8601 in a time zone, from seconds since 1970 UTC."""
    return _iso(time_s, zone(timezone_name))


def _iso(time_s: int, at: tzinfo) -> str:
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


def parse_quantity(text: str | None, *, where: str, column: str = "") -> str:
    """`count` in any case, or the name of a gauge. A near miss of `count` is refused: a gauge would not be summed.

    Parameters
    ----------
    text
        The quantity. None means a count, unless the column has the name of a gauge.
    where
        The place to name in an error.
    column
        The name of the readings in their file.
    """
    if text is None and (gauge := GAUGE.search(column)):
        raise CityError(
            f'{where}: "{column}" does not look like a count, and counts are summed. '
            f"Pass --quantity {gauge[0].lower()}, or --quantity count"
        )
    quantity = (text or "").strip() or "count"
    if quantity.lower() == "count":
        return "count"
    if get_close_matches(quantity.lower(), ["count"], cutoff=0.75):
        raise CityError(f'{where}: quantity "{text}" would be read as a gauge, which is not summed. Write "count"')
    return quantity


def make_stream(
    values: NDArray[np.floating],
    network: RoadNetwork | Sequence[RoadNetwork],
    *,
    start_s: int,
    step_s: int,
    observed: NDArray[np.bool_] | None = None,
    topology_of: NDArray[np.integer] | None = None,
    timezone: str = "UTC",
    quantity: str = "count",
    unit: str = "",
) -> RoadNetworkStream:
    """Make a stream from a matrix of readings.

    Parameters
    ----------
    values
        [S,N] one row per snapshot, one column per node. NaN means not observed.
    network
        The road network, or all distinct ones if it changes; they share one node table.
    start_s
        Start of the first snapshot, seconds since 1970 UTC.
    step_s
        Length of a snapshot in seconds.
    observed
        [S,N] False where there is no reading. Default: True where the value is finite. Absent nodes are never observed.
    topology_of
        [S] index of each snapshot's network. Default: the first.
    timezone
        IANA name of the city's time zone, for the calendar.
    quantity
        "count", or the name of a gauge such as "speed".
    unit
        Unit of the values, only for display.
    """
    quantity = parse_quantity(quantity, where="make_stream")
    topologies = (network,) if isinstance(network, RoadNetwork) else tuple(network)
    which = np.zeros(len(values), np.int64) if topology_of is None else np.asarray(topology_of, np.int64)
    present = np.stack([t.present for t in topologies])
    seen = np.isfinite(values) if observed is None else np.asarray(observed, bool) & np.isfinite(values)
    if not present.all():
        seen = seen & present[which]
    stored = np.where(seen, values, 0).astype(np.float32, copy=False)
    steps, numbers = Steps(start_s, step_s, timezone), step_s * np.arange(len(values), dtype=np.int64)
    times_s = steps.times_s(0, len(values))
    offsets = utc_offsets_s(times_s, timezone)
    if (times_s != start_s + numbers).any():
        offsets = steps.local_start_s + numbers - times_s
    return RoadNetworkStream(stored, seen, topologies, which, start_s, step_s, offsets, timezone, quantity, unit)
