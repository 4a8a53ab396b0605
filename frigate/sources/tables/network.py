"""A road network from a user's own tables of nodes and edges, or of edges alone whose lines say where the nodes are.

An edge with a `direction` (forward, backward, both) or a `oneway` flag is one or two roads; without either it is one,
from source to target. The line of a backward road is reversed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.data.columns import NodeIndex, id_array, new_ids, number_styles, parse_numbers, text
from frigate.data.coordinates import coordinate_fault, haversine_m
from frigate.data.network import Edges, RoadNetwork, clean_edges
from frigate.data.network_tables import note_network
from frigate.data.tables import Table, TableFile
from frigate.errors import CityError
from frigate.sources.geometry import Line, NotALineError, line_length_m, read_line, write_line
from frigate.sources.tables.import_log import ImportLog

NODE_COLUMNS = ("node_id", "lon", "lat")
EDGE_COLUMNS = (
    *("source", "target", "length_m", "road_class", "lanes", "speed_kph", "name"),
    *("geometry", "direction", "oneway", "road_id"),
)
FORWARD = ("forward", "forwards", "fwd", "f", "ft", "along", "1", "yes", "true", "y", "t")
BACKWARD = ("backward", "backwards", "bwd", "tf", "against", "-1", "reverse")
BOTH = ("both", "bothways", "b", "0", "2way", "two-way", "no", "false", "n")
SAME_PLACE_DECIMALS = 6  # degrees: line ends that agree so far, a tenth of a metre, meet
APART_M = 50.0


RoadIds = dict[str, tuple[tuple[int, bool], ...]]  # the user's own -> rows of edges, and whether forward


def network_from_tables(nodes: TableFile | None, edges: TableFile, log: ImportLog) -> tuple[RoadNetwork, RoadIds]:
    """The network of these tables, cleaned, and the ids of its roads; what was left out or repaired is reported."""
    base = None if nodes is None else _nodes(nodes, log)
    rows = _EdgeRows.of(edges, log)
    if base is None:
        base, senders, receivers = _nodes_of_lines(rows)
    else:
        edges.need(["source", "target"])
        index = NodeIndex(base.node_ids)
        senders, receivers = index.rows(rows.table, "source"), index.rows(rows.table, "target")
        for column, found in (("source", senders), ("target", receivers)):
            rows.reject(column, found < 0, "is not in the nodes")
    log.refuse_most(edges, len(rows.table))
    network, road_ids = _roads(base, rows, senders, receivers)
    if not network.num_edges:
        raise CityError(f"{edges.path.name} has no roads. A city needs roads between its nodes")
    note_network(network, log.notices)
    return network, road_ids


@dataclass
class _Rows:
    """The rows of a table while they are looked through."""

    table: Table
    log: ImportLog
    keep: NDArray[np.bool_]

    def reject(self, column: str, mask: NDArray[np.bool_], reason: str | list[str]) -> None:
        self.log.reject(self.table, mask & self.keep, column, reason)
        self.keep &= ~mask


# Nodes


def _nodes(file: TableFile, log: ImportLog) -> RoadNetwork:
    table = file.read(NODE_COLUMNS)
    if not len(table):
        raise CityError(f"{file.path.name} has no rows. A city needs nodes")
    ids = text(table, "node_id")
    table = Table(file, table.frame.with_columns(ids.alias("node_id")))
    rows = _Rows(table, log, np.ones(len(table), bool))
    rows.reject("node_id", ids.is_null().to_numpy(), "is empty. Every node needs an id of its own")
    styles = number_styles(file, ["lon", "lat"])
    lon, lat = (parse_numbers(table, c, styles[c]) for c in ("lon", "lat"))
    for column, found in (("lon", lon), ("lat", lat)):
        rows.reject(column, ~found.given, "is not a number")
    places = zip(lon.values.tolist(), lat.values.tolist(), strict=True)
    why = [coordinate_fault(*place, allow_zero=False) for place in places]
    rows.reject("lat", np.array([bool(w) for w in why], bool), [f"is at {w}" for w in why])
    again = rows.keep.copy()
    again[rows.keep] = ~ids.filter(pl.Series(rows.keep)).is_first_distinct().to_numpy()
    rows.reject("node_id", again, "is there already: ids are not unique")
    log.refuse_most(file, len(table))
    keep = rows.keep
    kept = Table(file, table.frame.filter(pl.Series(keep)))
    return RoadNetwork(new_ids(kept, "node_id"), lon.values[keep], lat.values[keep], Edges.none())


def _nodes_of_lines(rows: _EdgeRows) -> tuple[RoadNetwork, NDArray[np.int64], NDArray[np.int64]]:
    """Nodes where lines end: by the ids that the edges name, or else by the place itself, numbered from 0."""
    table, notices = rows.table, rows.log.notices
    if "geometry" not in table:
        raise CityError(
            f"{table.path.name} does not say where its nodes are. Pass --nodes FILE, or add lines (WKT, WKB)"
        )
    kept = np.flatnonzero(rows.keep)
    if not len(kept):
        rows.log.refuse_most(table.file, len(table))
        raise CityError(f"{table.path.name} has no rows. A city needs roads")
    lines = [line for line, keep in zip(rows.lines, rows.keep, strict=True) if keep and line is not None]
    ends = np.array([(line[0], line[-1]) for line in lines]).reshape(-1, 2)  # first, last, first, ...
    senders, receivers = (np.full(len(table), -1, np.int64) for _ in range(2))
    if "source" in table and "target" in table:
        for column in ("source", "target"):
            rows.reject(column, table.frame[column].is_null().to_numpy(), "is empty. Name a node")
        named = table.frame.filter(pl.Series(rows.keep))
        names = named.select(pl.concat_list("source", "target").explode().alias("node_id"))
        ends = ends[np.repeat(rows.keep[kept], 2)]
        kept = np.flatnonzero(rows.keep)
        if not len(kept):
            rows.log.refuse_most(table.file, len(table))
        first = names["node_id"].is_first_distinct().to_numpy()
        ids = id_array(names["node_id"].filter(pl.Series(first)))
        at = NodeIndex(ids).find(names["node_id"])
        lon, lat = ends[first].T
        apart_m = haversine_m(ends[:, 0], ends[:, 1], lon[at], lat[at])
        off = np.zeros(len(ids), bool)
        off[at[apart_m > APART_M]] = True
        notices.add(f"Nodes at which lines end more than {APART_M:g} m apart", int(off.sum()))
    else:
        places, first_at, at = np.unique(
            np.round(ends, SAME_PLACE_DECIMALS), axis=0, return_index=True, return_inverse=True
        )
        lon, lat = ends[first_at].T
        ids, at = np.arange(len(places)), at.reshape(-1)
        notices.add("Nodes made where lines meet, numbered from 0", len(places))
    senders[kept], receivers[kept] = at[0::2], at[1::2]
    return RoadNetwork(ids, lon.copy(), lat.copy(), Edges.none()), senders, receivers


# Edges


@dataclass
class _EdgeRows(_Rows):
    """The rows of a table of edges while they are looked through."""

    lines: list[Line | None] = field(default_factory=list)
    ways: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # 1 forward, -1 backward, 0 both
    numbers: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @staticmethod
    def of(file: TableFile, log: ImportLog) -> _EdgeRows:
        table = file.read(EDGE_COLUMNS)
        if not len(table):
            raise CityError(f"{file.path.name} has no rows. A city needs roads between its nodes")
        texts = [c for c in EDGE_COLUMNS if c in file and c not in ("geometry", "length_m", "lanes", "speed_kph")]
        table = Table(file, table.frame.with_columns(text(table, c).alias(c) for c in texts))
        rows = _EdgeRows(table, log, np.ones(len(table), bool))
        rows.ways = rows._ways()
        rows.lines = rows._lines()
        rows.numbers = rows._numbers()
        return rows

    def _ways(self) -> NDArray[np.int64]:
        column = next((c for c in ("direction", "oneway") if c in self.table), None)
        if column is None:
            return np.ones(len(self.table), np.int64)
        words = self.table.frame[column].str.to_lowercase()
        if column == "oneway":
            words = words.fill_null("no")
        else:
            self.log.notices.add("Roads without a direction, taken as both", int(words.is_null().sum()))
            words = words.fill_null("both")
        way_of = {word: way for way, known in ((1, FORWARD), (-1, BACKWARD), (0, BOTH)) for word in known}
        ways = words.replace_strict(way_of, default=9, return_dtype=pl.Int64).to_numpy()
        self.reject(column, ways == 9, "is not known. Directions are: forward, backward, both")
        return ways

    def _lines(self) -> list[Line | None]:
        lines: list[Line | None] = [None] * len(self.table)
        if "geometry" not in self.table:
            return lines
        why = [""] * len(lines)
        raw = self.table.frame["geometry"]
        if raw.dtype not in (pl.String, pl.Binary, pl.Null):
            theirs = self.table.file.source_of["geometry"]
            raise CityError(f"{self.table.path.name}: column {theirs} holds {raw.dtype}. WKT is expected")
        for i, value in enumerate(raw.to_list()):
            try:
                if value:
                    lines[i] = read_line(value)
                else:
                    why[i] = "is empty"
            except NotALineError as error:
                why[i] = str(error)
        self.reject("geometry", np.array([bool(w) for w in why], bool), why)
        return lines

    def _numbers(self) -> dict[str, NDArray[np.float64]]:
        attributes = {}
        styles = number_styles(self.table.file, ["length_m", "lanes", "speed_kph"])
        for column, style in styles.items():
            found = parse_numbers(self.table, column, style)
            bad = found.wrong | (found.given & ~(np.isfinite(found.values) & (found.values >= 0)))
            if column == "length_m":
                self.reject(column, bad, "is no length. Give 0 or more, or nothing")
                attributes[column] = found.values
            else:
                unknown = bad | (found.given & ~(found.values > 0))
                what = f"Values of {column} that are no number above 0, taken as unknown"
                self.log.notices.add(what, int(unknown.sum()))
                attributes[column] = np.where(unknown, np.nan, found.values)
        return attributes


def _roads(
    base: RoadNetwork, rows: _EdgeRows, senders: NDArray[np.int64], receivers: NDArray[np.int64]
) -> tuple[RoadNetwork, RoadIds]:
    forward, backward = np.flatnonzero(rows.keep & (rows.ways >= 0)), np.flatnonzero(rows.keep & (rows.ways <= 0))
    at = np.concatenate([forward, backward])
    ahead = np.arange(len(at)) < len(forward)
    a, b = np.where(ahead, senders[at], receivers[at]), np.where(ahead, receivers[at], senders[at])
    straight_m = haversine_m(base.lon[a], base.lat[a], base.lon[b], base.lat[b])
    along_m = np.array([np.nan if (line := rows.lines[i]) is None else line_length_m(line) for i in at.tolist()])
    given_m = rows.numbers["length_m"][at] if "length_m" in rows.numbers else np.full(len(at), np.nan)
    length_m = np.where(np.isnan(given_m), np.where(np.isnan(along_m), straight_m, along_m), given_m)
    geometry = np.full(len(at), b"", np.object_)
    for k, i in enumerate(at.tolist()):
        line = rows.lines[i]
        if line is not None:
            geometry[k] = write_line(line if ahead[k] else line[::-1])
    _note_ends(base, rows, senders, receivers)

    def words(column: str) -> Any:
        return np.array(rows.table.frame[column].fill_null("").to_list(), np.str_)[at] if column in rows.table else None

    edges = Edges.of(
        a,
        b,
        length_m,
        road_class=words("road_class"),
        name=words("name"),
        geometry=geometry,
        **{c: v[at] for c, v in rows.numbers.items() if c != "length_m"},
    )
    edges, cleaned = clean_edges(edges)
    cleaned.note(rows.log.notices)
    row_of = {pair: row for row, pair in enumerate(zip(edges.senders.tolist(), edges.receivers.tolist(), strict=True))}
    road_ids: dict[str, list[tuple[int, bool]]] = {}
    if "road_id" in rows.table:
        names = rows.table.frame["road_id"].to_list()
        for i, pair, way in zip(at.tolist(), zip(a.tolist(), b.tolist(), strict=True), ahead.tolist(), strict=True):
            if pair in row_of and names[i] is not None:
                road_ids.setdefault(names[i], []).append((row_of[pair], way))
    return replace(base, edges=edges), {name: tuple(rows_of) for name, rows_of in road_ids.items()}


def _note_ends(base: RoadNetwork, rows: _EdgeRows, senders: NDArray[np.int64], receivers: NDArray[np.int64]) -> None:
    """Lines that do not end at the nodes they name: swapped as a whole, they are refused; a few are reported."""
    lines = [(i, line) for i, line in enumerate(rows.lines) if rows.keep[i] and line is not None]
    if not lines:
        return
    have = np.array([i for i, _ in lines])
    ends = np.array([line[k] for _, line in lines for k in (0, -1)])
    at = np.stack([senders[have], receivers[have]], axis=1).reshape(-1)
    off = haversine_m(ends[:, 0], ends[:, 1], base.lon[at], base.lat[at]) > APART_M
    if off.mean() > 0.5:
        with np.errstate(invalid="ignore"):
            swapped = haversine_m(ends[:, 1], np.clip(ends[:, 0], -90, 90), base.lon[at], base.lat[at]) <= APART_M
        hint = "its coordinates look swapped" if swapped.mean() > 0.5 else "are these the lines of other nodes?"
        first = int(have[int(np.argmax(off)) // 2])
        raise rows.table.refuse(first, f"the line does not end at its nodes, nor do most others; {hint}")
    rows.log.notices.add(f"Ends of lines more than {APART_M:g} m from their node", int(off.sum()))
