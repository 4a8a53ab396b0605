"""Make a road network from a user's own tables of nodes and edges, or of edges alone if their lines locate the nodes.

An edge with a `direction` (forward, backward, both) or a `oneway` flag is one or two roads; without either it is one
road from source to target. The line of a backward road is reversed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.city.network import Edges, RoadNetwork, clean_edges
from frigate.city.network_tables import NODE_COLUMNS, node_names, note_lengths, note_network
from frigate.coordinates import coordinate_fault, haversine_m
from frigate.errors import CityError
from frigate.reading.columns import NodeIndex, id_array, new_ids, number_styles, parse_numbers, shortened, text, words
from frigate.reading.tables import ROW, Table, TableFile
from frigate.roads.geometry import Line, NotALineError, line_length_m, read_line, write_line
from frigate.sources.tables.import_log import ImportLog

EDGE_TEXTS = ("source", "target", "road_class", "name", "direction", "oneway", "road_id")
EDGE_NUMBERS = ("length_m", "lanes", "speed_kph")
EDGE_COLUMNS = (*EDGE_TEXTS, *EDGE_NUMBERS, "geometry")
FORWARD = ("forward", "forwards", "fwd", "f", "ft", "along", "1", "yes", "true", "y", "t")
BACKWARD = ("backward", "backwards", "bwd", "tf", "against", "-1", "reverse")
BOTH = ("both", "bothways", "b", "0", "2way", "two-way", "no", "false", "n")
SAME_PLACE_DECIMALS = 6  # of degrees, a tenth of a metre: line ends that agree to this precision meet
APART_M = 50.0

RoadIds = dict[str, tuple[tuple[int, bool], ...]]  # the user's ids -> rows of edges, and whether forward
Lines = dict[int, Line]  # row of the file -> its line
Ends = tuple[NDArray[np.int64], NDArray[np.int64]]  # rows of the start and end node of each road


@dataclass(frozen=True)
class TableRoads:
    """The roads of a table, each direction separately."""

    edges: Edges
    ids: RoadIds
    row: NDArray[np.int64]  # [E] row in the file
    rows_of_table: NDArray[np.int64]  # all rows that are not blank


def network_from_tables(
    nodes: TableFile | None,
    edges: TableFile,
    rename: Mapping[str, str],
    log: ImportLog,
    *,
    keep_parallel: bool = False,
) -> tuple[RoadNetwork, TableRoads]:
    """The network of these tables, cleaned, and its roads. Notices say what was left out or repaired.

    A network has only one road from one node to another. With `keep_parallel`, the returned roads still include others.
    """
    edges = edges.choose((), EDGE_COLUMNS, rename=rename, notices=log.notices)
    base = None if nodes is None else _nodes(nodes, rename, log)
    table = edges.read(EDGE_COLUMNS)
    total = len(table)
    if not total:
        raise CityError(f"{edges.path.name} has no rows. A city needs roads between its nodes")
    rows = table.frame[ROW].to_numpy().astype(np.int64)
    table = table.with_columns(*(text(table, c).alias(c) for c in EDGE_TEXTS if c in table))
    table, lines = _lines(_with_ways(table, log), log)
    table = _with_numbers(table, log)
    if base is None:
        base, table, ends = _nodes_of_lines(table, lines, total, log)
    else:
        edges.need(["source", "target"])
        index = NodeIndex(base.node_ids)
        for column in ("source", "target"):
            table = log.drop(table, index.rows(table, column) < 0, column, "is not in the nodes")
        ends = index.rows(table, "source"), index.rows(table, "target")
    log.refuse_most(edges, total)
    network, roads = _roads(base, table, lines, ends, log, rows, keep_parallel=keep_parallel)
    if not network.num_edges:
        raise CityError(f"{edges.path.name} has no roads. A city needs roads between its nodes")
    note_network(network, log.notices)
    note_lengths(network, log.notices, refuse=True)
    return network, roads


# Nodes


def _nodes(file: TableFile, rename: Mapping[str, str], log: ImportLog) -> RoadNetwork:
    file = file.choose(NODE_COLUMNS, ("name",), rename=rename, notices=log.notices)
    table = file.read((*NODE_COLUMNS, "name"))
    total = len(table)
    if not total:
        raise CityError(f"{file.path.name} has no rows. A city needs nodes")
    table = table.with_columns(text(table, "node_id").alias("node_id"))
    blank = table.frame["node_id"].is_null().to_numpy()
    table = log.drop(table, blank, "node_id", "is empty. Every node needs an id of its own")
    styles = number_styles(file, ["lon", "lat"])
    for column in ("lon", "lat"):
        table = log.drop(table, ~parse_numbers(table, column, styles[column]).given, column, "is not a number")
    place = table.with_columns(*(pl.Series(c, parse_numbers(table, c, styles[c]).values) for c in ("lon", "lat")))
    why = [coordinate_fault(lon, lat, allow_zero=False) for lon, lat in place.frame.select("lon", "lat").iter_rows()]
    wrong = np.array([w != "" for w in why], bool)
    log.reject(table, wrong, "lat", [f"is at {w}" for w in why])
    place = place.filter(~wrong)
    again = ~place.frame["node_id"].is_first_distinct().to_numpy()
    place = log.drop(place, again, "node_id", "is repeated: ids must be unique")
    log.refuse_most(file, total)
    lon, lat = (place.frame[c].to_numpy() for c in ("lon", "lat"))
    names = node_names(words(place, "name", log.notices))
    return RoadNetwork(new_ids(place, "node_id"), lon, lat, Edges.none(), names=names)


def _nodes_of_lines(table: Table, lines: Lines, total: int, log: ImportLog) -> tuple[RoadNetwork, Table, Ends]:
    """Nodes at the ends of lines: with the ids in the edges, or else one per place, numbered from 0."""
    if "geometry" not in table:
        raise CityError(
            f"{table.path.name} does not say where its nodes are. Pass --nodes FILE, or add lines (WKT, WKB)"
        )
    named = "source" in table and "target" in table
    for column in ("source", "target") if named else ():
        table = log.drop(table, table.frame[column].is_null().to_numpy(), column, "is empty. Name a node")
    if not len(table):
        log.refuse_most(table.file, total)
    ends = np.array([lines[row][[0, -1]] for row in table.frame[ROW]]).reshape(-1, 2)  # first, last, first, ...
    if named:
        names = table.frame.select(pl.concat_list("source", "target").explode().alias("node_id"))["node_id"]
        first = names.is_first_distinct().to_numpy()
        ids = id_array(names.filter(pl.Series(first)))
        at = NodeIndex(ids).find(names)
        lon, lat = ends[first].T
        apart_m = haversine_m(ends[:, 0], ends[:, 1], lon[at], lat[at])
        off = len(np.unique(at[apart_m > APART_M]))
        log.notices.add(f"Nodes whose lines end more than {APART_M:g} m apart", off)
    else:
        places = np.round(ends, SAME_PLACE_DECIMALS)
        places, first_at, at = np.unique(places, axis=0, return_index=True, return_inverse=True)
        lon, lat = ends[first_at].T
        ids = np.arange(len(places))
        at = at.reshape(-1)
        log.notices.add("Nodes created where lines meet, numbered from 0", len(places))
    return RoadNetwork(ids, lon.copy(), lat.copy(), Edges.none()), table, (at[0::2], at[1::2])


# Edges


def _with_ways(table: Table, log: ImportLog) -> Table:
    """The table with a column `way`: 1 forward, -1 backward, 0 both."""
    column = next((c for c in ("direction", "oneway") if c in table), None)
    if column is None:
        return table.with_columns(pl.lit(1).alias("way"))
    ways = table.frame[column].str.to_lowercase()
    if column == "oneway":
        ways = ways.fill_null("no")
    else:
        log.notices.add("Roads without a direction, taken as both", int(ways.is_null().sum()))
        ways = ways.fill_null("both")
    way_of = {word: way for way, known in ((1, FORWARD), (-1, BACKWARD), (0, BOTH)) for word in known}
    table = table.with_columns(ways.replace_strict(way_of, default=None, return_dtype=pl.Int64).alias("way"))
    unknown = table.frame["way"].is_null().to_numpy()
    return log.drop(table, unknown, column, "is not known. Directions are: forward, backward, both")


def _with_numbers(table: Table, log: ImportLog) -> Table:
    """The table with lengths, lanes and speeds as numbers, NaN if unknown."""
    for column, style in number_styles(table.file, EDGE_NUMBERS).items():
        found = parse_numbers(table, column, style)
        bad = found.wrong | (found.given & ~(np.isfinite(found.values) & (found.values >= 0)))
        if column == "length_m":
            log.reject(table, bad, column, "is not a length. Give 0 or more, or leave it empty")
            table = table.with_columns(pl.Series(column, found.values)).filter(~bad)
        else:
            unknown = bad | (found.given & (found.values == 0))
            what = f"Values of {column} that are not a number above 0, taken as unknown"
            log.notices.add(what, int(unknown.sum()))
            table = table.with_columns(pl.Series(column, np.where(unknown, np.nan, found.values)))
    return table


def _lines(table: Table, log: ImportLog) -> tuple[Table, Lines]:
    """The rows whose line can be read, and their lines. Without a column of lines: all rows and no lines."""
    if "geometry" not in table:
        return table, {}
    raw = table.frame["geometry"]
    if raw.dtype not in (pl.String, pl.Binary, pl.Null):
        theirs = table.file.source_of["geometry"]
        raise CityError(f"{table.path.name}: column {theirs} holds {raw.dtype}. WKT is expected")
    lines: Lines = {}
    why = [""] * len(table)
    for i, (row, value) in enumerate(zip(table.frame[ROW].to_list(), raw.to_list(), strict=True)):
        try:
            if value:
                lines[row] = read_line(value)
            else:
                why[i] = "is empty"
        except NotALineError as error:
            why[i] = str(error)
    return log.drop(table, np.array([w != "" for w in why], bool), "geometry", why), lines


def _roads(
    base: RoadNetwork,
    table: Table,
    lines: Lines,
    ends: Ends,
    log: ImportLog,
    all_rows: NDArray[np.int64],
    *,
    keep_parallel: bool,
) -> tuple[RoadNetwork, TableRoads]:
    _note_ends(base, table, lines, ends, log)
    way = table.frame["way"].to_numpy()
    forward = np.flatnonzero(way >= 0)
    backward = np.flatnonzero(way <= 0)
    at = np.concatenate([forward, backward])
    ahead = np.arange(len(at)) < len(forward)
    a = np.where(ahead, ends[0][at], ends[1][at])
    b = np.where(ahead, ends[1][at], ends[0][at])
    length_m = haversine_m(base.lon[a], base.lat[a], base.lon[b], base.lat[b])
    geometry = np.full(len(at), b"", np.object_)
    for k, row in enumerate(table.frame[ROW].to_numpy()[at].tolist()):
        if row in lines:
            length_m[k] = line_length_m(lines[row])
            geometry[k] = write_line(lines[row] if ahead[k] else lines[row][::-1])
    numbers = {c: table.frame[c].to_numpy()[at] for c in EDGE_NUMBERS if c in table}
    given_m = numbers.pop("length_m", np.full(len(at), np.nan))
    names = {c: table.frame[c].fill_null("") for c in ("road_class", "name") if c in table}
    texts = {c: np.array(shortened(given, table, log.notices).to_list(), np.str_)[at] for c, given in names.items()}
    length_m = np.where(np.isnan(given_m), length_m, given_m)
    edges, cleaned = clean_edges(
        Edges.of(a, b, length_m, geometry=geometry, **texts, **numbers), keep_parallel=keep_parallel
    )
    cleaned.note(log.notices)
    row_of = {pair: row for row, pair in enumerate(zip(edges.senders.tolist(), edges.receivers.tolist(), strict=True))}
    number = np.where(cleaned.kept, np.cumsum(cleaned.kept) - 1, -1)
    road_ids: dict[str, list[tuple[int, bool]]] = {}
    own = table.frame["road_id"].to_list() if "road_id" in table else [None] * len(table)
    for k, (i, pair) in enumerate(zip(at.tolist(), zip(a.tolist(), b.tolist(), strict=True), strict=True)):
        if pair in row_of and own[i] is not None:  # the id of a road left out refers to the parallel road that is kept
            road = int(number[k]) if number[k] >= 0 else row_of[pair]
            road_ids.setdefault(own[i], []).append((road, bool(ahead[k])))
    rows = table.frame[ROW].to_numpy()[at][cleaned.kept].astype(np.int64)
    roads = TableRoads(edges, {name: tuple(each) for name, each in road_ids.items()}, rows, all_rows)
    return base.with_roads(clean_edges(edges)[0]), roads


def _note_ends(base: RoadNetwork, table: Table, lines: Lines, ends: Ends, log: ImportLog) -> None:
    """Check that lines end at their nodes: if most do not, the table is refused; a few are reported."""
    if not lines or not len(table):
        return
    lon, lat = np.array([lines[row][[0, -1]] for row in table.frame[ROW]]).reshape(-1, 2).T
    at = np.stack(ends, axis=1).reshape(-1)
    off = haversine_m(lon, lat, base.lon[at], base.lat[at]) > APART_M
    if off.mean() > 0.5:
        swapped = haversine_m(lat, np.clip(lon, -90, 90), base.lon[at], base.lat[at]) <= APART_M
        hint = "its coordinates look swapped" if swapped.mean() > 0.5 else "are these the lines of other nodes?"
        first = int(np.argmax(off)) // 2
        raise table.refuse(first, f"the line does not end at its nodes, nor do most others; {hint}")
    log.notices.add(f"Ends of lines more than {APART_M:g} m from their node", int(off.sum()))
