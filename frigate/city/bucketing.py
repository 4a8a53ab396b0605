"""Put readings into snapshots. Every source uses these rules.

A reading's time is the start of its interval, and snapshot t covers [t, t + step). If a node has several readings in
one snapshot, counts are summed and a gauge keeps the latest. A second reading of a node at the same time is a
correction and replaces the first. No reading means not observed; a 0 is a real zero. Snapshots run from the first
reading to the last and start at whole steps from local midnight.

S snapshots, N nodes, R readings, D sensors (a node may have several).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from frigate.calendar import Steps
from frigate.city.city_toml import whole_step
from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.errors import CityError
from frigate.reading.notices import Notices, Place
from frigate.reading.times import utc_text

MAX_CELLS = 1_500_000_000  # snapshots x nodes in a stream: 7.5 GB
MANY_CELLS = 100_000_000  # this many with hardly any readings means that a time is wrong
MIN_WIDTH = 30  # fixed cost of a snapshot, in nodes
PART_READINGS = 1 << 20  # readings processed at a time
BLOCK_CELLS = 4_000_000  # snapshots x sensors processed at a time


@dataclass(frozen=True)
class Readings:
    """Readings by node or by sensor."""

    time_us: NDArray[np.int64]  # [R] start of the interval, microseconds since 1970 UTC
    column: NDArray[np.integer]  # [R] row of the node, or index of the sensor
    value: NDArray[np.number]  # [R]
    row: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # [R] table row; empty: not kept

    def __len__(self) -> int:
        return len(self.time_us)

    def take(self, rows: NDArray[np.generic] | slice) -> Readings:
        row = self.row[rows] if len(self.row) else self.row
        return Readings(self.time_us[rows], self.column[rows], self.value[rows], row)

    @staticmethod
    def join(parts: Sequence[Readings]) -> Readings:
        return Readings(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Readings)))

    @staticmethod
    def none() -> Readings:
        return Readings(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


@dataclass(frozen=True)
class Span:
    """The times of the first and last readings, and where each is in the input."""

    first_us: int
    last_us: int
    first: Place
    last: Place

    @staticmethod
    def of(time_us: NDArray[np.int64], place: Callable[[int], Place]) -> Span:
        low = int(np.argmin(time_us))
        high = int(np.argmax(time_us))
        return Span(int(time_us[low]), int(time_us[high]), place(low), place(high))

    def joined(self, other: Span | None) -> Span:
        if other is None:
            return self
        first = self if self.first_us < other.first_us else other
        last = self if self.last_us > other.last_us else other
        return Span(first.first_us, last.last_us, first.first, last.last)


@dataclass(frozen=True)
class Grid:
    """The snapshots that cover a period."""

    steps: Steps
    num_snapshots: int

    def snapshot_of(self, time_us: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.steps.snapshot_at(time_us // 1_000_000)


@dataclass(frozen=True)
class Snapshots:
    """Values and observed mask of all nodes on a grid."""

    values: NDArray[np.float32]  # [S,N]
    observed: NDArray[np.bool_]  # [S,N]
    steps: Steps

    @staticmethod
    def none(num_nodes: int, step_s: int, timezone: str) -> Snapshots:
        """Snapshots without any reading."""
        empty = np.zeros((0, num_nodes), np.float32), np.zeros((0, num_nodes), bool)
        return Snapshots(*empty, Steps(0, step_s, timezone))

    def trimmed(self, notices: Notices) -> Snapshots:
        """Drop the empty snapshots before the first reading and after the last."""
        seen = np.flatnonzero(self.observed.any(axis=1))
        first, stop = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 0)
        lost = len(self.values) - (stop - first)
        notices.add("Snapshots without any reading before the first or after the last, left out", lost)
        steps = replace(self.steps, start_s=self.steps.time_s(first))
        return Snapshots(self.values[first:stop], self.observed[first:stop], steps)

    def stream(
        self,
        network: RoadNetwork | Sequence[RoadNetwork],
        *,
        quantity: str = "count",
        unit: str = "",
        network_of: NDArray[np.int64] | None = None,
        later: Sequence[tuple[int, int]] = (),
    ) -> RoadNetworkStream:
        """A stream of these snapshots. Parameters are those of `make_stream`."""
        return make_stream(
            self.values,
            network,
            start_s=self.steps.start_s,
            step_s=self.steps.step_s,
            observed=self.observed,
            network_of=network_of,
            timezone=self.steps.timezone,
            quantity=quantity,
            unit=unit,
            later=later,
        )


def bucket(parts: Iterable[Readings], grid: Grid, *, num_nodes: int, quantity: str) -> Snapshots:
    """Put readings into the snapshots of a grid.

    Parameters
    ----------
    parts
        Readings by node, in parts. Within a part the order is free; for a gauge, no part may have a reading earlier
        than one in the part before. Readings outside the grid are dropped.
    grid
        The snapshots, from `snapshot_grid`.
    num_nodes
        N, the number of columns.
    quantity
        "count": the readings in a cell are summed. Anything else is a gauge, which keeps the latest reading.
    """
    S = grid.num_snapshots
    N = num_nodes
    snapshots = Snapshots(np.zeros((S, N), np.float32), np.zeros((S, N), bool), grid.steps)
    for part in parts:
        _put(part, grid.snapshot_of(part.time_us), snapshots.values, snapshots.observed, quantity)
    return snapshots


def _put(
    readings: Readings,
    snapshot: NDArray[np.int64],
    values: NDArray[np.floating],
    observed: NDArray[np.bool_],
    quantity: str,
) -> None:
    """Add readings to values and mask [S,N], in place."""
    S, N = values.shape
    inside = (snapshot >= 0) & (snapshot < S)
    if not inside.all():
        readings = readings.take(inside)
        snapshot = snapshot[inside]
    cell = snapshot * N + readings.column
    if quantity == "count":
        np.add.at(values.reshape(-1), cell, readings.value)
    else:
        order = np.argsort(readings.time_us, kind="stable")
        values.reshape(-1)[cell[order]] = readings.value[order]  # numpy keeps the last assignment to a cell
    observed.reshape(-1)[cell] = True


@dataclass(frozen=True)
class SensorSnapshots:
    """Snapshots of nodes, combined from the sensors at each node."""

    snapshots: Snapshots
    partial: NDArray[np.int64]  # [N] snapshots left out because only some of the node's sensors reported
    incomplete: int  # snapshots that a sensor covered only in part, summed over sensors


def bucket_sensors(
    readings: Readings,
    grid: Grid,
    *,
    node_of: NDArray[np.int64],
    num_nodes: int,
    quantity: str,
    duration_ms: NDArray[np.int64] | None = None,
    covered_ms: NDArray[np.int64] | None = None,
) -> SensorSnapshots:
    """Put the readings of sensors into the snapshots of their nodes.

    A node's counts are summed over its sensors where all of them report; gauges are averaged over those that report.

    Parameters
    ----------
    readings
        Readings by sensor, in any order.
    grid
        The snapshots, from `snapshot_grid`.
    node_of
        [D] row of each sensor's node; -1 if it has none.
    num_nodes
        N, the number of nodes.
    quantity
        "count", or anything else for a gauge.
    duration_ms
        [R] length of each reading's interval. If given, a sensor reports in a snapshot only if its intervals fill it.
    covered_ms
        [S] time in each snapshot covered by every sensor, for input that omits readings of 0.
    """
    S = grid.num_snapshots
    D = len(node_of)
    snapshot = grid.snapshot_of(readings.time_us)
    order = np.argsort(snapshot, kind="stable")
    readings = readings.take(order)
    snapshot = snapshot[order]
    placed = np.flatnonzero(node_of >= 0)
    join = coo_array((np.ones(len(placed)), (node_of[placed], placed)), shape=(num_nodes, D)).tocsr()
    sensors = np.bincount(node_of[placed], minlength=num_nodes)
    total = Snapshots(np.zeros((S, num_nodes), np.float32), np.zeros((S, num_nodes), bool), grid.steps)
    partial = np.zeros(num_nodes, np.int64)
    incomplete = 0
    block = max(1, BLOCK_CELLS // max(1, D))
    for low in range(0, S, block):
        high = min(low + block, S)
        rows = slice(*np.searchsorted(snapshot, [low, high]))
        values = np.zeros((high - low, D))
        reports = np.zeros((high - low, D), bool)
        part = readings.take(rows)
        _put(part, snapshot[rows] - low, values, reports, quantity)
        if duration_ms is not None:
            filled_ms = np.zeros((high - low, D))
            lasting = replace(part, value=duration_ms[order][rows])
            _put(lasting, snapshot[rows] - low, filled_ms, reports, "count")
            if covered_ms is not None:
                filled_ms[:] = covered_ms[low:high, None]
            whole_ms = 1000 * np.diff(grid.steps.times_s(low, high + 1))[:, None]
            reports = (filled_ms == whole_ms) & (whole_ms > 0)
            incomplete += int(((filled_ms > 0) & ~reports).sum())
        sums = (join @ np.where(reports, values, 0).T).T
        reporting = (join @ reports.T.astype(np.float64)).T
        if quantity == "count":
            seen = (reporting == sensors) & (sensors > 0)
            partial += ((reporting > 0) & ~seen).sum(axis=0)
        else:
            seen = reporting > 0
            sums = sums / np.maximum(reporting, 1)
        total.values[low:high] = np.where(seen, sums, 0)
        total.observed[low:high] = seen
    return SensorSnapshots(total, partial, incomplete)


def bucket_matrix(
    values: NDArray[np.generic],
    time_us: NDArray[np.int64],
    network: RoadNetwork,
    *,
    step_s: int,
    timezone: str,
    quantity: str,
    notices: Notices,
    valid: NDArray[np.bool_] | None = None,
    zeros_missing: bool = False,
) -> tuple[Snapshots, int]:
    """Put a matrix of readings into snapshots. Its rows may be in any order and need not be one step apart.

    Parameters
    ----------
    values
        [rows, N] numbers of any type. NaN means no reading.
    time_us
        [rows] microseconds since 1970 UTC.
    network
        Its nodes are the columns of the result.
    step_s, timezone
        Length of a snapshot; snapshots start at whole steps from midnight in this time zone.
    quantity
        "count", or anything else for a gauge.
    notices
        Collects what was left out or sorted.
    valid
        [rows] or [rows, N], False where there is no reading.
    zeros_missing
        Whether a 0 means not observed.

    Returns
    -------
    The snapshots, and how many cells of the matrix are 0.
    """
    N = network.num_nodes
    zeros = 0
    earlier = np.diff(time_us, prepend=time_us[:1]) < 0
    notices.add_rows("Rows of the matrix earlier than the row above, sorted", earlier, lambda row: f"row {row + 1}")
    span = Span.of(time_us, lambda row: f"row {row + 1} of the matrix")
    grid = snapshot_grid(span, step_s=step_s, timezone=timezone, num_nodes=N, num_readings=values.size)
    order = np.argsort(time_us, kind="stable")

    def parts() -> Iterator[Readings]:
        nonlocal zeros
        block = max(1, BLOCK_CELLS // N)
        for first in range(0, len(order), block):
            rows = order[first : first + block]

            def place(cell: int, rows: NDArray[np.int64] = rows) -> str:
                row = int(rows[cell // N]) + 1
                node = network.node_ids[cell % N]
                return f'row {row} of the matrix, node "{node}"'

            raw = values[rows].reshape(-1)
            kept = np.ones(len(raw), bool)
            if valid is not None:
                kept = np.broadcast_to(valid[rows].reshape(len(rows), -1), (len(rows), N)).reshape(-1)
            zeros += int((raw == 0).sum())
            if zeros_missing:
                kept = kept & (raw != 0)
            stored, keep = usable_values(raw, kept, quantity=quantity, notices=notices, place=place)
            cell = np.flatnonzero(keep)
            yield Readings(time_us[rows[cell // N]], cell % N, stored[cell])

    snapshots = bucket(without_repeats(parts(), network.node_ids, notices), grid, num_nodes=N, quantity=quantity)
    return snapshots, zeros


# The grid


def snapshot_grid(span: Span, *, step_s: int, timezone: str, num_nodes: int, num_readings: int) -> Grid:
    """The snapshots of a span, starting at whole steps from local midnight.

    A grid too large for memory is refused before any memory is allocated.
    """
    first_s = span.first_us // 1_000_000
    last_s = span.last_us // 1_000_000
    count = (last_s - first_s) // step_s + 1
    cells = count * max(num_nodes, MIN_WIDTH)
    if cells > MAX_CELLS or (cells > MANY_CELLS and num_readings * 1_000_000 < cells):
        first = f"{utc_text(span.first_us)} ({span.first})"
        last = f"{utc_text(span.last_us)} ({span.last})"
        raise CityError(
            f"readings from {first} to {last} make {count:,} snapshots of {num_nodes:,} nodes, "
            f"for {num_readings:,} readings. Is one of these times mistaken?"
        )
    steps = Steps.from_midnight(first_s, step_s, timezone)
    low, high = steps.snapshot_at(np.array([first_s, last_s])).tolist()
    return Grid(replace(steps, start_s=steps.time_s(low)), high - low + 1)


def usual_step_s(gap_us: NDArray[Any], *, where: str) -> int:
    """The most frequent gap between readings, as a step."""
    gaps, count = np.unique(gap_us, return_counts=True)
    if not len(gaps):
        raise CityError(f"{where}: only one time, so the step cannot be inferred. Give a step such as 5min")
    usual_us = int(gaps[np.argmax(count)])
    if usual_us % 1_000_000:
        raise CityError(f"{where}: readings are mostly {usual_us / 1e6:g} s apart. Give a step such as 5min")
    return whole_step(usual_us // 1_000_000, where=where)


# Usable readings


def usable_values(
    value: NDArray[np.generic],
    kept: NDArray[np.bool_],
    *,
    quantity: str,
    notices: Notices,
    place: Callable[[int], Place],
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Values as float32, and which of `kept` are usable: not NaN, not infinite, not a negative count."""
    with np.errstate(over="ignore"):
        stored = value.astype(np.float32)  # too large for float32: infinite
    missing = kept & np.isnan(stored)
    notices.add_rows("Readings without a value (empty or NaN), taken as not observed", missing, place)
    infinite = kept & np.isinf(stored)
    notices.add_rows("Infinite readings were left out", infinite, place)
    keep = kept & ~missing & ~infinite
    if quantity == "count":
        negative = keep & (stored < 0)
        notices.add_rows("Negative counts were left out", negative, place)
        keep &= ~negative
    return stored, keep


def in_time_order(parts: list[Readings]) -> Iterator[Readings]:
    """The readings sorted by time, in parts. Empties the list as it goes, to save memory."""
    ends = [time for p in parts if len(p) for time in (p.time_us[0], p.time_us[-1])]
    if (np.diff(ends) < 0).any() or any((np.diff(p.time_us) < 0).any() for p in parts):
        whole = Readings.join(parts)
        parts.clear()
        whole = whole.take(np.argsort(whole.time_us, kind="stable"))
        parts += [whole.take(slice(first, first + PART_READINGS)) for first in range(0, len(whole), PART_READINGS)]
    while parts:
        yield parts.pop(0)


def repeated(readings: Readings) -> NDArray[np.bool_]:
    """[R] True where a later row has the same node and time."""
    again = np.zeros(len(readings), bool)
    later_us = np.diff(readings.time_us)
    if ((later_us > 0) | ((later_us == 0) & (np.diff(readings.column) > 0))).all():
        return again
    order = np.lexsort((readings.column, readings.time_us))  # stable: among equals, the last row stays last
    same = (np.diff(readings.time_us[order]) == 0) & (np.diff(readings.column[order]) == 0)
    again[order[:-1][same]] = True
    return again


def without_repeats(parts: Iterable[Readings], node_ids: NDArray[np.generic], notices: Notices) -> Iterator[Readings]:
    """Drop readings that a later row of the same node and time corrects. Parts must be sorted by time."""
    left = Readings.none()
    for part in parts:
        both = Readings.join([left, part]) if len(left) else part
        # Hold back the readings of the last time: the next part may correct them.
        cut = int(np.searchsorted(both.time_us, both.time_us[-1])) if len(both) else 0
        yield _single(both.take(slice(0, cut)), node_ids, notices)
        left = both.take(slice(cut, None))
    yield _single(left, node_ids, notices)


def _single(part: Readings, node_ids: NDArray[np.generic], notices: Notices) -> Readings:
    again = repeated(part)
    if not again.any():
        return part

    def place(row: int) -> str:
        return f'node "{node_ids[part.column[row]]}" at {utc_text(int(part.time_us[row]))}'

    notices.add_rows("Readings repeated for the same node and time, the last kept", again, place)
    return part.take(~again)
