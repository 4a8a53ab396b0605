"""The most common form of traffic data: a matrix [time, node] with a table of nodes and a table of roads.

The matrix is in an .npz, .npy or .h5 file, with its columns in the order of the node table (or road table, on roads).
It can also be a wide .csv, with the time in the first column and one column named after each node; `import_tables`
reads that. Rows need not be one step apart: each goes to the snapshot that contains its time, and snapshots without a
row are not observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import Steps, zone
from frigate.city.bucketing import bucket_matrix, usual_step_s
from frigate.city.city import City
from frigate.city.city_toml import parse_step
from frigate.city.network import RoadNetwork
from frigate.city.network_tables import NODE_COLUMNS
from frigate.city.stream import parse_quantity
from frigate.errors import CityError
from frigate.reading.column_names import SPEED_KPH, check_rename
from frigate.reading.notices import Notices
from frigate.reading.sandbox import sandboxed, scratch_folder
from frigate.reading.tables import open_table
from frigate.reading.times import Clock, array_times_us
from frigate.roads.on_roads import on_roads
from frigate.sources.arrays import SUFFIXES, open_arrays, read_array
from frigate.sources.tables.import_log import ImportLog
from frigate.sources.tables.importer import import_tables
from frigate.sources.tables.network import EDGE_COLUMNS, network_from_tables
from frigate.sources.timezones import timezone_of


@dataclass(frozen=True)
class _Matrix:
    values: NDArray[np.generic]  # [rows, columns]
    time_us: NDArray[np.int64] | None = None  # [rows]
    valid: NDArray[np.bool_] | None = None  # [rows] or [rows, columns]

    def take(self, columns: NDArray[np.int64]) -> _Matrix:
        if len(columns) == self.values.shape[1] and np.array_equal(columns, np.arange(len(columns))):
            return self
        valid = self.valid if self.valid is None or self.valid.ndim == 1 else self.valid[:, columns]
        return replace(self, values=self.values[:, columns], valid=valid)


@sandboxed
def import_matrix(
    file: str | Path,
    *,
    nodes: str | Path,
    edges: str | Path,
    values: str | None = None,
    time: str | None = None,
    valid: str | None = None,
    start: str | None = None,
    step: str | None = None,
    timezone: str | None = None,
    rename: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
    quantity: str | None = None,
    unit: str = "",
    on: str = "nodes",
    name: str | None = None,
) -> City:
    """Make a city from a matrix of readings and tables of nodes and roads.

    Parameters
    ----------
    file
        The matrix: .npz, .npy, .h5 or a wide .csv.
    nodes, edges
        Tables of intersections and roads, with common column names, as for `import_tables`.
    values
        Name of the matrix in the file, needed if the file has several.
    time
        Name of the array of times, or of the time column of a .csv. Numbers are seconds since 1970 UTC.
    valid
        Name of an array that is true where a row or cell was observed.
    start, step
        Time of the first row, and the step, for a matrix without times. With times, the step is inferred.
    timezone
        For times without a zone, including `start`. Default: that of the place.
    rename
        Columns of the tables -> ours. Units are converted: {"speed_mph": "speed_kph"}.
    encoding
        Encoding of CSV files that are not UTF-8.
    quantity, unit
        "count", or the name of a gauge such as "speed"; and its unit. Default: "count", unless the matrix has the name
        of a gauge.
    on
        "nodes": each column is an intersection. "roads": each column is a road, in the order of the road table, whose
        rows are single directions; every road becomes a node of the city and every turn an edge.
    name
        Name of the city; default: that of the file's folder.
    """
    path = Path(file)
    if path.suffix not in (*SUFFIXES, ".csv"):
        raise CityError(f'{path.name}: "{path.suffix}" files are not supported. Give .npz, .npy, .h5 or .csv')
    for given in (path, Path(nodes), Path(edges)):
        if not given.is_file():
            raise CityError(f"{given}: no such file")
    if (time is not None or path.suffix == ".csv") and start is not None:
        raise CityError(f"{path.name}: start is for a matrix without times. Leave it out")
    if quantity is not None or values is not None:
        quantity = parse_quantity(quantity, where=path.name, column=values or "")
    name = name or path.resolve().parent.name
    if path.suffix == ".csv":
        if values is not None or valid is not None:
            raise CityError(f"{path.name}: a wide csv has no named arrays. Leave out values and valid")
        with scratch_folder() as scratch:
            first = open_table(path, encoding=encoding, scratch=Path(scratch)).names[0]
        return import_tables(
            nodes=nodes,
            edges=edges,
            readings=path,
            rename={**(rename or {}), time or first: "time"},
            step=step,
            timezone=timezone,
            encoding=None if encoding == "utf-8" else encoding,
            quantity=quantity,
            unit=unit,
            on=on,
            name=name,
        )
    quantity = quantity or "count"
    log = ImportLog(refuse=True)  # leaving out a row would shift the columns
    notices = log.notices
    network, columns, told = _network(Path(nodes), Path(edges), rename or {}, encoding, on, log)
    timezone = timezone_of(network, timezone, notices)
    clock = Clock(zone(timezone), "")
    matrix = _from_arrays(path, values, time, valid, clock=clock, notices=notices)
    _check_shape(path, matrix, columns, told)
    matrix = matrix.take(columns.at)
    time_us, step_s = _times(path, matrix, start=start, step=step, clock=clock, timezone=timezone)
    snapshots, _ = bucket_matrix(
        matrix.values,
        time_us,
        network,
        step_s=step_s,
        timezone=timezone,
        quantity=quantity,
        notices=notices,
        valid=matrix.valid,
    )
    snapshots = snapshots.trimmed(notices)
    stream = snapshots.stream(network, quantity=quantity, unit=unit or _unit_of(values))
    if not stream.observed.any():
        raise CityError(f"{path.name} has no reading: every cell is missing, not valid or left out")
    return City.reported(name, stream, notices)


@dataclass(frozen=True)
class _NodeColumns:
    """Which columns of a matrix belong to which nodes."""

    count: int  # the number of rows of the table
    at: NDArray[np.int64]  # [N] the column of each node of the network


def _network(
    nodes: Path, edges: Path, rename: Mapping[str, str], encoding: str, on: str, log: ImportLog
) -> tuple[RoadNetwork, _NodeColumns, str]:
    """The network, its columns in the matrix, and a phrase for errors that says where their number comes from."""
    if on not in ("nodes", "roads"):
        raise CityError(f'on "{on}" is not known. Give nodes or roads')
    with scratch_folder() as scratch:
        tables = [open_table(path, encoding=encoding, scratch=Path(scratch)) for path in (nodes, edges)]
        check_rename(rename, [n for table in tables for n in table.names], (*NODE_COLUMNS, *EDGE_COLUMNS))
        network, roads = network_from_tables(tables[0], tables[1], rename, log, keep_parallel=on == "roads")
    if on == "nodes":
        return network, _NodeColumns(network.num_nodes, np.arange(network.num_nodes)), f"{nodes.name} has {{}} nodes"
    again = np.flatnonzero(np.bincount(roads.row) > 1)
    if len(again):
        raise CityError(
            f"{tables[1].place(int(again[0]))}: this road runs both ways, but the matrix has one column for it. "
            "Give each direction its own row and column"
        )
    at = np.searchsorted(roads.rows_of_table, roads.row)
    line_graph = on_roads(network, edges=roads.edges, notices=log.notices)
    return line_graph, _NodeColumns(len(roads.rows_of_table), at), f"{edges.name} has {{}} roads"


def _unit_of(name: str | None) -> str:
    return next((suffix[1:] for suffix in SPEED_KPH if name and name.endswith(suffix)), "")


# Files


def _from_arrays(
    path: Path, values: str | None, time: str | None, valid: str | None, *, clock: Clock, notices: Notices
) -> _Matrix:
    if path.suffix == ".npy" and (time is not None or valid is not None):
        raise CityError(f"{path.name} holds a single array. To add times or a mask, save an .npz")
    with open_arrays(path) as arrays:
        named = partial(read_array, path, arrays)
        name = values if path.suffix != ".npy" else "array"
        if name is None:
            flat = [n for n, read in arrays.items() if n not in (time, valid) and read().ndim == 2]
            if len(flat) != 1:
                raise CityError(f"{path.name} has {len(flat)} matrices. Say which with values: {', '.join(arrays)}")
            name = flat[0]
        matrix = _Matrix(named(name))
        if valid is not None:
            mask = named(valid)
            if mask.dtype.kind not in "biu":
                raise CityError(f'{path.name}: "{valid}" holds {mask.dtype}. True and false are expected')
            matrix = replace(matrix, valid=mask.astype(bool))
        if time is not None:
            times = named(time)
            if times.ndim != 1 or times.dtype.kind not in "iufMSU":
                found = f'"{time}" is {times.dtype} of shape {times.shape}'
                raise CityError(f"{path.name}: {found}. One time per row is expected")
            time_us = array_times_us(path, times, clock=clock, notices=notices, name=time)
            matrix = replace(matrix, time_us=time_us)
        return matrix


# Times and snapshots


def _check_shape(path: Path, matrix: _Matrix, columns: _NodeColumns, told: str) -> None:
    shape = matrix.values.shape
    N = columns.count
    if len(shape) != 2:
        raise CityError(f"{path.name}: the matrix has shape {shape}. [time, node] is expected: save one feature of it")
    if matrix.values.dtype.kind not in "biuf":
        raise CityError(f"{path.name}: the matrix holds {matrix.values.dtype}. Numbers are expected")
    if not shape[0]:
        raise CityError(f"{path.name}: the matrix has no rows")
    if shape[1] != N:
        turned = " It looks turned: save its transpose" if shape[0] == N else " Give the rows in the columns' order"
        raise CityError(f"{path.name}: {shape[1]} columns, but {told.format(N)}.{turned}")
    if matrix.time_us is not None and len(matrix.time_us) != shape[0]:
        raise CityError(f"{path.name}: {len(matrix.time_us)} times, but {shape[0]} rows")
    if matrix.valid is not None and matrix.valid.shape not in (shape, shape[:1]):
        raise CityError(f"{path.name}: valid has shape {matrix.valid.shape}. {shape[:1]} or {shape} is expected")


def _times(
    path: Path, matrix: _Matrix, *, start: str | None, step: str | None, clock: Clock, timezone: str
) -> tuple[NDArray[np.int64], int]:
    step_s = None if step is None else parse_step(step, where="step")
    if matrix.time_us is not None:
        return matrix.time_us, step_s or usual_step_s(np.diff(np.unique(matrix.time_us)), where=path.name)
    if start is None or step_s is None:
        raise CityError(f"{path.name}: its rows have no times. Name their array with time, or give start and step")
    start_us = clock.read_option("start", start)
    steps = Steps(start_us // 1_000_000, step_s, timezone)
    return start_us % 1_000_000 + 1_000_000 * steps.times_s(0, len(matrix.values)), step_s
