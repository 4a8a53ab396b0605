"""What the fuzz tests damage: for each format its good files, and the import that must survive bad ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import polars as pl

from frigate.city.city import City
from frigate.city.folder import open_cache, read_city
from frigate.city.network import Edges, RoadNetwork
from frigate.coordinates import haversine_m
from frigate.sources.benchmarks.importer import import_benchmark
from frigate.sources.matrix import import_matrix
from frigate.sources.osm.importer import import_osm
from frigate.sources.sumo.importer import import_sumo
from frigate.sources.tables.importer import import_tables
from frigate.sources.traces.importer import import_traces
from tests.support import benchmark_files, osm_files, sumo_files, table_files
from tests.support.fuzz_tables import other_cells, other_types

Files = dict[str, Path]


@dataclass(frozen=True)
class Format:
    write: Callable[[Path], Files]  # into a folder; any of them may then be damaged
    load: Callable[[Files], City]
    damage: Callable[[bytes, np.random.Generator], bytes] | None = None  # of one of them; default: of its bytes


NODES = "node_id,lon,lat\n" + "".join(f"{n},{6.1 + n / 100:.2f},{49.6 + n % 3 / 100:.2f}\n" for n in range(8))
EDGES = "source,target,length_m,road_class,lanes,speed_kph,name\n" + "".join(
    f'{n},{(n + 1) % 8},{100 + n},primary,2,50,"Rue, {n}"\n{(n + 1) % 8},{n},,residential,,,é\n' for n in range(8)
)
READINGS = "time,node_id,value\n" + "".join(
    f"2024-01-01T{t // 12:02d}:{t % 12 * 5:02d}Z,{n},{t * n % 7}\n" for t in range(20) for n in range(5)
)
CHANGES = (
    "time,action,source,target,node_id,lon,lat,length_m\n"
    "2024-01-01T00:20Z,close,1,2,,,,\n2024-01-01T00:40Z,open,1,2,,,,\n"
    "2024-01-01T00:50Z,add_node,,,9,6.1,49.6,\n2024-01-01T00:55Z,add_edge,1,9,,,,80\n"
)
COUNTS = np.arange(60).reshape(20, 3) % 7
TIMES = 1_704_067_200 + 300 * np.arange(20)


def city_csv(folder: Path) -> Files:
    (folder / "city.toml").write_text('name = "Town"\nstep = "5min"\ntimezone = "Europe/Luxembourg"\nunit = "cars"\n')
    for stem, text in (("nodes", NODES), ("edges", EDGES), ("readings", READINGS), ("changes", CHANGES)):
        (folder / f"{stem}.csv").write_text(text)
    return {path.name: path for path in folder.iterdir()}


def city_parquet(folder: Path, *, compression: str) -> Files:
    paths = city_csv(folder)
    files = {}
    for stem in ("nodes", "edges", "readings"):
        frame = pl.read_csv(paths[f"{stem}.csv"], try_parse_dates=True)
        if stem == "edges":
            frame = frame.with_columns(geometry=pl.lit(b"\x01\x02\0\0\0\0\0\0\0"))
        path = folder / f"{stem}.parquet"
        frame.write_parquet(path, compression="zstd" if compression == "zstd" else "uncompressed")
        paths[f"{stem}.csv"].unlink()
        files[path.name] = path
    return files


def as_parquet(files: Files) -> Files:
    """The same tables as Parquet, in place of CSV."""
    found = {}
    for path in files.values():
        german = ";" in path.read_text()
        frame = pl.read_csv(path, separator=";" if german else ",", decimal_comma=german, try_parse_dates=True)
        frame.write_parquet(path.with_suffix(".parquet"))
        path.unlink()
        found[path.with_suffix(".parquet").name] = path.with_suffix(".parquet")
    return found


def whole_city(folder: Path) -> Files:
    """All the tables that a city may have."""
    files = city_csv(folder)
    more = {"turns.csv": "source,via,target\n0,1,2\n", "sensors.csv": "sensor_id,node_id,moved_m\nd1,1,2.5\nd2,2,\n"}
    for name, text in more.items():
        files[name] = folder / name
        files[name].write_text(text)
    return {name: path for name, path in files.items() if name != "city.toml"}


def import_notices(folder: Path) -> Files:
    city_csv(folder)
    path = folder / "notices.json"
    path.write_text('{"imported": {"Rows left out: 2.": ["a.csv line 3", "a.csv line 7"]}, "appended": {}}')
    return {path.name: path}


def cache(folder: Path) -> Files:
    city_csv(folder)
    read_city(folder)
    return {path.name: path for path in (folder / "cache").iterdir()}


def load_cache(files: Files) -> City:
    return open_cache(files["cache.json"].parent)


def load_city(files: Files) -> City:
    return read_city(next(iter(files.values())).parent, cache=False)


def matrix_tables(folder: Path) -> Files:
    (folder / "nodes.csv").write_text("node_id,lon,lat\n7,6.1,49.6\n5,6.11,49.6\n9,6.12,49.6\n")
    (folder / "edges.csv").write_text("source,target,length_m\n7,5,500\n5,9,100\n9,7,200\n")
    return {}


def matrix(folder: Path, *, ending: str) -> Files:
    matrix_tables(folder)
    path = folder / f"m.{ending}"
    match ending:
        case "npz":
            np.savez(path, counts=COUNTS, t=TIMES, ok=np.ones(20, bool))
        case "npy":
            np.save(path, COUNTS)
        case "h5":
            with h5py.File(path, "w") as file:
                file["df/counts"] = COUNTS
                file["df/t"] = TIMES
                file.create_dataset("df/ok", data=np.ones((20, 3), bool), chunks=(5, 3), compression="gzip")
        case _:
            rows = (f"2024-01-01T{i // 12:02d}:{5 * i % 60:02d}Z,{a},{b},{c}" for i, (a, b, c) in enumerate(COUNTS))
            path.write_text("\n".join(["when,9,7,5", *rows]) + "\n")
    return {path.name: path}


def load_matrix(files: Files, *, named: dict[str, str]) -> City:
    (path,) = files.values()
    return import_matrix(path, nodes=path.parent / "nodes.csv", edges=path.parent / "edges.csv", **named)  # type: ignore[arg-type]


MATRIX = {
    "npz": {"values": "counts", "time": "t", "valid": "ok"},
    "npy": {"start": "2024-01-01T00:00Z", "step": "5min"},
    "h5": {"values": "df/counts", "time": "df/t", "valid": "df/ok"},
    "csv": {},
}

OSM = (
    "osm",
    "osm.gz",
    "osm.bz2",
    "overpass-body.json",
    "overpass-geom.json",
    "overpass.json.gz",
    "graphml",
    "osm.pbf",
    "plain.osm.pbf",
)
SUMO = {
    "edge data": ("net", "edgedata"),
    "edge data gz": ("net_gz", "edgedata_gz"),
    "loops": ("net", "loops", "loop_output"),
}
TABLES = {
    "csv": ("nodes.csv", "edges.csv", "readings.csv"),
    "wide": ("nodes.csv", "edges.csv", "wide.csv"),
    "lines": ("lines.csv",),
    "parquet": ("streets.parquet",),
}
BENCHMARKS = ("metr-la", "pems-bay", "pems03", "pems04", "frigate", "libcity")


def some(small_files: Callable[[Path], Files], names: Sequence[str], folder: Path) -> Files:
    """Those of the files that one import takes."""
    every = small_files(folder)
    return {name: every[name] for name in names}


def load_osm(files: Files) -> City:
    (path,) = files.values()
    return import_osm(path)


def load_sumo(files: Files) -> City:
    net, *others = files.values()
    if "loops" in files:
        return import_sumo(net, detectors=others, on="roads")
    return import_sumo(net, edgedata=others)


def sensors(folder: Path) -> Files:
    files = some(table_files.small_files, ["nodes.csv", "edges.csv", "readings.csv", "sensors.csv"], folder)
    text = table_files.long_readings("detector").replace(",A,", ",s1,").replace(",C,", ",s2,")
    files["readings.csv"].write_text(text)
    return files


def load_sensors(files: Files) -> City:
    nodes, edges, readings, places = files.values()
    return import_tables(nodes=nodes, edges=edges, readings=readings, sensors=places, on="roads", snap_m=2000)


def spreadsheet(folder: Path) -> Files:
    """Readings in a spreadsheet, of nodes and edges in CSV."""
    files = some(table_files.small_files, TABLES["csv"], folder)
    pl.read_csv(files["readings.csv"]).write_excel(folder / "readings.xlsx")
    return {"readings.xlsx": folder / "readings.xlsx"}


def load_spreadsheet(files: Files) -> City:
    path = files["readings.xlsx"]
    return import_tables(nodes=path.parent / "nodes.csv", edges=path.parent / "edges.csv", readings=path)


def load_tables(files: Files) -> City:
    if len(files) == 1:
        return import_tables(edges=next(iter(files.values())))
    nodes, edges, readings = files.values()
    return import_tables(nodes=nodes, edges=edges, readings=readings)


def benchmark(folder: Path, *, kind: str) -> Files:
    return {name: path for name, path in benchmark_files.small_files(folder).items() if name.split("/")[0] == kind}


def load_benchmark(files: Files) -> City:
    kind = next(iter(files)).split("/")[0]
    return import_benchmark(kind, files=next(iter(files.values())).parent)


def traces(folder: Path, *, ending: str) -> Files:
    """Three vehicles that go along a street and back."""
    rows = [
        (f"v{v}", f"2024-01-01T08:{t:02d}:{20 * v:02d}Z", 6.1 + 0.002 * abs(t - 12.0), 49.6 + 1e-5 * ((t * 7 + v) % 5))
        for v in range(3)
        for t in range(25)
    ]
    frame = pl.DataFrame(rows, schema=["vehicle", "time", "lon", "lat"], orient="row")
    path = folder / f"traces.{ending}"
    if ending == "csv":
        frame.write_csv(path)
    else:
        frame.with_columns(pl.col("time").str.to_datetime(time_zone="UTC")).write_parquet(path)
    return {path.name: path}


def load_traces(files: Files) -> City:
    rows = np.arange(6)
    senders = np.concatenate([rows[:-1], rows[1:]])
    receivers = np.concatenate([rows[1:], rows[:-1]])
    lon = 6.1 + 0.006 * rows.astype(np.float64)
    lat = np.full(6, 49.6)
    length_m = haversine_m(lon[senders], lat[senders], lon[receivers], lat[receivers])
    street = RoadNetwork(rows, lon, lat, Edges.of(senders, receivers, length_m))
    return import_traces(next(iter(files.values())), street)


FORMATS: dict[str, Format] = {
    "city csv": Format(city_csv, load_city),
    "city parquet": Format(partial(city_parquet, compression="none"), load_city),
    "city parquet zstd": Format(partial(city_parquet, compression="zstd"), load_city),
    **{
        f"matrix {ending}": Format(partial(matrix, ending=ending), partial(load_matrix, named=named))
        for ending, named in MATRIX.items()
    },
    **{f"osm {kind}": Format(partial(some, osm_files.small_files, [kind]), load_osm) for kind in OSM},
    **{f"sumo {of}": Format(partial(some, sumo_files.small_files, names), load_sumo) for of, names in SUMO.items()},
    **{
        f"tables {of}": Format(partial(some, table_files.small_files, names), load_tables)
        for of, names in TABLES.items()
    },
    "tables sensors": Format(sensors, load_sensors),
    "tables xlsx": Format(spreadsheet, load_spreadsheet),
    **{f"benchmark {kind}": Format(partial(benchmark, kind=kind), load_benchmark) for kind in BENCHMARKS},
    **{f"traces {ending}": Format(partial(traces, ending=ending), load_traces) for ending in ("csv", "parquet")},
    "cache": Format(cache, load_cache),
    "notices": Format(import_notices, load_city),
    "types of a city": Format(lambda folder: as_parquet(whole_city(folder)), load_city, other_types),
    "types of tables": Format(
        lambda folder: as_parquet(some(table_files.small_files, TABLES["csv"], folder)), load_tables, other_types
    ),
    "types of sensors": Format(lambda folder: as_parquet(sensors(folder)), load_sensors, other_types),
    "types of traces": Format(partial(traces, ending="parquet"), load_traces, other_types),
    "types of lines": Format(partial(some, table_files.small_files, TABLES["parquet"]), load_tables, other_types),
    "cells of a city": Format(whole_city, load_city, other_cells),
    "cells of tables": Format(partial(some, table_files.small_files, TABLES["csv"]), load_tables, other_cells),
}


# What the harness must catch


def _hang(_: Files) -> City:
    while True:
        pass


def _crash(_: Files) -> City:
    ctypes.string_at(0)
    raise AssertionError


def _greed(_: Files) -> City:
    np.ones(1 << 28)
    raise AssertionError


def _slip(files: Files) -> City:
    raise KeyError(len(files))


TRAPS = {
    name: Format(partial(matrix, ending="npy"), load)
    for name, load in (("hang", _hang), ("crash", _crash), ("greed", _greed), ("slip", _slip))
}
