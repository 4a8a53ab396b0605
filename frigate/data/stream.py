"""A road network stream: readings, an observed mask, and the topology of every snapshot (paper, Definition 2).

Snapshot t covers [t, t + step) and is known at t + step. Windows are views into the stream, never copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from frigate.data.network import RoadNetwork
from frigate.errors import CityError

DAY_S = 86_400
DIGEST_ROWS = 256  # snapshots hashed at once: readings lie in a file that need not be in memory whole
CALENDAR = ("day_sin", "day_cos", "week_sin", "week_cos", "weekend")


@dataclass(frozen=True)
class RoadNetworkStream:
    """Values and topologies of S snapshots, one step apart, of N nodes.

    `values` is 0 where `observed` is False; a true 0 is observed.
    """

    values: NDArray[np.float32]  # [S,N]
    observed: NDArray[np.bool_]  # [S,N]
    topologies: tuple[RoadNetwork, ...]  # the distinct ones, all with the same node table
    topology_of: NDArray[np.int64]  # [S] index into topologies
    start_s: int  # start of snapshot 0, seconds since 1970 UTC
    step_s: int
    utc_offset_s: NDArray[np.int64]  # [S] local time minus UTC: the compute path needs no time-zone database
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
        """That of most snapshots."""
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
        return self.start_s + self.step_s * np.arange(self.num_snapshots, dtype=np.int64)

    @cached_property
    def calendar(self) -> NDArray[np.float32]:
        """[S,C] see CALENDAR; local time at the start of each snapshot."""
        return calendar(self.times_s + self.utc_offset_s)

    def slice(self, first: int, stop: int) -> RoadNetworkStream:
        """The snapshots from `first` up to `stop`, as views."""
        part = slice(first, stop)
        return replace(
            self,
            values=self.values[part],
            observed=self.observed[part],
            topology_of=self.topology_of[part],
            utc_offset_s=self.utc_offset_s[part],
            start_s=self.start_s + first * self.step_s,
        )

    def on(self, network: RoadNetwork) -> RoadNetworkStream:
        """The same readings on another network in *every* snapshot: what if it had been so all along.

        Nodes are matched by id and place; a reading at a node that is not there, or not present, is dropped.
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
        """ISO-8601 in the city's time zone. Inside the record it needs no time-zone database."""
        snapshot = (time_s - self.start_s) // self.step_s
        if not 0 <= snapshot <= self.num_snapshots or self.num_snapshots == 0:
            return local_iso(time_s, self.timezone)
        offset_s = int(self.utc_offset_s[min(snapshot, self.num_snapshots - 1)])
        return _iso(time_s, timezone(timedelta(seconds=offset_s)))


def calendar(local_s: NDArray[np.int64]) -> NDArray[np.float32]:
    """[...,C] sine and cosine of the time of day and of the week, and whether it is Saturday or Sunday."""
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
    """Local time minus UTC at each time, looked up once a quarter of an hour: offsets change at no other times."""
    tz = zone(timezone)
    quarters, back = np.unique(times_s // 900, return_inverse=True)
    offsets = [int(datetime.fromtimestamp(int(q) * 900, tz).utcoffset().total_seconds()) for q in quarters]  # type: ignore[union-attr]
    return np.array(offsets, np.int64)[back].reshape(times_s.shape)


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
        [S,N] a row for each snapshot, a column for each node. NaN is not observed.
    network
        The road network, or the distinct ones where it changes; all have the same node table.
    start_s
        Start of the first snapshot, seconds since 1970 UTC.
    step_s
        Length of a snapshot in seconds.
    observed
        [S,N] False where there is no reading; default: where the value is finite. Absent nodes have none either.
    topology_of
        [S] which of the networks each snapshot has; default: the first.
    timezone
        IANA name of the city's time zone, for the calendar.
    quantity
        "count", or the name of a gauge such as "speed".
    unit
        Of the values, for people to read.
    """
    topologies = (network,) if isinstance(network, RoadNetwork) else tuple(network)
    which = np.zeros(len(values), np.int64) if topology_of is None else np.asarray(topology_of, np.int64)
    present = np.stack([t.present for t in topologies])
    seen = np.isfinite(values) if observed is None else np.asarray(observed, bool) & np.isfinite(values)
    if not present.all():
        seen = seen & present[which]
    stored = np.where(seen, values, 0).astype(np.float32, copy=False)
    times_s = start_s + step_s * np.arange(len(values), dtype=np.int64)
    offsets = utc_offsets_s(times_s, timezone)
    return RoadNetworkStream(stored, seen, topologies, which, start_s, step_s, offsets, timezone, quantity, unit)
