"""A city on disk: tables in, a network and a stream out, and back.

    city.toml   format = 1, name, step ("5min"), timezone, quantity ("count" or a gauge such as "speed"), unit,
                [exclude] readings to leave out, see `exclude`
    nodes       node_id, lon, lat [, name] [, geometry (WKB), if nodes are roads]
    edges       source, target [, length_m, road_class, lanes, speed_kph, name, geometry (WKB)]
    readings    time, node_id, value              no row means not observed; a 0 is a real zero
    changes     time, action, source, target, node_id, lon, lat, length_m [, road_class, lanes, speed_kph]
    turns       source, via, target               a forbidden turn
    sensors     sensor_id, node_id [, lon, lat, moved_m]    the detectors' own names, only for display

Each table is .parquet or .csv. Only `nodes` and `edges` are required. Each table is read by the module of its name;
nodes and edges by `network_tables`, sensors by `sensor_table`. `notices.json` keeps what the import reported.

`CITY/cache` keeps what was read, as .npy files and one JSON file, and is rebuilt when a table changes. It needs only
numpy to open, so a machine without table readers can use it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from frigate.city.bucketing import Snapshots
from frigate.city.cache import is_cache, load_cache, open_cache, save_cache
from frigate.city.changes import change_frame, every_road, read_changes
from frigate.city.city import IMPORT_NOTICES, TABLES, City, city_folder, empty_turns, file_digests, find_sources
from frigate.city.city_toml import CityFile, read_city_file
from frigate.city.detectors import Detectors
from frigate.city.exclude import without_excluded
from frigate.city.network_tables import edge_frame, note_lengths, note_network, read_edges, read_nodes
from frigate.city.outliers import implausible, reading_text
from frigate.city.readings import read_readings, write_readings
from frigate.city.sensor_table import detector_frame, read_detectors
from frigate.city.stream import RoadNetworkStream
from frigate.city.timeline import Timeline
from frigate.city.turns import read_turns, turn_frame
from frigate.errors import CityError
from frigate.reading.columns import INTEGER_ID
from frigate.reading.files import check_replaceable
from frigate.reading.notices import Notices
from frigate.reading.sandbox import in_sandbox
from frigate.reading.tables import city_table, write_table, writing
from frigate.reading.times import utc_text

__all__ = ["City", "excluding", "open_cache", "open_city", "read_city", "write_city"]


def open_city(path: str | Path, *, exclude: Sequence[str] = ()) -> City:
    """Open a city folder, or a cache on its own.

    Parameters
    ----------
    path
        A folder with a city.toml, or a cache folder that was copied from one.
    exclude
        Readings to leave out, as for `read_city`.
    """
    bare = Path(path).is_dir() and not (Path(path) / "city.toml").is_file()
    return excluding(open_cache(path), exclude) if bare else read_city(path, exclude=exclude)


def read_city(path: str | Path, *, cache: bool = True, exclude: Sequence[str] = ()) -> City:
    """Read a city folder.

    Parameters
    ----------
    path
        A folder with city.toml, nodes and edges, and optionally readings, changes and turns, each CSV or Parquet.
    cache
        Whether to use and update `CITY/cache`, which is valid until a table changes.
    exclude
        Readings to leave out in addition to [exclude] in city.toml: those of a sensor, given by its node ("4411"), of
        a period ("2024-03-11/2024-03-15"), or of a sensor in a period ("4411@2024-03-11").

    Returns
    -------
    The city. Its notices report what was left out or repaired.
    """
    folder = city_folder(Path(path))
    sources = find_sources(folder)
    digests = file_digests(sources) if cache else {}
    if cache and (folder / "cache" / "cache.json").exists():
        try:
            kept, known = load_cache(folder / "cache")
            if known == digests:
                return excluding(replace(kept, folder=folder), exclude)
        except CityError:
            pass  # an unreadable cache is rebuilt
    city = in_sandbox(_read_into_cache, folder, sources, digests)
    return excluding(city or replace(load_cache(folder / "cache")[0], folder=folder), exclude)


def excluding(city: City, exclude: Sequence[str]) -> City:
    """The city without these readings, with a notice of each. `exclude` is as for `read_city`."""
    if not exclude:
        return city
    notices = Notices()
    stream = without_excluded(city.stream, exclude, detectors=city.detectors, where="--exclude", notices=notices)
    told = (*city.notices, *notices.sentences())
    return replace(city, stream=stream, notices=told, excluded=(*city.excluded, *exclude))


def _read_into_cache(folder: Path, sources: dict[str, Path], digests: dict[str, list[Any]]) -> City | None:
    """Read the tables and write them to the cache if digests are given. Returns the city only if it was not cached."""
    city = _read_tables(folder, sources)
    if not digests:
        return city
    cache = folder / "cache"
    if cache.exists() and not is_cache(cache):
        told = f"{cache} holds files that are not part of a cache. They are left alone, so the city is not cached"
        return replace(city, notices=(*city.notices, told))
    try:
        save_cache(city, cache, digests)
    except OSError:
        return city  # a read-only folder is fine: the city is just not cached
    return None


def _read_tables(folder: Path, sources: dict[str, Path]) -> City:
    notices = Notices()
    settings = read_city_file(folder)
    base = read_nodes(sources["nodes"], notices=notices, as_text=settings.text_ids)
    base = read_edges(sources["edges"], base, notices=notices)
    timeline = Timeline.of(base)
    if "changes" in sources:
        timeline = read_changes(sources["changes"], base, clock=settings.clock, notices=notices)
    if not any(network.num_edges for network in timeline.networks):
        raise CityError(f"{sources['edges'].name} has no roads. A city needs roads between its nodes")
    base = timeline.networks[0]
    turns = read_turns(sources["turns"], timeline.networks, notices=notices) if "turns" in sources else empty_turns()
    snapshots = Snapshots.none(base.num_nodes, settings.step_s, settings.timezone)
    if "readings" in sources:
        table = city_table(sources["readings"], ("time", "node_id", "value"), notices=notices)
        read = read_readings(table.batches(), base, clock=settings.clock, quantity=settings.quantity, notices=notices)
        snapshots = read.snapshots(
            base, step_s=settings.step_s, timezone=settings.timezone, quantity=settings.quantity, notices=notices
        )
    stream = _stream(snapshots, timeline, settings, notices)
    detectors = Detectors()
    if "sensors" in sources:
        detectors = read_detectors(sources["sensors"], base, notices=notices)
    stream = without_excluded(
        stream, settings.exclude, detectors=detectors, where="city.toml [exclude]", notices=notices
    )
    note_network(stream.network, notices)
    note_lengths(stream.network, notices)
    if not stream.observed.any():
        notices.add("Nodes without any reading: the city has no sensor and cannot be trained on", stream.num_nodes)
    imported = _read_import_notices(sources["notices"]) if "notices" in sources else {}
    city = City.reported(settings.name, stream, notices, forbidden_turns=turns)
    return replace(city, folder=folder, detectors=detectors, imported=imported, read_as=settings.read_as)


def _read_import_notices(path: Path) -> dict[str, tuple[str, ...]]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        both = {**kept["imported"], **kept["appended"]}
        return {str(notice): tuple(map(str, places)) for notice, places in both.items()}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CityError(f"{path.name} is damaged ({error}). Delete it: nothing needs it") from None


def _stream(snapshots: Snapshots, timeline: Timeline, settings: CityFile, notices: Notices) -> RoadNetworkStream:
    starts_s = snapshots.steps.times_s(0, len(snapshots.values))
    networks, network_of, later = timeline.course(starts_s)
    stream = snapshots.stream(
        networks, network_of=network_of, quantity=settings.quantity, unit=settings.unit, later=later
    )

    def place(cell: int) -> str:
        snapshot, node = divmod(cell, stream.num_nodes)
        return f'node "{stream.node_ids[node]}" at {utc_text(int(starts_s[snapshot]) * 1_000_000)}'

    def reading(cell: int) -> str:
        return f"{place(cell)} reads {reading_text(float(stream.values.reshape(-1)[cell]))}"

    far = implausible(stream.values, stream.observed)
    notices.add_rows("Readings far outside the rest of the record, taken as not observed", far.reshape(-1), reading)
    if not all(network.present.all() for network in networks):
        lost = (snapshots.observed & ~stream.observed).reshape(-1)
        notices.add_rows("Readings of nodes while they were absent were left out", lost, place)
    if not far.any():
        return stream
    return replace(stream, values=np.where(far, np.float32(0), stream.values), observed=stream.observed & ~far)


def write_city(city: City, path: str | Path, *, csv: bool = False, overwrite: bool = False) -> None:
    """Write a city folder, completely or not at all.

    Parameters
    ----------
    city
        The city.
    path
        A new folder, or a city that Frigate wrote, which is replaced.
    csv
        Whether to write CSV instead of Parquet.
    overwrite
        Whether to replace even a city that was made or edited by hand.
    """
    folder = Path(path).resolve()
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "city.toml").exists():
        raise CityError(f"{folder} is not empty and is not a city. Name another folder")
    check_replaceable(folder, is_of_city, "a city", overwrite=overwrite)
    with writing(folder) as new:
        _write_tables(city, new, csv=csv)


def is_of_city(path: Path) -> bool:
    """Whether a file or folder inside a city folder is part of the city."""
    names = {"city.toml", IMPORT_NOTICES, *(f"{stem}.{end}" for stem in TABLES for end in ("csv", "parquet"))}
    return is_cache(path) if path.name == "cache" else path.name in names and path.is_file()


def write_import_notices(
    folder: Path, imported: Mapping[str, Sequence[str]], appended: Mapping[str, Sequence[str]]
) -> None:
    """Write the notices of the city's import and of the last --append, with their places."""
    if imported or appended:
        text = json.dumps({"imported": imported, "appended": appended}, indent=1, ensure_ascii=False)
        (folder / IMPORT_NOTICES).write_text(text, encoding="utf-8")


def _write_tables(city: City, folder: Path, *, csv: bool) -> None:
    import polars as pl

    stream = city.stream
    first = stream.networks[int(stream.network_of[0])] if stream.num_snapshots else stream.network
    text_ids = stream.node_ids.dtype.kind == "U" and all(re.fullmatch(INTEGER_ID, x) for x in stream.node_ids.tolist())
    settings = CityFile(
        city.name, stream.step_s, stream.timezone, stream.quantity, stream.unit, text_ids, read_as=city.read_as
    )
    (folder / "city.toml").write_text(settings.to_toml(), encoding="utf-8")
    nodes = pl.DataFrame({"node_id": stream.node_ids, "lon": first.lon, "lat": first.lat})
    if len(first.lines):
        nodes = nodes.with_columns(geometry=pl.Series([line or None for line in first.lines.tolist()], dtype=pl.Binary))
    if len(first.names):
        nodes = nodes.with_columns(name=pl.Series([name or None for name in first.names.tolist()], dtype=pl.String))
    write_table(nodes, folder, "nodes", csv=csv)
    write_table(edge_frame(every_road(first), stream.node_ids), folder, "edges", csv=csv)
    changes = change_frame(stream, first)
    if changes is not None:
        write_table(changes, folder, "changes", csv=csv)
    if len(city.forbidden_turns):
        write_table(turn_frame(city.forbidden_turns, stream.node_ids), folder, "turns", csv=csv)
    if len(city.detectors):
        write_table(detector_frame(city.detectors, stream.node_ids), folder, "sensors", csv=csv)
    write_import_notices(folder, city.reports, {})
    write_readings(stream, folder, csv=csv)
