"""The table of changes: read as a timeline of networks, and written from the networks of a stream.

Actions: close, open, add_edge, add_node, remove_node. A row of close or open names a road by its ends, or a node
by its id: an intersection, or a road in a city on roads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import MIN_ROAD_M, Edges, NodeId, RoadNetwork
from frigate.city.network_tables import ATTRIBUTES, edge_frame, known_rows, roads_of
from frigate.city.stream import RoadNetworkStream
from frigate.city.timeline import Timeline
from frigate.errors import CityError
from frigate.reading.columns import INTEGER_ID, MAX_TEXT, NodeIndex, lon_lat, words
from frigate.reading.notices import Notices
from frigate.reading.tables import Table, city_table
from frigate.reading.times import Clock, times_us

if TYPE_CHECKING:
    import polars as pl

ACTIONS = ("close", "open", "add_edge", "add_node", "remove_node")


def read_changes(path: Path, base: RoadNetwork, *, clock: Clock, notices: Notices) -> Timeline:
    optional = ("source", "target", "node_id", "lon", "lat", "length_m", *ATTRIBUTES)
    table = city_table(path, ("time", "action"), optional, notices=notices).read()
    time_us = times_us(table, "time", clock=clock, notices=notices)
    actions = np.char.strip(words(table, "action"))
    known = f"is not known. Actions are: {', '.join(ACTIONS)}"
    table.refuse_where(~np.isin(actions, ACTIONS), lambda row: f'action "{actions[row]}" {known}')
    earlier = np.diff(time_us, prepend=time_us[:1]) < 0
    notices.add_rows(f"Rows of {path.name} earlier than the row above, sorted", earlier, table.place_of("time"))
    base = _with_later_nodes(table, base, actions == "add_node")
    edits = _edits(table, base, actions, notices)
    changes: list[tuple[int, RoadNetwork]] = []
    order = np.argsort(time_us, kind="stable")
    for us, at_once in groupby(order.tolist(), key=lambda row: int(time_us[row])):
        now = changes[-1][1] if changes else base
        for _, alike in groupby(at_once, key=lambda row: (str(actions[row]), bool(edits.of_node[row]))):
            now = _edit(now, list(alike), edits, table)
        changes.append((-(-us // 1_000_000), now))  # up: a snapshot begins at a whole second
    return Timeline.of(base, *changes)


def _with_later_nodes(table: Table, base: RoadNetwork, adding: NDArray[np.bool_]) -> RoadNetwork:
    """The network with the nodes that changes add later. They are in the node table from the start, but absent."""
    if not adding.any():
        return base
    _need(table, "node_id", adding)
    index = NodeIndex(base.node_ids)
    new = adding & (index.rows(table, "node_id") < 0)
    names = words(table, "node_id")
    first_row = {str(names[row]): row for row in np.flatnonzero(new)[::-1].tolist()}
    rows = np.array(sorted(first_row.values()), np.int64)
    lon, lat = lon_lat(table, np.isin(np.arange(len(table)), rows))
    integer = base.node_ids.dtype.kind in "iu"
    for row in rows:
        if len(names[row]) > MAX_TEXT:
            raise table.refuse(int(row), f"node_id has {len(names[row]):,} characters. Give at most {MAX_TEXT}")
        if integer and not re.fullmatch(INTEGER_ID, names[row]):
            raise table.refuse(int(row), f'node_id "{names[row]}" is not an integer, but all other node ids are')
    ids = np.concatenate([base.node_ids, names[rows].astype(np.int64) if integer else names[rows]])
    present = np.concatenate([base.present, np.zeros(len(rows), bool)])
    none = np.full(len(rows), b"", np.object_)
    return replace(
        base,
        node_ids=ids,
        lon=np.concatenate([base.lon, lon[rows]]),
        lat=np.concatenate([base.lat, lat[rows]]),
        present=present,
        passable=np.concatenate([base.passable, np.ones(len(rows), bool)]),
        lines=np.append(base.lines, none) if len(base.lines) else base.lines,
        names=np.append(base.names, np.full(len(rows), "")) if len(base.names) else base.names,
    )


def _need(table: Table, column: str, wanted: NDArray[np.bool_]) -> None:
    if column not in table:
        table.refuse_where(wanted, lambda _: f"this action needs a column {column}, which is missing")


@dataclass(frozen=True)
class _Edits:
    """What each row of a table of changes does; -1 where it names no node."""

    actions: NDArray[np.str_]
    of_node: NDArray[np.bool_]  # the row names a node, not a road
    nodes: NDArray[np.int64]
    roads: Edges  # one per row; close and open use only its ends


def _edits(table: Table, base: RoadNetwork, actions: NDArray[np.str_], notices: Notices) -> _Edits:
    index = NodeIndex(base.node_ids)
    names_node = np.char.strip(words(table, "node_id")) != ""
    names_road = np.zeros(len(table), bool)
    for column in ("source", "target"):
        names_road |= np.char.strip(words(table, column)) != ""
    either = np.isin(actions, ("close", "open"))
    table.refuse_where(
        either & names_node & names_road,
        lambda row: f"{actions[row]} names a node and a road. Give node_id, or source and target",
    )
    of_road = (actions == "add_edge") | (either & ~names_node)
    rows = {}
    for column, wanted in (("source", of_road), ("target", of_road), ("node_id", ~of_road)):
        _need(table, column, wanted)
        known = known_rows(table, column, index, wanted) if column in table else np.full(len(table), -1)
        rows[column] = np.where(wanted, known, -1)
    roads = roads_of(table, base, rows["source"], rows["target"], notices)
    short = (actions == "add_edge") & (roads.length_m == 0)
    notices.add_rows("Roads of no length were given one metre", short, table.place_of("source", "target"))
    roads = replace(roads, length_m=np.where(short, MIN_ROAD_M, roads.length_m))
    return _Edits(actions, ~of_road, rows["node_id"], roads)


def _edit(network: RoadNetwork, rows: list[int], edits: _Edits, table: Table) -> RoadNetwork:
    try:
        return _edited(network, rows, edits)
    except CityError:
        for row in rows:  # retry row by row, to name the line that fails
            try:
                network = _edited(network, [row], edits)
            except CityError as error:
                raise table.refuse(row, f"{edits.actions[row]}: {error}") from None
        raise


def _edited(network: RoadNetwork, rows: list[int], edits: _Edits) -> RoadNetwork:
    action = str(edits.actions[rows[0]])
    nodes = [int(edits.nodes[r]) for r in rows]
    ids: list[NodeId] = network.node_ids.tolist()
    named = [ids[n] for n in nodes]
    ends = [(ids[edits.roads.senders[r]], ids[edits.roads.receivers[r]]) for r in rows]
    if action == "close":
        return network.close_nodes(named) if edits.of_node[rows[0]] else network.close(ends)
    if action == "open":
        return network.reopen_nodes(named) if edits.of_node[rows[0]] else network.reopen(ends)
    if action == "add_edge":
        new = edits.roads.take(np.array(rows))
        network.add(roads=ends, length_m=new.length_m.tolist())  # checks the ends and lengths
        return network.with_more(new)
    if len(set(nodes)) < len(nodes):
        raise CityError("a node is named twice at the same time")
    if action == "add_node":
        return network.add(nodes=[(ids[n], float(network.lon[n]), float(network.lat[n])) for n in nodes])
    absent = [ids[n] for n in nodes if not network.present[n]]
    if absent:
        raise CityError(f'node "{absent[0]}" is not there to be removed')
    return network.remove_nodes(named)


# Writing


def every_road(network: RoadNetwork) -> Edges:
    """The roads of the table of edges: those that are open, or can be reopened by a change."""
    every = network.map
    return every.roads.take(
        every.is_open & network.present[every.roads.senders] & network.present[every.roads.receivers]
    )


def _road_keys(edges: Edges) -> list[tuple[Any, ...]]:
    """All attributes of each road, to compare roads. NaN becomes -1, because NaN does not equal itself."""
    columns = (getattr(edges, f.name) for f in fields(Edges))
    return list(
        zip(*(np.nan_to_num(c, nan=-1).tolist() if c.dtype.kind == "f" else c.tolist() for c in columns), strict=True)
    )


def change_frame(stream: RoadNetworkStream, first: RoadNetwork) -> pl.DataFrame | None:
    """The changes that turn the tables of nodes and roads into each network in turn; None if there are none."""
    import polars as pl

    turns = np.flatnonzero(np.diff(stream.network_of)) + 1
    held = np.concatenate([stream.network_of[turns], stream.later])
    course = [first, *(stream.networks[k] for k in held.tolist())]
    at_s = [stream.start_s, *stream.times_s[turns].tolist(), *stream.later_s.tolist()]
    everything = replace(
        first.with_roads(every_road(first)),
        present=np.ones(first.num_nodes, bool),
        passable=np.ones(first.num_nodes, bool),
    )
    shut: dict[tuple[int, int], tuple[Any, ...]] = {}  # roads that can be reopened, by their ends
    frames: list[pl.DataFrame] = []
    for before, after, time_s in zip([everything, *course], course, at_s, strict=False):
        gone, come = _differences(before, after)
        frames += _changes_at(time_s, before, after, gone=gone, come=come, shut=shut)
    if not frames:
        return None
    return pl.concat(frames, how="diagonal").with_columns(pl.col("time").cast(pl.Datetime("us", "UTC")))


def _differences(before: RoadNetwork, after: RoadNetwork) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The roads, with all their attributes, that are closed in one network on their own and not in the other."""
    if before.roads is after.roads:
        gone = before.roads.take(before.is_open & ~after.is_open)
        come = after.roads.take(after.is_open & ~before.is_open)
        return sorted(_road_keys(gone)), sorted(_road_keys(come))
    open_before, open_after = (set(_road_keys(each.roads.take(each.is_open))) for each in (before, after))
    return sorted(open_before - open_after), sorted(open_after - open_before)


def _changes_at(
    time_s: int,
    before: RoadNetwork,
    after: RoadNetwork,
    *,
    gone: list[tuple[Any, ...]],
    come: list[tuple[Any, ...]],
    shut: dict[tuple[int, int], tuple[Any, ...]],
) -> list[pl.DataFrame]:
    """Frames of changes in an order that works when they are read. Updates `shut` as a reader would."""
    import polars as pl

    ids = before.node_ids
    closing_nodes = np.flatnonzero(before.passable & ~after.passable & after.present)
    opening_nodes = np.flatnonzero(after.passable & ~before.passable & before.present)
    leaving = np.flatnonzero(before.present & ~after.present)
    arriving = np.flatnonzero(after.present & ~before.present)
    for pair in [p for p in shut if p[0] in leaving or p[1] in leaving]:
        del shut[pair]
    stays = before.present & after.present
    closing = [road for road in gone if stays[road[0]] and stays[road[1]]]  # the others vanish with their node
    shut.update({(road[0], road[1]): road for road in closing})
    opening = [road for road in come if shut.get((road[0], road[1])) == road]
    adding = [road for road in come if shut.get((road[0], road[1])) != road]
    for road in opening:
        del shut[road[0], road[1]]

    def nodes(rows: NDArray[np.int64]) -> pl.DataFrame:
        return pl.DataFrame({"node_id": ids[rows], "lon": before.lon[rows], "lat": before.lat[rows]})

    def roads(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
        names = [f.name for f in fields(Edges)]
        columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
        known = {c: np.where(np.array(columns[c]) < 0, np.nan, columns[c]) for c in ("lanes", "speed_kph") if columns}
        return edge_frame(Edges.of(**{**columns, **known}) if rows else Edges.none(), ids)

    ends = ("source", "target")
    steps = (
        ("remove_node", nodes(leaving)),
        ("close", roads(closing).select(ends)),
        ("close", nodes(closing_nodes).select("node_id")),
        ("add_node", nodes(arriving)),
        ("open", roads(opening).select(ends)),
        ("open", nodes(opening_nodes).select("node_id")),
        ("add_edge", roads(adding)),
    )
    stamp = pl.lit(time_s * 1_000_000, dtype=pl.Int64).alias("time")
    return [f.select(stamp, pl.lit(action).alias("action"), pl.all()) for action, f in steps if len(f)]
