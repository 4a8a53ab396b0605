"""Make a city from LibCity's atomic files.

    NAME.geo       geo_id, type (Point, LineString, Polygon), coordinates ("[lon, lat]")
    NAME.rel       rel_id, type, origin_id, destination_id [, cost or distance]
    NAME.dyna      dyna_id, type, time, entity_id, one column for each feature
    config.json    which columns hold what

A line or polygon becomes a node at the middle of its points. LibCity writes local times with a Z: if `timezone` is
given, times are local times in that zone, whatever suffix they have; if not, a Z means UTC. An empty value is not
observed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.calendar import zone
from frigate.city.bucketing import Snapshots, usual_step_s
from frigate.city.city import City
from frigate.city.city_toml import whole_step
from frigate.city.network import Edges, RoadNetwork
from frigate.city.network_tables import note_network, read_edges
from frigate.city.readings import read_readings
from frigate.city.stream import parse_quantity
from frigate.coordinates import coordinate_fault
from frigate.errors import CityError, did_you_mean
from frigate.reading.columns import new_ids
from frigate.reading.files import parsing
from frigate.reading.notices import Notices
from frigate.reading.tables import Table, city_table, open_table
from frigate.reading.times import Clock
from frigate.sources.benchmarks.files import DataFile, Options, find_files
from frigate.sources.benchmarks.layout import INVENTED, invented_places
from frigate.sources.benchmarks.sensor_graph import in_metres

FILES = {
    "geo": DataFile(("*.geo",)),
    "rel": DataFile(("*.rel",)),
    "dyna": DataFile(("*.dyna",), needed=False),
    "config": DataFile(("config.json",), needed=False),
}
LENGTHS = ("length_m", "distance", "cost", "length")
QUANTITIES = {"flow": "count", "count": "count", "volume": "count", "speed": "speed", "occupancy": "occupancy"}
NOT_FEATURES = ("dyna_id", "type", "time", "entity_id")
DEFAULT_STEP_S = 300
NO_LENGTH_M = 1000.0
ZEROS = "a missing reading should be empty; LibCity's METR_LA and PEMS_BAY have 0 instead (then pass zeros missing)"


@dataclass(frozen=True)
class _LibcityConfig:
    """How to read the files, from config.json and the caller."""

    name: str
    feature: str | None
    timezone: str
    local: bool  # times are local, whatever suffix they have
    ours: bool  # written by export_libcity
    quantity: str | None
    unit: str
    step_s: int | None
    text_ids: bool
    weight: str | None  # the column of .rel that LibCity uses as the weight
    zeros_missing: bool


def libcity_city(options: Options) -> City:
    """Make a city from LibCity's atomic files."""
    found = find_files(options.files, FILES)
    config: Any = {}
    if "config" in found:
        with parsing(found["config"]):
            config = json.loads(found["config"].read_text(encoding="utf-8-sig"))
    settings = _settings(config if isinstance(config, dict) else {}, found["geo"], options)
    notices = Notices()
    network = _network(found, settings, options.length_unit, notices)
    quantity = settings.quantity or "count"
    snapshots = Snapshots.none(network.num_nodes, settings.step_s or DEFAULT_STEP_S, settings.timezone)
    if "dyna" in found:
        feature = _feature(found["dyna"], settings)
        words = [kind for word, kind in QUANTITIES.items() if word in feature.lower()]
        quantity = settings.quantity or (words[0] if words else parse_quantity(feature, where=found["dyna"].name))
        snapshots = _snapshots(found["dyna"], network, settings, feature, quantity, notices)
    stream = snapshots.stream(network, quantity=quantity, unit=settings.unit)
    return City.reported(settings.name, stream, notices)


def _settings(config: dict[str, Any], geo: Path, options: Options) -> _LibcityConfig:
    info, ours = (part if isinstance(part := config.get(key), dict) else {} for key in ("info", "frigate"))

    def text(facts: dict[str, Any], key: str) -> str | None:
        value = facts.get(key)
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, str) and value else None

    step = ours.get("step_s")
    timezone = options.timezone or text(ours, "timezone") or "UTC"
    zone(timezone)
    return _LibcityConfig(
        name=options.name or text(ours, "name") or geo.stem,
        feature=options.feature or text(info, "data_col"),
        timezone=timezone,
        local=options.timezone is not None and not ours,
        ours=bool(ours),
        quantity=text(ours, "quantity"),
        unit=text(ours, "unit") or "",
        step_s=whole_step(step, where="config.json") if isinstance(step, int) else None,
        text_ids=ours.get("node_ids") == "text",
        weight=text(info, "weight_col"),
        zeros_missing=options.zeros == "missing",
    )


# Nodes and roads


def _network(
    found: Mapping[str, Path], settings: _LibcityConfig, length_unit: str | None, notices: Notices
) -> RoadNetwork:
    table = city_table(found["geo"], ("geo_id", "coordinates"), ("type",), notices=notices).read()
    if not len(table):
        raise CityError(f"{found['geo'].name} has no rows. A city needs nodes")
    ids = new_ids(table, "geo_id", as_text=settings.text_ids)
    lon, lat = _places(table, notices)
    network = RoadNetwork(ids, lon, lat, Edges.none())
    path = found["rel"]
    names = open_table(found["rel"], strict=True).names
    rename = {"origin_id": "source", "destination_id": "target"}
    lengths = [c for c in (settings.weight, *LENGTHS) if c in LENGTHS and c in names]
    if lengths:
        rename |= {lengths[0]: "length_m"}
    network = read_edges(path, network, notices=notices, rename=rename)
    if not network.num_edges:
        raise CityError(f"{path.name} has no roads. A city needs roads between its nodes")
    edges = network.edges
    unknown = np.isnan(edges.length_m)
    notices.add("Roads without a length or coordinates, given 1,000 m", int(unknown.sum()))
    edges = replace(edges, length_m=np.where(unknown, NO_LENGTH_M, edges.length_m))
    if lengths and not settings.ours:
        edges = in_metres(edges, path, length_unit, notices)
    if np.isnan(lon).all():
        lon, lat = invented_places(len(ids), edges)
        notices.add(INVENTED, len(ids))
    network = RoadNetwork(ids, lon, lat, edges)
    note_network(network, notices)
    return network


def _places(table: Table, notices: Notices) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The middle of each row's points; all NaN if no row has coordinates."""
    places = np.full((len(table), 2), np.nan)
    several = np.zeros(len(table), bool)
    for row, text in enumerate(table.frame["coordinates"].to_list()):
        try:
            points = _points(list(json.loads(text or "[]")))
        except (ValueError, TypeError, RecursionError):
            raise table.refuse(row, f"coordinates {str(text)[:40]!r} are not understood. Write [lon, lat]") from None
        if len(points):
            places[row] = points.mean(axis=0)
            several[row] = len(points) > 1
            fault = coordinate_fault(*places[row].tolist())
            if fault:
                raise table.refuse(row, fault)
    nowhere = np.isnan(places[:, 0])
    if not nowhere.all():
        table.refuse_where(nowhere, lambda _: "coordinates are empty. Give coordinates for every node, or for none")
    place = table.place_of("geo_id")
    notices.add_rows("Lines and areas, taken as nodes at the middle of their points", several, place)
    notices.add_rows("Nodes placed at 0, 0", (places == 0).all(axis=1), place)
    return places[:, 0], places[:, 1]


def _points(points: list[Any]) -> NDArray[np.float64]:
    """[points, 2] from lists of any depth: a polygon nests its points two levels deep."""
    while points and isinstance(points[0], list) and points[0] and isinstance(points[0][0], list):
        points = points[0]
    array = np.asarray(points, np.float64).reshape(-1, 2) if points else np.zeros((0, 2))
    if not np.isfinite(array).all():
        raise ValueError("not finite")
    return array


# Readings


def _feature(path: Path, settings: _LibcityConfig) -> str:
    names = open_table(path, strict=True).names
    features = [n for n in names if n not in NOT_FEATURES]
    if settings.feature is not None:
        if settings.feature not in features:
            hint = did_you_mean(settings.feature, features)
            raise CityError(
                f'{path.name} has no feature "{settings.feature}"{hint}. Its features: {", ".join(features)}'
            )
        return settings.feature
    if not features:
        raise CityError(f"{path.name} has no column of readings. Its columns are: {', '.join(names)}")
    return features[0]


def _snapshots(
    path: Path, network: RoadNetwork, settings: _LibcityConfig, feature: str, quantity: str, notices: Notices
) -> Snapshots:
    """The readings in snapshots, from the first row to the last, even if those rows are empty."""
    columns = ("time", "entity_id", feature)
    tables = city_table(path, columns, ("dyna_id", "type"), notices=notices).batches()
    read = read_readings(
        map(_without_zones, tables) if settings.local else tables,
        network,
        clock=Clock(zone(settings.timezone), ""),
        quantity=quantity,
        notices=notices,
        node="entity_id",
        value=feature,
        zeros_missing=settings.zeros_missing,
        dense=True,
    )
    if not settings.ours:
        rule = "taken as not observed: asked for" if settings.zeros_missing else f"kept as readings of 0: {ZEROS}"
        notices.counts[f"Zeros {rule}"] = read.zeros
        what = "Times read as UTC, as written; in LibCity they are mostly local times (then give timezone)"
        notices.add(what, 0 if settings.local else read.rows)
    step_s = settings.step_s or DEFAULT_STEP_S
    if settings.step_s is None and read.span is not None:
        step_s = usual_step_s(np.diff(read.times_us), where=path.name)
    return read.snapshots(network, step_s=step_s, timezone=settings.timezone, quantity=quantity, notices=notices)


def _without_zones(table: Table) -> Table:
    bare = pl.col("time").cast(pl.String).str.strip_chars().str.replace(r"(Z|[+-]\d\d:?\d\d)$", "")
    return table.with_columns(bare)
