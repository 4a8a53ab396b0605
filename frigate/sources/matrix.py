"""The commonest form of traffic data: a matrix [time, node] beside a table of nodes and a table of roads.

The matrix is in an .npz, .npy or .h5 file, its columns in the order of the rows of the node table; or it is a wide .csv
whose first column is the time and whose other columns are named by node. Its rows need not be a step apart: a row goes
to the snapshot that its time falls in, and snapshots without a row are not observed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.data.bucketing import MAX_CELLS, bucket_matrix, usual_step_s
from frigate.data.city import City
from frigate.data.city_toml import parse_quantity, parse_step
from frigate.data.columns import NodeIndex, numbers
from frigate.data.network import RoadNetwork
from frigate.data.network_tables import note_network, read_edges, read_nodes
from frigate.data.notices import InputPlace, Notices
from frigate.data.sandbox import sandboxed
from frigate.data.stream import zone
from frigate.data.tables import SPEED_KPH, column_names, read_table
from frigate.data.times import Clock, array_times_us, times_us
from frigate.errors import CityError, FrigateError, MissingExtraError, did_you_mean


@dataclass(frozen=True)
class _Matrix:
    values: NDArray[np.generic]  # [rows, columns]
    time_us: NDArray[np.int64] | None  # [rows]
    valid: NDArray[np.bool_] | None  # [rows] or [rows, columns]
    columns: NDArray[np.int64] | None  # [columns] row of the node table; None: in its order


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
    timezone: str = "UTC",
    rename: Mapping[str, str] | None = None,
    quantity: str = "count",
    unit: str = "",
    name: str | None = None,
) -> City:
    """A city from a matrix. Either `time` names an array of times in the file, or `start` and `step` say them.

    Numbers are seconds since 1970 UTC; text without a zone, also `start`, is local time in `timezone`. `valid` names an
    array that is true where a row, or a cell, was observed. `rename` maps columns of the tables to ours and converts
    units on the way: {"speed_mph": "speed_kph"}.
    """
    path = _existing(file)
    notices = Notices()
    network = _network(_existing(nodes), _existing(edges), rename or {}, notices)
    clock = Clock(zone(timezone), "")
    if (time is not None or path.suffix == ".csv") and start is not None:
        raise CityError(f"{path.name}: start is for a matrix without times. Leave it out")
    reader = {".npz": _from_npz, ".npy": _from_npy, ".h5": _from_h5, ".hdf5": _from_h5, ".csv": _from_csv}.get(
        path.suffix
    )
    if reader is None:
        raise CityError(f'{path.name}: files that end in "{path.suffix}" are not read. Give .npz, .npy, .h5 or .csv')
    matrix = reader(path, _Options(values, time, valid, clock, network, notices))
    _check_shape(path, matrix, network, nodes)
    time_us, step_s = _times(path, matrix, start=start, step=step, clock=clock)
    quantity = parse_quantity(quantity, where="--quantity")
    snapshots, _ = bucket_matrix(
        matrix.values,
        time_us,
        network,
        step_s=step_s,
        timezone=timezone,
        quantity=quantity,
        notices=notices,
        columns=matrix.columns,
        valid=matrix.valid,
    )
    snapshots = snapshots.trimmed(notices)
    stream = snapshots.stream(network, timezone=timezone, quantity=quantity, unit=unit or _unit_of(values))
    if not stream.observed.any():
        raise CityError(f"{path.name} has no reading: every cell is missing, not valid or left out")
    told = notices.sentences()
    return City(name or path.resolve().parent.name, stream, tuple(told), places=told)


@dataclass(frozen=True)
class _Options:
    """What to look for in the file, and how to read it."""

    values: str | None
    time: str | None
    valid: str | None
    clock: Clock
    network: RoadNetwork
    notices: Notices


def _existing(path: str | Path) -> Path:
    if not Path(path).is_file():
        raise CityError(f"{path}: there is no such file")
    return Path(path)


def _network(nodes: Path, edges: Path, rename: Mapping[str, str], notices: Notices) -> RoadNetwork:
    columns = [c for path in (nodes, edges) for c in column_names(path)]
    for source in rename:
        if source not in columns:
            there = f"Their columns are: {', '.join(dict.fromkeys(columns))}"
            raise CityError(f'map: neither table has a column "{source}"{did_you_mean(source, columns)}. {there}')
    network = read_nodes(nodes, notices=notices, rename=rename)
    network = read_edges(edges, network, notices=notices, rename=rename)
    if not network.num_edges:
        raise CityError(f"{edges.name} has no roads. A city needs roads between its nodes")
    note_network(network, notices)
    return network


def _unit_of(name: str | None) -> str:
    return next((suffix[1:] for suffix in SPEED_KPH if name and name.endswith(suffix)), "")


# Files


@contextmanager
def _parsing(path: Path, kind: str) -> Iterator[None]:
    """Whatever a parser stumbles over in a damaged file, from a lost bracket to a size that no memory has."""
    try:
        yield
    except FrigateError:
        raise
    except Exception as error:
        detail = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CityError(f"{path.name} is not a readable {kind} file: {detail}. Save it again") from None


def _bounded(path: Path, name: str, count: int) -> None:
    if count > MAX_CELLS:
        raise CityError(
            f'{path.name}: "{name}" claims {count:,} cells. At most {MAX_CELLS:,} are read: cut it in parts'
        )


def _from_npz(path: Path, options: _Options) -> _Matrix:
    with _parsing(path, ".npz"):
        opened = np.load(path, allow_pickle=False)
    if isinstance(opened, np.ndarray):
        raise CityError(f"{path.name} is a single array. Name it .npy")
    with opened as held:

        def read(name: str) -> NDArray[Any]:
            with _parsing(path, ".npz"):
                member = next(m for m in held.zip.infolist() if m.filename in (name, f"{name}.npy"))
                _bounded(path, name, member.file_size // 8)
                return np.asarray(held[name])

        return _from_arrays(path, {n: partial(read, n) for n in held.files}, options)


def _from_npy(path: Path, options: _Options) -> _Matrix:
    with _parsing(path, ".npy"):
        values = np.load(path, allow_pickle=False, mmap_mode="r")  # a false size takes no memory
    if not isinstance(values, np.ndarray):
        raise CityError(f"{path.name} holds several arrays. Name it .npz")
    if options.time is not None or options.valid is not None:
        raise CityError(f"{path.name} holds one array. Times or a mask beside it need an .npz")
    return _Matrix(np.asarray(values), None, None, None)


def _from_h5(path: Path, options: _Options) -> _Matrix:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("h5py", "h5") from None
    found: dict[str, Callable[[], NDArray[Any]]] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = partial(_read_dataset, path, name, item)

    with _parsing(path, "HDF5"):
        file = h5py.File(path, "r")
    with file:
        with _parsing(path, "HDF5"):
            file.visititems(visit)
        return _from_arrays(path, found, options)


def _read_dataset(path: Path, name: str, item: Any) -> NDArray[Any]:
    with _parsing(path, "HDF5"):
        _bounded(path, name, math.prod(item.shape or ()))  # a few bytes can claim any number of cells
        whole = np.asarray(item[()])
        return whole.astype(np.bytes_) if whole.dtype.kind == "O" else whole  # text of varying length


def _from_arrays(path: Path, arrays: Mapping[str, Callable[[], NDArray[Any]]], options: _Options) -> _Matrix:
    def named(name: str) -> NDArray[Any]:
        if name not in arrays:
            there = ", ".join(arrays) or "none"
            raise CityError(f'{path.name} has no array "{name}"{did_you_mean(name, list(arrays))}. Its arrays: {there}')
        return arrays[name]()

    name = options.values
    if name is None:
        flat = [n for n, read in arrays.items() if read().ndim == 2 and n not in (options.time, options.valid)]
        if len(flat) != 1:
            raise CityError(f"{path.name} has {len(flat)} matrices. Say which with values: {', '.join(arrays)}")
        name = flat[0]
    valid = None if options.valid is None else named(options.valid)
    if valid is not None and valid.dtype.kind not in "biu":
        raise CityError(f'{path.name}: "{options.valid}" holds {valid.dtype}. True and false are expected')
    time_us = None
    if options.time is not None:
        time_us = _array_times(path, options.time, named(options.time), options)
    return _Matrix(named(name), time_us, None if valid is None else valid.astype(bool), None)


def _array_times(path: Path, name: str, times: NDArray[Any], options: _Options) -> NDArray[np.int64]:
    if times.ndim != 1 or times.dtype.kind not in "iufMSU":
        raise CityError(f'{path.name}: "{name}" is {times.dtype} of shape {times.shape}. One time a row is expected')
    return array_times_us(path, times, clock=options.clock, notices=options.notices, name=name)


def _from_csv(path: Path, options: _Options) -> _Matrix:
    names = column_names(path)
    time = options.time or names[0]
    if options.values is not None or options.valid is not None:
        raise CityError(f"{path.name}: a wide csv has no named arrays. Leave values and valid out")
    others = [n for n in names if n != time]
    table = read_table(path, needed=[time, *others], notices=options.notices)
    if not len(table) or not others:
        raise CityError(f"{path.name} has {len(table)} rows and {len(others)} nodes. A matrix needs both")
    index = NodeIndex(options.network.node_ids)
    columns = index.find(pl.Series(others, dtype=pl.String))
    lost = [n for n, row in zip(others, columns.tolist(), strict=True) if row < 0]
    if len(lost) * 2 > len(others):
        hint = f'"{lost[0]}"{index.nearest(lost[0])}'
        raise CityError(
            f"{path.name}: column {hint} is not a node. So are {len(lost)} of {len(others)}: is it another network's?"
        )
    options.notices.add_rows(
        "Columns left out, their node is not in the network",
        columns < 0,
        lambda i: InputPlace(f'"{others[i]}"{index.nearest(others[i])}'),
    )
    if len(set(columns[columns >= 0].tolist())) < int((columns >= 0).sum()):
        raise CityError(f"{path.name}: two columns name the same node. Take one away")
    time_us = times_us(table, time, clock=options.clock, notices=options.notices)
    kept = [n for n, row in zip(others, columns.tolist(), strict=True) if row >= 0]
    values = np.stack([numbers(table, n)[0] for n in kept], axis=1)
    return _Matrix(values, time_us, None, columns[columns >= 0])


# Times and snapshots


def _check_shape(path: Path, matrix: _Matrix, network: RoadNetwork, nodes: str | Path) -> None:
    shape, N = matrix.values.shape, network.num_nodes
    if len(shape) != 2:
        raise CityError(f"{path.name}: the matrix has shape {shape}. [time, node] is expected: save one feature of it")
    if matrix.values.dtype.kind not in "biuf":
        raise CityError(f"{path.name}: the matrix holds {matrix.values.dtype}. Numbers are expected")
    if not shape[0]:
        raise CityError(f"{path.name}: the matrix has no rows")
    if matrix.columns is None and shape[1] != N:
        turned = " It looks turned: save its transpose" if shape[0] == N else " Give the nodes in the columns' order"
        raise CityError(f"{path.name}: {shape[1]} columns, but {Path(nodes).name} has {N} nodes.{turned}")
    if matrix.time_us is not None and len(matrix.time_us) != shape[0]:
        raise CityError(f"{path.name}: {len(matrix.time_us)} times, but {shape[0]} rows")
    if matrix.valid is not None and matrix.valid.shape not in (shape, shape[:1]):
        raise CityError(f"{path.name}: valid has shape {matrix.valid.shape}. {shape[:1]} or {shape} is expected")


def _times(
    path: Path, matrix: _Matrix, *, start: str | None, step: str | None, clock: Clock
) -> tuple[NDArray[np.int64], int]:
    step_s = None if step is None else parse_step(step, where="step")
    if matrix.time_us is not None:
        return matrix.time_us, step_s or usual_step_s(np.diff(np.unique(matrix.time_us)), where=path.name)
    if start is None or step_s is None:
        raise CityError(f"{path.name}: when is its first row? Name its times with time, or give start and step")
    start_us = clock.read_option("start", start)
    return start_us + step_s * 1_000_000 * np.arange(len(matrix.values), dtype=np.int64), step_s
