"""A user's own tables: nodes, edges and readings in any column names and the common time formats.

Readings are long (one a row: time, sensor, value) or wide (the time, then a column for each sensor). A sensor is
attached by the node or road that it names, or else to the nearest by its coordinates, which stand in a table of sensors
or in the readings themselves. A row that cannot be used is left out, counted aloud and listed in the report; a table of
which more than half cannot be used is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from frigate.data.city import City, open_city
from frigate.data.city_toml import parse_step
from frigate.data.network import RoadNetwork
from frigate.data.notices import Notices
from frigate.data.readings import Snapshots
from frigate.data.sandbox import sandboxed
from frigate.data.stream import RoadNetworkStream, make_stream, zone
from frigate.data.tables import did_you_mean
from frigate.data.times import Clock, given_or_taken
from frigate.errors import CityError
from frigate.sources.line_graph import on_roads
from frigate.sources.tables.detectors import RoadTable, attach, settle_step, snapshots_of
from frigate.sources.tables.network import EDGE_COLUMNS, NODE_COLUMNS, own_network
from frigate.sources.tables.readings import (
    READING_COLUMNS,
    SENSOR_COLUMNS,
    read_readings,
    read_sensors,
    without_lost,
    without_repeated,
)
from frigate.sources.tables.rejected import Rejected, Told
from frigate.sources.tables.user_table import OwnTable, open_table

OURS = tuple(dict.fromkeys((*NODE_COLUMNS, *EDGE_COLUMNS, *READING_COLUMNS)))
DEFAULT_STEP_S = 300


@sandboxed
def import_tables(
    *,
    nodes: str | Path | None = None,
    edges: str | Path | None = None,
    readings: str | Path | None = None,
    network: City | str | Path | None = None,
    sensors: str | Path | None = None,
    rename: Mapping[str, str] | None = None,
    snap_m: float | None = None,
    step: str | None = None,
    timezone: str | None = None,
    date_order: str | None = None,
    encoding: str = "utf-8",
    quantity: str = "count",
    unit: str = "",
    on: str = "nodes",
    name: str | None = None,
    report: str | Path | None = None,
) -> City:
    """A city from tables of nodes, edges and readings, or from readings on the network of another city.

    `rename` maps columns of any of the tables to ours and converts units on the way ({"length_km": "length_m"}).
    `timezone` is that of the network's city where it is not given. `on="roads"` makes every road a node and every turn
    an edge, but those that the network's city forbids. `report` takes the rows that could not be used.
    """
    if on not in ("nodes", "roads"):
        raise CityError(f'on "{on}" is not known. Give nodes or roads')
    if (network is None) == (edges is None):
        raise CityError("Give either a table of edges or the city whose network it is (--network CITY)")
    if network is not None and nodes is not None:
        raise CityError("--network brings its own nodes. Leave --nodes out")
    told = Told(Notices(), Rejected(), None if report is None else Path(report))
    with tempfile.TemporaryDirectory(prefix="frigate-") as scratch:
        files = _Files(Path(scratch), encoding, dict(rename or {}))
        tables = {what: files.open(p) for what, p in _given(nodes, edges, readings, sensors)}
        _check_rename(files.rename, [n for t in tables.values() for n in t.names])
        if network is None:
            edge_table = files.named(tables["edges"], EDGE_COLUMNS, told)
            node_table = None
            if "nodes" in tables:
                node_table = files.named(tables["nodes"], NODE_COLUMNS, told, needed=NODE_COLUMNS)
            own = own_network(node_table, edge_table, told)
            city = City(name or Path(str(edges)).resolve().parent.name, _bare_stream(own.network, timezone))
            road_ids = own.road_ids
        else:
            city = network if isinstance(network, City) else open_city(network)
            city, road_ids = replace(city, name=name or city.name, notices=(), places={}), {}
            timezone = given_or_taken(timezone, city.stream.timezone, told.notices)
        roads = None
        if on == "roads":
            line_graph = on_roads(city, notices=told.notices)
            roads = RoadTable(city.network, line_graph.node_of_edge, road_ids)
            city = City(city.name, _bare_stream(line_graph.network, city.stream.timezone))
        if "readings" not in tables:
            told.rejected.note(told.notices, report=told.report)
            if step is not None or timezone is not None or network is not None:
                city = replace(city, stream=_bare_stream(city.network, timezone or city.stream.timezone, step))
            return _told(replace(city, stream=replace(city.stream, quantity=quantity, unit=unit)), told)
        options = _Options(snap_m, step, timezone, date_order, quantity, unit)
        return _attached(city, tables["readings"], tables.get("sensors"), files, options, roads, told)


@sandboxed
def attach_readings(
    city: City,
    readings: str | Path,
    *,
    sensors: str | Path | None = None,
    roads: RoadTable | None = None,
    rename: Mapping[str, str] | None = None,
    snap_m: float | None = None,
    step: str | None = None,
    timezone: str | None = None,
    date_order: str | None = None,
    encoding: str = "utf-8",
    quantity: str = "count",
    unit: str = "",
    report: str | Path | None = None,
) -> City:
    """The city with these readings in place of its own: for any source that brings a network, and a time zone.

    Where the city stands on its roads, `roads` says which node is which road, so that a detector is attached to the
    nearest road and not to the nearest middle of one.
    """
    told = Told(Notices(), Rejected(), None if report is None else Path(report))
    with tempfile.TemporaryDirectory(prefix="frigate-") as scratch:
        files = _Files(Path(scratch), encoding, dict(rename or {}))
        tables = {what: files.open(p) for what, p in _given(None, None, readings, sensors)}
        _check_rename(files.rename, [n for t in tables.values() for n in t.names])
        timezone = given_or_taken(timezone, city.stream.timezone, told.notices)
        options = _Options(snap_m, step, timezone, date_order, quantity, unit)
        return _attached(city, tables["readings"], tables.get("sensors"), files, options, roads, told)


# Files


@dataclass(frozen=True)
class _Options:
    snap_m: float | None
    step: str | None
    timezone: str | None
    date_order: str | None
    quantity: str
    unit: str


@dataclass(frozen=True)
class _Files:
    """How the user's files are opened and their columns known."""

    scratch: Path
    encoding: str
    rename: Mapping[str, str]

    def open(self, path: str | Path) -> OwnTable:
        return open_table(path, scratch=self.scratch, encoding=self.encoding)

    def named(
        self, table: OwnTable, wanted: tuple[str, ...], told: Told, *, needed: tuple[str, ...] = (), unread: bool = True
    ) -> OwnTable:
        return table.named(wanted, rename=self.rename, notices=told.notices, needed=needed, unread=unread)


def _given(
    nodes: str | Path | None, edges: str | Path | None, readings: str | Path | None, sensors: str | Path | None
) -> Iterator[tuple[str, str | Path]]:
    if sensors is not None and readings is None:
        raise CityError("--sensors says where the sensors of --readings are. Pass both")
    for what, path in (("nodes", nodes), ("edges", edges), ("readings", readings), ("sensors", sensors)):
        if path is not None:
            yield what, path


def _check_rename(rename: Mapping[str, str], names: list[str]) -> None:
    for theirs, ours in rename.items():
        if theirs not in names:
            there = f"The columns are: {', '.join(dict.fromkeys(names))}"
            raise CityError(f'map: no table has a column "{theirs}"{did_you_mean(theirs, names)}. {there}')
        if ours not in OURS:
            raise CityError(f'map: "{ours}" is no column of ours{did_you_mean(ours, OURS)}. Ours: {", ".join(OURS)}')


def _bare_stream(network: RoadNetwork, timezone: str | None, step: str | None = None) -> RoadNetworkStream:
    """A stream without readings."""
    none = Snapshots.none(network.num_nodes)
    step_s = DEFAULT_STEP_S if step is None else parse_step(step, where="step")
    return make_stream(none.values, network, start_s=0, step_s=step_s, timezone=timezone or "UTC")


def _told(city: City, told: Told) -> City:
    places = told.notices.told()
    return replace(
        city, notices=(*city.notices, *places), folder=None, road_features=(), places={**city.places, **places}
    )


# Readings


def _attached(
    city: City,
    readings: OwnTable,
    sensors: OwnTable | None,
    files: _Files,
    options: _Options,
    roads: RoadTable | None,
    told: Told,
) -> City:
    if options.snap_m is not None and not options.snap_m >= 0:
        raise CityError(f"snap {options.snap_m:g}: give a distance in metres, 0 or more")
    step_s = None if options.step is None else parse_step(options.step, where="step")
    local = None if options.timezone is None else zone(options.timezone)
    clock = Clock(local, "Pass --timezone, such as Europe/Luxembourg, or UTC")
    table = files.named(readings, READING_COLUMNS, told, unread=False)
    book = read_readings(table, clock=clock, date_order=options.date_order, quantity=options.quantity, told=told)
    told.rejected.refuse_most(book.table, book.total, report=told.report)
    if sensors is not None:
        named = files.named(sensors, SENSOR_COLUMNS, told, needed=("sensor_id",))
        book = replace(book, places=read_sensors(named, told))
    network = city.network
    places = [book.places.get(key) for key in book.names]
    node_of, reasons = attach(places, network, roads=roads, snap_m=options.snap_m)
    held = without_lost(book, node_of, reasons, told)
    held = without_repeated(held, book, told)
    timezone = options.timezone or city.stream.timezone
    step_s = settle_step(held, book.names, step_s=step_s, quantity=options.quantity, where=readings.path.name)
    values, observed, start_s = snapshots_of(
        held,
        node_of,
        network,
        step_s=step_s,
        timezone=timezone,
        quantity=options.quantity,
        table=book.table,
        notices=told.notices,
    )
    seen = np.flatnonzero(observed.any(axis=1))
    if not len(seen):
        raise CityError(f"{readings.path.name}: no node has a reading, as no snapshot has all detectors of a node")
    first, stop = int(seen[0]), int(seen[-1]) + 1
    lost = len(observed) - (stop - first)
    told.notices.add("Snapshots without any reading before the first or after the last, left out", lost)
    stream = make_stream(
        values[first:stop],
        network,
        start_s=start_s + first * step_s,
        step_s=step_s,
        observed=observed[first:stop],
        timezone=timezone,
        quantity=options.quantity,
        unit=options.unit,
    )
    told.rejected.note(told.notices, report=told.report)
    return _told(replace(city, stream=stream), told)
