"""Import a user's own tables of nodes, edges and readings, with any column names and common time formats.

Readings are long (one per row: time, sensor, value) or wide (time, then one column per sensor). A sensor is attached to
the node or road that it names, or else to the one nearest to its coordinates, which come from a table of sensors or
from the readings themselves. An unusable row is left out, reported and listed in the report file. If more than half of
a table is unusable, it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import zone
from frigate.city.bucketing import Readings, Snapshots, Span, bucket_sensors, snapshot_grid
from frigate.city.city import City
from frigate.city.city_toml import parse_step
from frigate.city.detectors import Detectors
from frigate.city.folder import open_city
from frigate.city.network import RoadNetwork
from frigate.city.network_tables import NODE_COLUMNS
from frigate.city.reading_options import ReadingOptions
from frigate.city.stream import RoadNetworkStream, parse_quantity
from frigate.errors import CityError
from frigate.reading.column_names import check_rename
from frigate.reading.notices import Notices
from frigate.reading.sandbox import sandboxed, scratch_folder
from frigate.reading.tables import TableFile, open_table
from frigate.reading.times import Clock, network_timezone
from frigate.roads.on_roads import on_roads
from frigate.sources.tables.detectors import Attached, RoadTable, SensorSite, attach
from frigate.sources.tables.import_log import ImportLog
from frigate.sources.tables.intervals import settle_step
from frigate.sources.tables.network import EDGE_COLUMNS, network_from_tables
from frigate.sources.tables.one_direction import one_direction
from frigate.sources.tables.readings import (
    PLACE_COLUMNS,
    READING_COLUMNS,
    read_sensor_readings,
    read_sensors,
    usable_readings,
)
from frigate.sources.timezones import timezone_of

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
    encoding: str | None = None,
    quantity: str | None = None,
    unit: str = "",
    on: str | None = None,
    bearing: str | None = None,
    name: str | None = None,
    report: str | Path | None = None,
) -> City:
    """Make a city from tables of nodes, edges and readings, or from readings on the network of another city.

    Parameters
    ----------
    nodes, edges
        Tables of intersections and roads. Without nodes, the lines of the edges locate them.
    readings
        A long or wide table. None: a city without readings.
    network
        A city, or its folder, whose network is used instead of nodes and edges. The city's notices are kept.
    sensors
        A table with the locations of the sensors.
    rename
        Columns of any of the tables -> ours. Units are converted: {"length_km": "length_m"}.
        Where the readings of the network's city were imported, these columns, `snap_m`, `date_order`, `encoding` and
        `bearing` are as they were then, unless given.
    snap_m
        Maximum distance of a sensor from its node or road; default: 50.
    step
        Default: the step of the readings.
    timezone
        For times without a zone; if it is unknown, they are refused. Default: that of the network's city. The time zone
        of the new city itself defaults to that of the place.
    date_order
        "dmy", "mdy" or "ymd", if the dates do not show it.
    encoding
        Encoding of CSV files that are not UTF-8.
    quantity, unit
        "count", or the name of a gauge such as "speed"; and its unit. Default: "count", unless the column of readings
        has the name of a gauge.
    on
        "nodes", or "roads": every road is a node, and every turn that the network's city allows is an edge. Default:
        "nodes", but refused where detectors measure single roads, because one direction is not an intersection.
    bearing
        Of the detectors that have none: degrees, a compass word, or "both" if each measures both directions.
    name
        Name of the city; default: that of the edges' folder, or of the network's city.
    report
        A file in which to list unusable rows.
    """
    if on not in (None, "nodes", "roads"):
        raise CityError(f'on "{on}" is not known. Give nodes or roads')
    if (network is None) == (edges is None):
        raise CityError("Give either a table of edges or a city with the network (--network CITY)")
    if network is not None and nodes is not None:
        raise CityError("--network has its own nodes. Leave out --nodes")
    if quantity is not None:
        quantity = parse_quantity(quantity, where="quantity")
    log = ImportLog(None if report is None else Path(report))
    if network is not None and not isinstance(network, City):
        network = replace(open_city(network), notices=(), places={})
    read_as = ReadingOptions(encoding, date_order, bearing, snap_m, dict(rename or {}))
    if network is not None:
        read_as = read_as.or_else(network.read_as)
    options = _ImportOptions(read_as, step, timezone, quantity, unit, on)
    given = {"nodes": nodes, "edges": edges, "readings": readings, "sensors": sensors}
    with _opened(given, options.read_as, dict(rename or {})) as tables:
        if network is None:
            own, roads = network_from_tables(
                tables.get("nodes"), tables["edges"], read_as.rename, log, keep_parallel=on == "roads"
            )
            table = RoadTable(own, roads.edges, roads.ids)
            place = timezone_of(own, timezone, log.notices)
            city = City(name or Path(str(edges)).resolve().parent.name, _bare_stream(own, place))
        else:
            city = replace(network, name=name or network.name)
            of_roads = len(city.network.lines) > 0
            table = RoadTable.of_line_graph(city.network) if of_roads else RoadTable(city.network, city.network.edges)
            timezone = network_timezone(timezone, city.stream.timezone, log.notices)
            options = replace(options, timezone=timezone)
        if on == "roads" and not len(city.network.lines):
            stream = _bare_stream(on_roads(city, edges=table.edges, notices=log.notices), city.stream.timezone)
            city = City(city.name, stream, city.notices, places=city.places)
        if "readings" in tables:
            return _attached(city, tables, options, table, log)
        if step is not None or timezone is not None or network is not None:
            city = replace(city, stream=_bare_stream(city.network, timezone or city.stream.timezone, step))
        return _with_notices(replace(city, stream=replace(city.stream, quantity=quantity or "count", unit=unit)), log)


@dataclass(frozen=True)
class _ImportOptions:
    read_as: ReadingOptions
    step: str | None
    timezone: str | None
    quantity: str | None
    unit: str
    on: str | None


@contextmanager
def _opened(
    given: Mapping[str, str | Path | None], read_as: ReadingOptions, rename: Mapping[str, str]
) -> Iterator[dict[str, TableFile]]:
    """The given tables. UTF-8 copies, where needed, exist until the block ends."""
    if given["sensors"] is not None and given["readings"] is None:
        raise CityError("--sensors locates the sensors of --readings. Pass both")
    with scratch_folder() as scratch:
        tables = {
            what: open_table(path, scratch=Path(scratch), encoding=read_as.encoding or "utf-8")
            for what, path in given.items()
            if path is not None
        }
        check_rename(rename, [n for table in tables.values() for n in table.names], OURS)
        yield tables


def _bare_stream(network: RoadNetwork, timezone: str, step: str | None = None) -> RoadNetworkStream:
    """A stream without readings."""
    step_s = DEFAULT_STEP_S if step is None else parse_step(step, where="step")
    return Snapshots.none(network.num_nodes, step_s, timezone).stream(network)


def _with_notices(city: City, log: ImportLog) -> City:
    places = log.finish().sentences()
    return replace(
        city, notices=(*city.notices, *places), folder=None, road_features={}, places={**city.places, **places}
    )


# Readings


def _attached(
    city: City, tables: Mapping[str, TableFile], options: _ImportOptions, roads: RoadTable, log: ImportLog
) -> City:
    read_as = options.read_as
    if read_as.snap_m is not None and not 0 <= read_as.snap_m < math.inf:
        raise CityError(f"snap {read_as.snap_m:g}: give a distance in metres, 0 or more")
    step_s = None if options.step is None else parse_step(options.step, where="step")
    local = None if options.timezone is None else zone(options.timezone)
    clock = Clock(local, f"Pass --timezone, such as {city.stream.timezone} (where the map is) or UTC")
    where = tables["readings"].path.name
    rename = read_as.rename
    notices = log.notices
    file = tables["readings"].choose((), READING_COLUMNS, rename=rename, notices=notices, note_unread=False)
    quantity = parse_quantity(options.quantity, where=where, column=file.source_of.get("value", ""))
    found = read_sensor_readings(file, clock=clock, date_order=read_as.date_order, quantity=quantity, log=log)
    log.refuse_most(found.file, found.total)
    if "sensors" in tables:
        sensors = tables["sensors"].choose(("sensor_id",), PLACE_COLUMNS, rename=rename, notices=notices)
        found = replace(found, sites=read_sensors(sensors, log))
    elif len(city.detectors):
        found = replace(found, sites={**found.sites, **_known_sites(city, found.names)})
    network = city.network
    sensors_at = [found.sites.get(key) for key in found.names]
    if read_as.bearing is not None:
        sensors_at = [site and replace(site, bearing=site.bearing or read_as.bearing) for site in sensors_at]
    on_roads_now = len(network.lines) > 0
    if not on_roads_now:
        _check_intersections(sensors_at, found.names, roads, options.on, where, notices)
    attached = attach(
        sensors_at, network, names=found.names, roads=roads if on_roads_now else None, snap_m=read_as.snap_m
    )
    other = np.array([each != "" for each in attached.other_street], bool)
    what = "Detectors whose street is none of the near roads, attached to the nearest"
    notices.add_rows(what, other, lambda i: f'"{found.names[i]}", {attached.other_street[i]}')
    usable = usable_readings(found, attached.node_of, attached.reasons, log)
    detectors = _detectors(found.names, sensors_at, attached, network)
    timezone = options.timezone or city.stream.timezone
    step_s = settle_step(usable, found.names, step_s=step_s, quantity=quantity, where=where)
    usable, node_of = _both_directions(usable, attached, quantity, log)
    N = network.num_nodes
    D = len(node_of)
    span = Span.of(usable.time_us, lambda i: found.file.place(int(usable.row[i])))
    grid = snapshot_grid(span, step_s=step_s, timezone=timezone, num_nodes=max(D, N), num_readings=len(usable))
    joined = bucket_sensors(usable, grid, node_of=node_of, num_nodes=N, quantity=quantity)
    rule = "summed where all of them report" if quantity == "count" else "averaged"
    shared = int((np.bincount(node_of[node_of >= 0], minlength=N) > 1).sum())
    notices.add(f"Nodes with several detectors, whose readings are {rule}", shared)
    notices.add_rows(
        "Nodes with snapshots left out because only some of their detectors reported",
        joined.partial > 0,
        lambda n: f"node {network.node_ids[n]}, {int(joined.partial[n]):,} snapshots",
    )
    snapshots = joined.snapshots
    if not snapshots.observed.any():
        raise CityError(f"{where}: no node has a reading, because its detectors never report in the same snapshot")
    snapshots = snapshots.trimmed(notices)
    stream = snapshots.stream(network, quantity=quantity, unit=options.unit)
    own = {theirs: ours for theirs, ours in rename.items() if ours in READING_COLUMNS}
    read_as = replace(read_as, rename=own)
    return _with_notices(replace(city, stream=stream, detectors=detectors, read_as=read_as), log)


def _check_intersections(
    sites: Sequence[SensorSite | None],
    names: Sequence[str],
    roads: RoadTable,
    on: str | None,
    where: str,
    notices: Notices,
) -> None:
    """Where detectors measure single roads, ask for roads, or report that they are taken as whole intersections."""
    reason = one_direction(sites, names, roads)
    if reason and on is None:
        raise CityError(
            f"{where}: {reason}, which is not all traffic of an intersection. Pass --on roads, so that each reads its "
            "road; or --on nodes, if the detectors at an intersection measure all of it together"
        )
    if reason:
        notices.add(f"Imports with --on nodes whose readings are taken as all traffic of an intersection: {reason}", 1)


def _known_sites(city: City, names: Sequence[str]) -> dict[str, SensorSite]:
    """Locations of those detectors that the city already knows and that are not named like one of its nodes."""
    node_ids = [str(node_id) for node_id in city.network.node_ids.tolist()]
    sites: dict[str, SensorSite] = {}
    known = city.detectors
    for name, node, lon, lat in zip(
        known.names.tolist(), known.nodes.tolist(), known.lon.tolist(), known.lat.tolist(), strict=True
    ):
        if name in sites:
            sites[name] = replace(sites[name], second_id=node_ids[node])
        else:
            sites[name] = SensorSite(node_id=node_ids[node], lon=lon, lat=lat)
    wanted = set(names) - set(node_ids)
    return {name: site for name, site in sites.items() if name in wanted}


def _detectors(
    names: Sequence[str], sites: Sequence[SensorSite | None], attached: Attached, network: RoadNetwork
) -> Detectors:
    """The attached detectors, if they have names or locations of their own."""
    at = np.concatenate([np.flatnonzero(attached.node_of >= 0), np.flatnonzero(attached.second_of >= 0)])
    nodes = np.concatenate([attached.node_of[attached.node_of >= 0], attached.second_of[attached.second_of >= 0]])
    own = np.array(names, np.str_)[at]
    lon, lat = (np.array([math.nan if site is None else getattr(site, c) for site in sites]) for c in ("lon", "lat"))
    if not (np.isfinite(lon[at]).any() or (own != network.node_ids[nodes].astype(np.str_)).any()):
        return Detectors()
    return Detectors(own, nodes, lon[at], lat[at], attached.moved_m[at])


def _both_directions(
    readings: Readings, attached: Attached, quantity: str, log: ImportLog
) -> tuple[Readings, NDArray[np.int64]]:
    """The readings by detector and the node of each. A detector of both directions is split in two.

    Its counts are for both together, so each direction gets half.
    """
    both = np.flatnonzero(attached.second_of >= 0)
    if not len(both):
        return readings, attached.node_of
    rule = "each given half of the count" if quantity == "count" else "both given the same value"
    log.notices.add(f"Detectors that measure both directions of a road, {rule}", len(both))
    of_both = np.isin(readings.column, both)
    if quantity == "count":
        readings = replace(readings, value=np.where(of_both, readings.value / 2, readings.value))
    other = readings.take(of_both)
    number = np.searchsorted(both, other.column) + len(attached.node_of)
    again = replace(other, column=number.astype(other.column.dtype))
    return Readings.join([readings, again]), np.concatenate([attached.node_of, attached.second_of[both]])
