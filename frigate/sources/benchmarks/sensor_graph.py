"""Sensor networks, as in the benchmark data sets: sensors, and pairs of sensors with a road distance.

Pairs are `Edges`. Until `sensor_network` cleans them, they may contain duplicates, and distances are in any unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import coo_array

from frigate.city.network import Edges, RoadNetwork, clean_edges
from frigate.city.network_tables import note_network
from frigate.coordinates import haversine_m
from frigate.errors import CityError
from frigate.reading.columns import id_array, lon_lat, numbers, text
from frigate.reading.notices import Notices
from frigate.reading.tables import Table, open_table
from frigate.sources.benchmarks.layout import INVENTED, invented_places
from frigate.sources.benchmarks.unpickle import unpickle

UNIT_M = {"m": 1.0, "km": 1000.0, "mi": 1609.344}
UNIT_NAMES = {"m": "metres", "km": "kilometres", "mi": "miles"}
MIN_MEDIAN_M = 10.0  # if most roads are shorter, their lengths are not in metres
MIN_WEIGHT = 0.1


def sensor_ids(path: Path, names: Sequence[str]) -> NDArray[np.generic]:
    """Node ids: integers if every one is written as an integer, else text."""
    if not names:
        raise CityError(f"{path.name} names no sensor")
    for name, count in Counter(names).items():
        if not name or "\0" in name or count > 1:
            raise CityError(f'{path.name}: id "{name}" is empty or repeated. Every sensor needs an id of its own')
    return id_array(pl.Series(list(names)))


def labels(values: NDArray[Any]) -> list[str]:
    """The names of a frame's columns as text."""
    return [x.decode("utf-8", "replace") if isinstance(x, bytes) else str(x) for x in values.tolist()]


# Tables


def read_locations(path: Path, ids: Sequence[str], notices: Notices) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Longitude and latitude of these sensors: columns sensor_id, latitude, longitude, or the same without a header."""
    columns = ("sensor_id", "lat", "lon")
    file = open_table(path, strict=True, headless=columns)
    if not file.header and len(file.names) > len(columns):
        file = replace(file, names=("index", *columns))
    rename = {n: n.strip().lower().removesuffix("itude").replace("long", "lon") for n in file.names}
    table = file.choose(columns, notices=Notices(), rename=rename).read(columns)
    lon, lat = lon_lat(table)
    row_of = {name: row for row, name in enumerate(_names(table, "sensor_id"))}
    lost = [name for name in ids if name not in row_of]
    if lost:
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise CityError(f'{path.name} has no location of sensor "{lost[0]}"{more}. Add it, or give the right file')
    notices.add(f"Sensors of {path.name} without readings, left out", len(row_of) - len(ids))
    pick = np.array([row_of[name] for name in ids], np.int64)
    zero = (lon[pick] == 0) & (lat[pick] == 0)
    notices.add_rows("Sensors placed at 0, 0", zero, lambda i: f'sensor "{ids[i]}"')
    return lon[pick], lat[pick]


def read_pairs(path: Path, ids: Sequence[str], notices: Notices) -> Edges:
    """Pairs of known sensors and their distances, from the first three columns: from, to, and cost or distance."""
    file = open_table(path, strict=True, headless=("from", "to", "distance"))
    names = [n.strip().lower() for n in file.names]
    if len(names) < 3 or (len(names) > 3 and (not file.header or names[:2] != ["from", "to"])):  # perhaps a matrix
        raise CityError(f"{path.name} has {len(names)} columns. Pairs are expected: from, to and their distance")
    columns = ("source", "target", "distance")
    table = replace(file, source_of=dict(zip(columns, file.names, strict=False))).read(columns)
    distance, _ = numbers(table, "distance")
    wrong = ~(np.isfinite(distance) & (distance >= 0))
    table.refuse_where(wrong, lambda row: f'"{table.frame["distance"][row]}" is not a distance')
    row_of = {name: row for row, name in enumerate(ids)}
    ends = [np.array([row_of.get(x, -1) for x in _names(table, c)], np.int64) for c in ("source", "target")]
    known = (ends[0] >= 0) & (ends[1] >= 0)
    if not known.any():
        first = f'"{table.frame["source"][0]}"' if len(table) else "none"
        raise CityError(f"{path.name}: none of its pairs has two known sensors (first: {first}; known: {ids[0]}, ...)")
    notices.add(f"Pairs of {path.name} with an unknown sensor, left out", int((~known).sum()))
    return Edges.of(ends[0], ends[1], distance).take(known)


def _names(table: Table, column: str) -> list[str]:
    """Ids as written, but "400001" for "400001.0"."""
    return [name.removesuffix(".0") for name in text(table, column).fill_null("").to_list()]


def near_pairs(pairs: Edges, path: Path, notices: Notices) -> Edges:
    """The usual choice of METR-LA and PEMS-BAY: pairs whose weight exp(-(d / s)^2) is at least 0.1.

    s is the standard deviation of the distances of all pairs, including those of a sensor to itself.
    """
    _, last = np.unique(np.stack([pairs.senders, pairs.receivers])[:, ::-1], axis=1, return_index=True)
    pairs = pairs.take(np.sort(len(pairs.senders) - 1 - last))  # keep the last of duplicate pairs
    spread = float(pairs.length_m.std())
    near = np.exp(-np.square(pairs.length_m / max(spread, 1e-9))) >= MIN_WEIGHT
    what = f"Pairs of {path.name} too far apart to be a road, weight exp(-(d/s)^2) under 0.1 with s = {spread:,.0f} m"
    notices.add(what, int((~near).sum()))
    return pairs.take(near)


# Matrices


def adjacency(path: Path, ids: Sequence[str]) -> Edges:
    """Pairs with a weight above 0 in a pickled matrix: [ids, row of each id, matrix], or the matrix alone."""
    stored = unpickle(path)
    names: list[str] = list(ids)
    if isinstance(stored, list | tuple) and len(stored) == 3:
        names = labels(np.array(stored[0], np.object_))
        stored = stored[2]
    if not isinstance(stored, np.ndarray | coo_array) or stored.dtype.kind not in "biuf":
        raise CityError(
            f"{path.name} holds a {type(stored).__name__}. A matrix, or [ids, row of each id, matrix], is expected"
        )
    if stored.shape != (len(names), len(names)):
        raise CityError(f"{path.name}: the matrix is {stored.shape}, but there are {len(names)} sensors")
    if sorted(names) != sorted(ids):
        odd = next(iter(set(names) ^ set(ids)))
        raise CityError(f'{path.name}: sensor "{odd}" is only here or only in the readings. Is it of another data set?')
    row_of = {name: row for row, name in enumerate(ids)}
    row = np.array([row_of[name] for name in names], np.int64)
    matrix = coo_array(stored)
    open_ = matrix.data > 0
    return Edges.of(row[matrix.row[open_]], row[matrix.col[open_]], matrix.data[open_].astype(np.float64))


def with_lengths(
    chosen: Edges, measured: Edges | None, lon: NDArray[np.float64], lat: NDArray[np.float64], notices: Notices
) -> Edges:
    """The chosen pairs with their measured distance, or the straight-line distance if there is none."""
    straight = haversine_m(lon[chosen.senders], lat[chosen.senders], lon[chosen.receivers], lat[chosen.receivers])
    known: dict[tuple[int, int], float] = {}
    if measured is not None:
        ends = zip(measured.senders.tolist(), measured.receivers.tolist(), strict=True)
        known = dict(zip(ends, measured.length_m.tolist(), strict=True))
    pairs = zip(chosen.senders.tolist(), chosen.receivers.tolist(), strict=True)
    given = np.array([known.get(pair, np.nan) for pair in pairs], np.float64).reshape(-1)
    apart = chosen.senders != chosen.receivers
    notices.add("Pairs without a distance, given the straight-line distance", int((np.isnan(given) & apart).sum()))
    return replace(chosen, length_m=np.where(np.isnan(given), straight, given))


# Networks


def in_metres(pairs: Edges, path: Path, unit: str | None, notices: Notices) -> Edges:
    """The pairs with distances in metres. Without a unit, metres are assumed if that is plausible."""
    if unit is not None and unit not in UNIT_M:
        raise CityError(f'length_unit "{unit}" is not known. Give one of: {", ".join(UNIT_M)}')
    apart = pairs.length_m[(pairs.senders != pairs.receivers) & (pairs.length_m > 0)]
    median = float(np.median(apart)) if len(apart) else 0.0
    if unit is None and len(apart) and median < MIN_MEDIAN_M:
        raise CityError(
            f"{path.name}: half of its lengths are under {median:.3g}, so they are not in metres. "
            "Give length_unit: km for kilometres or mi for miles"
        )
    notices.add(f"Lengths of {path.name} read as {UNIT_NAMES[unit or 'm']}", len(apart))
    with np.errstate(over="ignore"):
        metres = pairs.length_m * UNIT_M[unit or "m"]
    if not np.isfinite(metres).all():
        raise CityError(f"{path.name}: {pairs.length_m[~np.isfinite(metres)][0]:g} is not a length")
    return replace(pairs, length_m=metres)


def sensor_network(
    node_ids: NDArray[np.generic],
    pairs: Edges,
    path: Path,
    notices: Notices,
    *,
    places: tuple[NDArray[np.float64], NDArray[np.float64]] | None,
) -> RoadNetwork:
    """A network of these sensors and pairs. Without places, coordinates are invented, with a notice."""
    edges, cleaned = clean_edges(pairs)
    cleaned.note(notices)
    if not len(edges):
        raise CityError(f"{path.name} has no roads. A city needs roads between its nodes")
    if places is None:
        places = invented_places(len(node_ids), edges)
        notices.add(INVENTED, len(node_ids))
    network = RoadNetwork(node_ids, *places, edges)
    note_network(network, notices)
    return network
