"""The table of readings, one per row: read from a city folder (or any table of that shape), and written to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.city.bucketing import (
    Readings,
    Snapshots,
    Span,
    bucket,
    in_time_order,
    snapshot_grid,
    usable_values,
    without_repeats,
)
from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.errors import CityError
from frigate.reading.columns import NodeIndex, numbers
from frigate.reading.notices import Notices, TableRow
from frigate.reading.tables import CSV_TIME, Table, write_table
from frigate.reading.times import Clock, RowOrder, times_us
from frigate.text import without_formulas

UNKNOWN_NODE = "Readings left out, their node is not in the network"


@dataclass(frozen=True)
class ReadReadings:
    """The usable readings of a table."""

    parts: list[Readings]  # in the order of the table
    span: Span | None  # of these readings, or of all rows of a dense table
    times_us: NDArray[np.int64]  # distinct times of the rows of a dense table
    rows: int
    zeros: int  # readings of 0

    def snapshots(
        self, network: RoadNetwork, *, step_s: int, timezone: str, quantity: str, notices: Notices
    ) -> Snapshots:
        """These readings in snapshots. Empties `parts`."""
        N = network.num_nodes
        count = sum(map(len, self.parts))
        if self.span is None:
            return Snapshots.none(N, step_s, timezone)
        grid = snapshot_grid(self.span, step_s=step_s, timezone=timezone, num_nodes=N, num_readings=count)
        parts = without_repeats(in_time_order(self.parts), network.node_ids, notices)
        return bucket(parts, grid, num_nodes=N, quantity=quantity)


def read_readings(
    tables: Iterable[Table],
    network: RoadNetwork,
    *,
    clock: Clock,
    quantity: str,
    notices: Notices,
    node: str = "node_id",
    value: str = "value",
    zeros_missing: bool = False,
    dense: bool = False,
) -> ReadReadings:
    """The readings of a table, which is read in batches of rows. A reading takes 16 bytes, so tens of millions fit.

    Parameters
    ----------
    tables
        Batches of rows with the columns `time`, `node` and `value`.
    network
        Readings of other nodes are left out. If they are most of the table, it is refused.
    clock
        How times without a zone are read.
    quantity
        For "count", negative values are left out.
    notices
        Collects what was left out or sorted.
    node, value
        Names of the columns.
    zeros_missing
        Whether a 0 means not observed.
    dense
        Whether the table has a row for every node and time, sorted by node, with an empty value where nothing was
        observed. Then a row without a value still makes a snapshot, and rows earlier than the row above are normal.
    """
    index = NodeIndex(network.node_ids)
    parts: list[Readings] = []
    row_times: list[NDArray[np.int64]] = []
    span = None
    order = RowOrder()
    total = 0
    unknown = 0
    zeros = 0
    latest = None
    for table in tables:
        if not len(table):
            continue
        place = table.place_of(node, value)
        row = index.rows(table, node)
        time_us = times_us(table, "time", clock=clock, notices=notices, series=row, order=order)
        if not dense:
            earlier = np.diff(time_us, prepend=time_us[0] if latest is None else latest) < 0
            notices.add_rows("Readings earlier than the row above; all were sorted by time", earlier, place)
            latest = int(time_us[-1])
        known = row >= 0
        notices.add_rows(UNKNOWN_NODE, ~known, _unknown_node(table, node, index))
        total = total + len(table)
        unknown = unknown + int((~known).sum())
        stored, keep = usable_values(numbers(table, value)[0], known, quantity=quantity, notices=notices, place=place)
        zero = keep & (stored == 0)
        zeros += int(zero.sum())
        if zeros_missing:
            keep &= ~zero
        span = _widened(span, table, time_us, known if dense else keep)
        if dense:
            row_times.append(np.unique(time_us[known]))
        if keep.any():
            parts.append(Readings(time_us[keep], row[keep].astype(np.int32), stored[keep]))
    if unknown * 2 > total:
        first = notices.places[UNKNOWN_NODE][0]
        raise CityError(
            f"{first}. The same holds for {unknown:,} of {total:,} readings: are these the readings of another network?"
        )
    return ReadReadings(parts, span, np.unique(np.concatenate([np.zeros(0, np.int64), *row_times])), total, zeros)


def _unknown_node(table: Table, column: str, index: NodeIndex) -> Callable[[int], TableRow]:
    def place(row: int) -> TableRow:
        name = table.frame[column][row]
        text = f': node "{"" if name is None else name}" is not in the network{index.nearest(name)}'
        return TableRow(text, table.file, table.row(row))

    return place


def _widened(span: Span | None, table: Table, time_us: NDArray[np.int64], rows: NDArray[np.bool_]) -> Span | None:
    """The span, extended by these rows of a table."""
    at = np.flatnonzero(rows)
    place = table.place_of()
    return Span.of(time_us[at], lambda i: place(int(at[i]))).joined(span) if len(at) else span


def write_readings(stream: RoadNetworkStream, folder: Path, *, csv: bool) -> None:
    """Write one row for each observed cell, sorted by time and node, a few snapshots at a time."""
    import polars as pl
    from polars.io.plugins import register_io_source

    ids = pl.Series("node_id", stream.node_ids)
    if csv:
        ids = without_formulas(ids.to_frame())["node_id"]
    schema = {"time": pl.Datetime("us", "UTC"), "node_id": ids.dtype, "value": pl.Float32()}
    rows_at_once = max(1, 1_000_000 // max(1, stream.num_nodes))

    def parts(*_: object) -> Iterator[pl.DataFrame]:
        for first in range(0, stream.num_snapshots, rows_at_once):
            values = stream.values[first:][:rows_at_once]
            observed = stream.observed[first:][:rows_at_once]
            snapshot, node = np.nonzero(observed)
            time_us = pl.Series(stream.times_s[first + snapshot] * 1_000_000, dtype=pl.Int64)
            columns = {"time": time_us.cast(schema["time"]), "node_id": ids.gather(node), "value": values[observed]}
            yield pl.DataFrame(columns, schema=schema)

    frame = register_io_source(parts, schema=schema)
    if csv:
        frame.sink_csv(folder / "readings.csv", datetime_format=CSV_TIME, maintain_order=True)
    else:
        frame.sink_parquet(folder / "readings.parquet", row_group_size=1 << 20, maintain_order=True)


def write_rows(readings: Readings, node_ids: NDArray[np.generic], folder: Path, *, csv: bool) -> None:
    """Write readings by row of the node, in the given order."""
    import polars as pl

    time_us = pl.Series(readings.time_us, dtype=pl.Int64).cast(pl.Datetime("us", "UTC"))
    node_id = pl.Series(node_ids).gather(readings.column)
    frame = pl.DataFrame({"time": time_us, "node_id": node_id, "value": readings.value})
    write_table(frame, folder, "readings", csv=csv)
