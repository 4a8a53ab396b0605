"""A road network stream: readings, an observed mask, and the network of every snapshot (paper, Definition 2).

Snapshot t covers [t, t + step) and is known at t + step. It has the roads that are open when it begins
(`frigate.city.timeline`). Windows are views into the stream, never copies. Days are
local days: if the step does not divide a clock change, the snapshot at the change is shorter or longer by that much.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta, timezone
from difflib import get_close_matches
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import Steps, iso, local_iso, utc_offsets_s, wall_clock
from frigate.city.network import RoadNetwork, shut_nodes, usual_roads
from frigate.city.timeline import changes_begun
from frigate.errors import CityError

DIGEST_ROWS = 256  # snapshots hashed at a time: the file of readings may be larger than memory
GAUGES = {  # words in the name of a column of readings -> the quantity
    "speed": r"speed|velocity|geschwindigkeit|vitesse",
    "occupancy": r"occupancy|belegung|taux.d.occupation",
    "density": r"density|dichte",
    "travel_time": r"travel.?time|reisezeit|fahrzeit|temps.de.parcours",
    "delay": r"delay|verlustzeit",
    "temperature": r"temperature|temperatur",
}


def no_times() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


def _turns(network_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """The snapshots that have another network than the one before, and the first."""
    return np.flatnonzero(np.diff(network_of, prepend=-1))


@dataclass(frozen=True)
class RoadNetworkStream:
    """Values and networks of N nodes over S snapshots, one step apart.

    `values` is 0 where `observed` is False; a true 0 is observed.
    """

    values: NDArray[np.float32]  # [S,N]
    observed: NDArray[np.bool_]  # [S,N]
    networks: tuple[RoadNetwork, ...]  # distinct, all with the same node table
    network_of: NDArray[np.int64]  # [S] index into networks
    start_s: int  # start of snapshot 0, seconds since 1970 UTC
    step_s: int
    utc_offset_s: NDArray[np.int64]  # [S] local time minus UTC; saves the compute path a time-zone database
    timezone: str = "UTC"
    quantity: str = "count"  # "count" is summed and never negative; anything else is a gauge
    unit: str = ""
    later_s: NDArray[np.int64] = field(default_factory=no_times)  # [L] changes after the last snapshot began, and
    later: NDArray[np.int64] = field(default_factory=no_times)  # [L] the index into networks that holds from then on

    def __post_init__(self) -> None:
        S, N = self.values.shape
        if self.observed.shape != (S, N):
            raise CityError(f"values are {S} x {N} but observed is {self.observed.shape}")
        if self.network_of.shape != (S,) or self.utc_offset_s.shape != (S,):
            raise CityError(f"every one of the {S} snapshots needs one network and one UTC offset")
        if any(network.num_nodes != N for network in self.networks):
            raise CityError(f"every network needs the stream's {N} nodes")
        if self.later_s.shape != self.later.shape or (np.diff(self.later_s) <= 0).any():
            raise CityError("changes after the record need increasing times, each with one network")

    def __repr__(self) -> str:
        return f"<RoadNetworkStream: {self.summary()}>"

    def summary(self) -> str:
        """A one-line summary."""
        return f"{self.num_nodes:,} nodes, {self.network.num_edges:,} roads, {self.record_summary()}"

    def record_summary(self) -> str:
        """The readings in one line."""
        if not self.num_snapshots:
            return "no readings"
        first, end = (self.local_time(time_s)[:16] for time_s in (self.start_s, int(self.times_s[-1]) + self.step_s))
        return (
            f"{self.num_snapshots:,} snapshots of {self.step_s:,} s from {first} to {end} ({self.timezone}), "
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
        """The network of the last snapshot: the roads as they are now."""
        if self.num_snapshots:
            return self.networks[int(self.network_of[-1])]
        return self.networks[int(self.later[-1]) if len(self.later) else -1]

    def usual_network(self, period: tuple[int, int] | None = None) -> RoadNetwork:
        """The roads that are open, and the nodes that are present, in most snapshots of a period (default: all).

        This is one of the networks if any of them is so, else a network of its own.
        """
        first, stop = period or (0, self.num_snapshots)
        used, count = np.unique(self.network_of[first:stop], return_counts=True)
        return usual_roads([self.networks[k] for k in used.tolist()], count) if len(used) else self.network

    def usual_readings(self, first: int, stop: int) -> NDArray[np.bool_]:
        """[S,N] the readings of snapshots [first, stop) that tell of a usual day: not those of nodes that were shut."""
        observed = self.observed[first:stop]
        if len(self.networks) == 1:
            return observed
        usual = self.usual_network((first, stop))
        shut = np.stack([shut_nodes(usual, network) for network in self.networks])
        return observed & ~shut[self.network_of[first:stop]] if shut.any() else observed

    def network_at(self, snapshot: NDArray[np.int64]) -> NDArray[np.int64]:
        """The index of the network that holds when these snapshots begin; they may lie before or after the record."""
        S = self.num_snapshots
        inside = self.network_of[np.clip(snapshot, 0, S - 1)] if S else np.full(snapshot.shape, self._last_network)
        after = snapshot >= S
        if not len(self.later_s) or not after.any():
            return inside
        first = int(snapshot[after].min())
        stop = int(snapshot[after].max()) + 1
        begun = changes_begun(self.later_s, self.steps.times_s(first, stop))
        course = np.concatenate([[self._last_network], self.later])[begun]
        return np.where(after, course[np.clip(snapshot - first, 0, stop - first - 1)], inside)

    @property
    def _last_network(self) -> int:
        return int(self.network_of[-1]) if self.num_snapshots else 0

    @property
    def node_ids(self) -> NDArray[np.generic]:
        return self.networks[0].node_ids

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
    def wall_clock(self) -> NDArray[np.int64]:
        """[S,3] local time at the start of each snapshot, as `frigate.calendar.WALL_CLOCK`."""
        return wall_clock(self.times_s + self.utc_offset_s)

    def snapshot_at(self, time_s: int) -> int:
        """The index of the snapshot that contains a time, which may be before or after the record."""
        if self.num_snapshots and self.start_s <= time_s <= self.times_s[-1]:
            return int(np.searchsorted(self.times_s, time_s, side="right")) - 1
        return int(self.steps.snapshot_at(np.array([time_s]))[0])

    def slice(self, first: int, stop: int) -> RoadNetworkStream:
        """The snapshots from `first` up to `stop`, as views."""
        part = slice(first, stop)
        stop = max(first, min(stop, self.num_snapshots))
        turns = stop + np.flatnonzero(np.diff(self.network_of[stop - 1 :])) if stop else _turns(self.network_of)
        return replace(
            self,
            later_s=np.concatenate([self.times_s[turns], self.later_s]),
            later=np.concatenate([self.network_of[turns], self.later]),
            values=self.values[part],
            observed=self.observed[part],
            network_of=self.network_of[part],
            utc_offset_s=self.utc_offset_s[part],
            start_s=int(self.times_s[first]) if first < self.num_snapshots else self.steps.time_s(first),
        )

    def on(self, network: RoadNetwork) -> RoadNetworkStream:
        """The same readings on another network in *every* snapshot, as if it had always been that way.

        Nodes are matched by id and place. Readings of nodes that are missing or absent there are dropped.
        """
        column = network.same_nodes(self.networks[0])
        if np.array_equal(column, np.arange(self.num_nodes)):
            values = self.values
            observed = self.observed & network.present
        else:
            values = self.values[:, column]
            observed = self.observed[:, column] & (column >= 0) & network.present
        if not np.array_equal(observed, self.observed):
            values = np.where(observed, values, 0)
        network_of = np.zeros(self.num_snapshots, np.int64)
        return replace(
            self,
            values=values,
            observed=observed,
            networks=(network,),
            network_of=network_of,
            later_s=no_times(),
            later=no_times(),
        )

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
        return iso(time_s, timezone(timedelta(seconds=int(self.utc_offset_s[snapshot]))))


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
    gauge = next((name for name, words in GAUGES.items() if re.search(words, column, re.IGNORECASE)), None)
    if text is None and gauge is not None:
        raise CityError(
            f'{where}: "{column}" does not look like a count, and counts are summed. '
            f"Pass --quantity {gauge}, or --quantity count"
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
    network_of: NDArray[np.integer] | None = None,
    timezone: str = "UTC",
    quantity: str = "count",
    unit: str = "",
    later: Sequence[tuple[int, int]] = (),
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
    network_of
        [S] index of each snapshot's network. Default: the first.
    timezone
        IANA name of the city's time zone, for the calendar.
    quantity
        "count", or the name of a gauge such as "speed".
    unit
        Unit of the values, only for display.
    later
        Changes after the last snapshot begins: (seconds since 1970 UTC, index of the network that holds from then on).
    """
    quantity = parse_quantity(quantity, where="make_stream")
    networks = (network,) if isinstance(network, RoadNetwork) else tuple(network)
    which = np.zeros(len(values), np.int64) if network_of is None else np.asarray(network_of, np.int64)
    present = np.stack([t.present for t in networks])
    seen = np.isfinite(values) if observed is None else np.asarray(observed, bool) & np.isfinite(values)
    if not present.all():
        seen = seen & present[which]
    stored = np.where(seen, values, 0).astype(np.float32, copy=False)
    steps = Steps(start_s, step_s, timezone)
    numbers = step_s * np.arange(len(values), dtype=np.int64)
    times_s = steps.times_s(0, len(values))
    offsets = utc_offsets_s(times_s, timezone)
    if (times_s != start_s + numbers).any():
        offsets = steps.local_start_s + numbers - times_s
    after = np.array(later, np.int64).reshape(-1, 2)
    return RoadNetworkStream(
        stored, seen, networks, which, start_s, step_s, offsets, timezone, quantity, unit, after[:, 0], after[:, 1]
    )
