"""The table of readings: read into the snapshots of a stream, and written from them.

No row is no observation; a 0 is a real zero. Readings of one snapshot and node: counts are summed, gauges keep the
latest. Snapshots run from that of the first reading to that of the last and begin at whole steps from local midnight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.data.network import RoadNetwork
from frigate.data.notices import Notices, Spot
from frigate.data.stream import RoadNetworkStream, bucket, utc_offsets_s
from frigate.data.tables import BATCH_ROWS, CSV_TIME, ROW, NodeIndex, Table, numbers, table_batches
from frigate.data.times import Clock, times_us, utc_text
from frigate.errors import CityError

MAX_CELLS = 1_500_000_000  # snapshots x nodes that a stream may have: 7.5 GB
MANY_CELLS = 100_000_000  # of so many, hardly any with a reading is a mistaken time
MIN_WIDTH = 30  # what a snapshot costs whatever it holds, in nodes
LOST = "Readings left out, their node is not in the network"


@dataclass(frozen=True)
class Snapshots:
    """Readings sorted into snapshots, `start_s` the start of the first."""

    values: NDArray[np.float32]  # [S,N]
    observed: NDArray[np.bool_]  # [S,N]
    start_s: int

    @staticmethod
    def none(num_nodes: int) -> Snapshots:
        return Snapshots(np.zeros((0, num_nodes), np.float32), np.zeros((0, num_nodes), bool), 0)


@dataclass(frozen=True)
class Span:
    """The first and the last time with a reading, and where they stand."""

    first_us: int
    last_us: int
    first: Spot
    last: Spot


@dataclass(frozen=True)
class _Readings:
    time_us: NDArray[np.int64]
    node: NDArray[np.int32]
    value: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.node)

    def take(self, rows: NDArray[np.generic] | slice) -> _Readings:
        return _Readings(self.time_us[rows], self.node[rows], self.value[rows])

    @staticmethod
    def join(parts: Sequence[_Readings]) -> _Readings:
        return _Readings(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(_Readings)))


def read_snapshots(
    path: Path,
    network: RoadNetwork,
    *,
    step_s: int,
    timezone: str,
    quantity: str,
    clock: Clock,
    notices: Notices,
) -> Snapshots:
    """The readings of a table, in the snapshots from the first to the last of them."""
    runs, span = _read_runs(path, network, clock=clock, quantity=quantity, notices=notices)
    if span is None:
        return Snapshots.none(network.num_nodes)
    N = network.num_nodes
    start_s = align_start_s(span.first_us, step_s=step_s, timezone=timezone)
    total = sum(len(run) for run in runs)
    S = count_snapshots(span, start_s=start_s, step_s=step_s, num_nodes=N, num_readings=total)
    held = Snapshots(np.zeros((S, N), np.float32), np.zeros((S, N), bool), start_s)
    left: list[_Readings] = []
    while runs:
        run = _Readings.join([*left, runs.pop(0)])  # taken from the list, for memory
        # Readings of one time stay together, so that duplicates meet.
        cut = len(run) if not runs else int(np.searchsorted(run.time_us, run.time_us[-1]))
        left = [run.take(slice(cut, None))]
        _fill(held, _without_duplicates(run.take(slice(0, cut)), network, notices), step_s=step_s, quantity=quantity)
    return held


def _read_runs(
    path: Path, network: RoadNetwork, *, clock: Clock, quantity: str, notices: Notices
) -> tuple[list[_Readings], Span | None]:
    """Valid readings in order of time, in runs; 16 bytes a reading, so that tens of millions fit."""
    index = NodeIndex(network.node_ids)
    runs: list[_Readings] = []
    total, lost, descents = 0, 0, 0
    latest: int | None = None
    span: Span | None = None
    for table in table_batches(path, needed=("time", "node_id", "value"), notices=notices):
        if not len(table):
            continue
        spot = table.spot("node_id", "value")
        time_us = times_us(table, "time", clock=clock, notices=notices)
        earlier = np.diff(time_us, prepend=time_us[0] if latest is None else latest) < 0
        notices.add_rows("Readings earlier than the row above; all were sorted by time", earlier, spot)
        descents, latest = descents + int(earlier.sum()), int(time_us[-1])
        node = index.rows(table, "node_id")
        unknown = node < 0
        notices.add_rows(LOST, unknown, _unknown_node(table, index))
        total, lost = total + len(table), lost + int(unknown.sum())
        value, keep = valid_values(numbers(table, "value")[0], ~unknown, quantity=quantity, notices=notices, spot=spot)
        if keep.any():
            span = _widened(span, table, time_us, np.flatnonzero(keep))
            runs.append(_Readings(time_us[keep], node[keep].astype(np.int32), value[keep]))
    if lost * 2 > total:
        first = notices.spots[LOST][0].place()
        raise CityError(f"{first}. So are {lost:,} of {total:,} readings: are these the readings of another network?")
    if descents and runs:
        whole = _Readings.join(runs)
        whole = whole.take(np.argsort(whole.time_us, kind="stable"))
        runs = [whole.take(slice(first, first + BATCH_ROWS)) for first in range(0, len(whole), BATCH_ROWS)]
    return runs, span


def _unknown_node(table: Table, index: NodeIndex) -> Callable[[int], Spot]:
    def tell(row: int) -> Spot:
        name = table.frame["node_id"][row]
        said = f': node "{"" if name is None else name}" is not in the network{index.nearest(name)}'
        return Spot(said, table.path, int(table.frame[ROW][row]))

    return tell


def _widened(span: Span | None, table: Table, time_us: NDArray[np.int64], kept: NDArray[np.int64]) -> Span:
    """The span with these rows of a table in it."""
    spot = table.spot()
    low, high = int(kept[np.argmin(time_us[kept])]), int(kept[np.argmax(time_us[kept])])
    here = Span(int(time_us[low]), int(time_us[high]), spot(low), spot(high))
    if span is None:
        return here
    first, last = (here if here.first_us < span.first_us else span), (here if here.last_us > span.last_us else span)
    return Span(first.first_us, last.last_us, first.first, last.last)


def valid_values(
    value: NDArray[np.floating],
    kept: NDArray[np.bool_],
    *,
    quantity: str,
    notices: Notices,
    spot: Callable[[int], Spot],
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Values as they are stored, and which of `kept` can be: not NaN, not infinite, not a negative count."""
    with np.errstate(over="ignore"):
        held = value.astype(np.float32)  # what float32 cannot hold becomes infinite
    missing = kept & np.isnan(held)
    notices.add_rows("Readings without a value (empty or NaN), taken as not observed", missing, spot)
    endless = kept & np.isinf(held)
    notices.add_rows("Infinite readings were left out", endless, spot)
    keep = kept & ~missing & ~endless
    if quantity == "count":
        negative = keep & (held < 0)
        notices.add_rows("Negative counts were left out", negative, spot)
        keep &= ~negative
    return held, keep


def align_start_s(first_us: int, *, step_s: int, timezone: str) -> int:
    """The last whole step from local midnight at or before a time."""
    first_s = first_us // 1_000_000
    offset_s = int(utc_offsets_s(np.array([first_s]), timezone)[0])
    return (first_s + offset_s) // step_s * step_s - offset_s


def count_snapshots(span: Span, *, start_s: int, step_s: int, num_nodes: int, num_readings: int) -> int:
    """How many snapshots a span has. More than could be held is refused before any memory is taken."""
    count = (span.last_us // 1_000_000 - start_s) // step_s + 1
    cells = count * max(num_nodes, MIN_WIDTH)
    if cells > MAX_CELLS or (cells > MANY_CELLS and num_readings * 1_000_000 < cells):
        first = f"{utc_text(span.first_us)} ({span.first.place()})"
        last = f"{utc_text(span.last_us)} ({span.last.place()})"
        raise CityError(
            f"readings from {first} to {last} make {count:,} snapshots of {num_nodes:,} nodes, "
            f"for {num_readings:,} readings. Is one of these times mistaken?"
        )
    return count


def _fill(held: Snapshots, part: _Readings, *, step_s: int, quantity: str) -> None:
    """Put readings, in order of time, into their snapshots."""
    if not len(part):
        return
    first = (int(part.time_us[0]) // 1_000_000 - held.start_s) // step_s
    stop = (int(part.time_us[-1]) // 1_000_000 - held.start_s) // step_s + 1
    values, seen = bucket(
        part.time_us / 1e6,
        part.node,
        part.value,
        num_nodes=held.values.shape[1],
        start_s=held.start_s + first * step_s,
        step_s=step_s,
        num_snapshots=stop - first,
        quantity=quantity,
    )
    if quantity == "count":
        held.values[first:stop] += values
    else:
        held.values[first:stop] = np.where(seen, values, held.values[first:stop])
    held.observed[first:stop] |= seen


def _without_duplicates(readings: _Readings, network: RoadNetwork, notices: Notices) -> _Readings:
    same_time = np.diff(readings.time_us) == 0
    if (~same_time | (np.diff(readings.node) > 0)).all():
        return readings
    order = np.lexsort((readings.node, readings.time_us))  # stable: the last of equals is the last in the file
    time_us, node = readings.time_us[order], readings.node[order]
    again = (np.diff(time_us) == 0) & (np.diff(node) == 0)

    def spot(row: int) -> Spot:
        return Spot(f'node "{network.node_ids[node[row]]}" at {utc_text(int(time_us[row]))}')

    notices.add_rows("Readings repeated for the same node and time, the last kept", again, spot)
    return readings.take(np.sort(order[np.append(~again, True)]))


def write_readings(stream: RoadNetworkStream, folder: Path, *, csv: bool) -> None:
    """One row for each observed cell, by time and then by node, a few snapshots at a time."""
    import polars as pl
    from polars.io.plugins import register_io_source

    ids = pl.Series(stream.node_ids)
    schema = {"time": pl.Datetime("us", "UTC"), "node_id": ids.dtype, "value": pl.Float32()}
    rows_at_once = max(1, 1_000_000 // max(1, stream.num_nodes))

    def parts(*_: object) -> Iterator[pl.DataFrame]:
        for first in range(0, stream.num_snapshots, rows_at_once):
            values, observed = stream.values[first:][:rows_at_once], stream.observed[first:][:rows_at_once]
            snapshot, node = np.nonzero(observed)
            time_us = pl.Series(stream.times_s[first + snapshot] * 1_000_000, dtype=pl.Int64)
            columns = {
                "time": time_us.cast(schema["time"]),
                "node_id": ids.gather(node),
                "value": values[observed],
            }
            yield pl.DataFrame(columns, schema=schema)

    frame = register_io_source(parts, schema=schema)
    if csv:
        frame.sink_csv(folder / "readings.csv", datetime_format=CSV_TIME, maintain_order=True)
    else:
        frame.sink_parquet(folder / "readings.parquet", row_group_size=1 << 20, maintain_order=True)
