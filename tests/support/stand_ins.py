"""Small files in place of those that the documentation speaks of: one town in every form that an importer reads."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import h5py
import numpy as np
import pandas as pd
import polars as pl
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.folder import write_city
from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import make_stream
from frigate.roads.geometry import write_line
from tests.support.osm_files import Map
from tests.support.sumo_files import UTM

WIDE, HIGH = 8, 6  # intersections
S = 300  # snapshots of five minutes: a day and an hour
STEP_S = 300
NAMED = {20: 41, 21: 42, 28: 93, 29: 108, 36: 97}  # ids of the pages, at places inside the town
MAIN = 3  # the row of the grid that is a main street


@dataclass(frozen=True)
class GridTown:
    """Streets in a grid, both ways, and a count every five minutes at every intersection."""

    ids: NDArray[np.int64]
    lon: NDArray[np.float64]
    lat: NDArray[np.float64]
    senders: NDArray[np.int64]
    receivers: NDArray[np.int64]
    length_m: NDArray[np.float64]
    counts: NDArray[np.float64]  # [S,N]

    @property
    def road_class(self) -> NDArray[np.str_]:
        main = (self.senders // WIDE == MAIN) & (self.receivers // WIDE == MAIN)
        return np.where(main, "primary", "residential")

    @property
    def street(self) -> list[str]:
        return [
            f"Street {a // WIDE}" if abs(a - b) == 1 else f"Avenue {a % WIDE}"
            for a, b in zip(self.senders.tolist(), self.receivers.tolist(), strict=True)
        ]


@cache
def grid_town(wide: int = WIDE, high: int = HIGH) -> GridTown:
    row = np.arange(wide * high)
    ids = 200 + row
    named = [at for at in NAMED if at < len(row)]
    ids[named] = [NAMED[at] for at in named]
    east = row[row % wide < wide - 1]
    north = row[row < wide * (high - 1)]
    one = np.concatenate([east, north])
    other = np.concatenate([east + 1, north + wide])
    senders, receivers = np.concatenate([one, other]), np.concatenate([other, one])
    rng = np.random.default_rng(0)
    usual = rng.uniform(1, 9, len(row)) * np.where(row // wide == MAIN, 3, 1)
    day = 1.2 + np.sin(np.arange(S) / 288 * 2 * np.pi)
    counts = rng.poisson(day[:, None] * usual).astype(np.float64)
    return GridTown(
        ids,
        6 + 0.003 * (row % wide).astype(np.float64),
        49.6 + 0.002 * (row // wide).astype(np.float64),
        senders,
        receivers,
        np.full(len(senders), 220.0) + senders % 7,
        counts,
    )


def start_s(local: str, timezone: str) -> int:
    return int(datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(timezone)).timestamp())


def local_times(local: str) -> list[str]:
    """Of the snapshots, as text without a zone."""
    begin = datetime.fromisoformat(local)
    return [f"{begin + timedelta(seconds=STEP_S * k):%Y-%m-%dT%H:%M}" for k in range(S)]


def city(folder: Path, local: str, timezone: str = "Europe/Luxembourg") -> None:
    """A city folder whose record begins at a local time."""
    town = grid_town()
    edges = Edges.of(
        town.senders, town.receivers, town.length_m, road_class=town.road_class, name=np.array(town.street)
    )
    network = RoadNetwork(town.ids, town.lon, town.lat, edges)
    begin_s = start_s(local, timezone)
    stream = make_stream(town.counts, network, start_s=begin_s, step_s=STEP_S, timezone=timezone, quantity="count")
    write_city(City(folder.name, stream), folder)


def matrix(folder: Path, local: str, timezone: str) -> None:
    """counts.npz, nodes.parquet and edges.parquet."""
    town = grid_town()
    times_s = start_s(local, timezone) + STEP_S * np.arange(S)
    np.savez(folder / "counts.npz", counts=town.counts, t_unix=times_s, valid=np.ones(S, bool))
    pl.DataFrame({"node_id": town.ids, "lon": town.lon, "lat": town.lat}).write_parquet(folder / "nodes.parquet")
    pl.DataFrame(
        {
            "src": town.ids[town.senders],
            "dst": town.ids[town.receivers],
            "length_m": town.length_m,
            "street": town.street,
            "speed_limit_kmh": np.where(town.road_class == "primary", 50, 30),
        }
    ).write_parquet(folder / "edges.parquet")


def osm(path: Path) -> None:
    town = grid_town()
    ids = town.ids.tolist()
    places = {i: (x, y) for i, x, y in zip(ids, town.lon.tolist(), town.lat.tolist(), strict=True)}
    rows = [list(range(y * WIDE, (y + 1) * WIDE)) for y in range(HIGH)]
    columns = [list(range(x, WIDE * HIGH, WIDE)) for x in range(WIDE)]
    ways = [
        (1000 + k, [ids[i] for i in way], {"highway": "primary" if k == MAIN else "tertiary", "name": f"Street {k}"})
        for k, way in enumerate([*rows, *columns])
    ]
    Map(places, ways).write_pbf(path)


def counts_by_place(path: Path, local: str) -> None:
    """A table of time, lon, lat and value: every intersection."""
    town = grid_town()
    times = local_times(local)
    pl.DataFrame(
        {
            "time": np.repeat(times, len(town.ids)),
            "lon": np.tile(town.lon, S),
            "lat": np.tile(town.lat, S),
            "value": town.counts.astype(int).ravel(),
        }
    ).write_csv(path)


def loops_by_place(path: Path, local: str) -> None:
    """A table of time, lon, lat, bearing and value: loops in the middle of roads to the east."""
    town = grid_town()
    east = np.flatnonzero(town.receivers == town.senders + 1)
    times = local_times(local)
    pl.DataFrame(
        {
            "time": np.repeat(times, len(east)),
            "lon": np.tile((town.lon[town.senders] + town.lon[town.receivers])[east] / 2, S),
            "lat": np.tile(town.lat[town.senders[east]], S),
            "bearing": "E",
            "value": town.counts[:, town.senders[east]].astype(int).ravel(),
        }
    ).write_csv(path)


def german_tables(folder: Path, local: str) -> None:
    """nodes.csv, streets.csv, loops.csv and counts.csv, which names sensors."""
    town = grid_town()
    ids = town.ids
    pl.DataFrame({"knoten": ids, "lon": town.lon, "lat": town.lat}).write_csv(folder / "nodes.csv")
    ends = {"von": ids[town.senders], "nach": ids[town.receivers]}
    pl.DataFrame({**ends, "laenge_km": town.length_m / 1000}).write_csv(folder / "streets.csv")
    sensors = {"sensor_id": sensor_ids(), "lon": town.lon, "lat": town.lat}
    pl.DataFrame(sensors).write_csv(folder / "loops.csv")
    counts_by_sensor(folder / "counts.csv", local)


def sensor_ids() -> list[str]:
    return [f"Z{i}" for i in grid_town().ids.tolist()]


def counts_by_sensor(path: Path, local: str) -> None:
    rows = {"time": np.repeat(local_times(local), WIDE * HIGH), "sensor_id": sensor_ids() * S}
    pl.DataFrame({**rows, "value": grid_town().counts.astype(int).ravel()}).write_csv(path)


def street_lines(folder: Path, local: str) -> None:
    """streets.parquet with lines, loop_places.csv with the road of each loop, loop_counts.csv."""
    town = grid_town()
    ids = town.ids
    ends = np.stack([town.senders, town.receivers], axis=1)
    lines = [write_line(np.stack([town.lon[pair], town.lat[pair]], axis=1)) for pair in ends]
    table = {"source": ids[town.senders], "target": ids[town.receivers], "geometry": lines}
    pl.DataFrame(table).write_parquet(folder / "streets.parquet")
    some = np.arange(0, len(ends), 2)
    sensors = [f"L{k}" for k in some.tolist()]
    places = {"sensor_id": sensors, "source": ids[town.senders[some]], "target": ids[town.receivers[some]]}
    pl.DataFrame(places).write_csv(folder / "loop_places.csv")
    rows = {"time": np.repeat(local_times(local), len(some)), "sensor_id": sensors * S}
    counts = town.counts[:, town.senders[some]].astype(int).ravel()
    pl.DataFrame({**rows, "value": counts}).write_csv(folder / "loop_counts.csv")


def taxi_traces(path: Path, local: str, timezone: str) -> None:
    """A taxi every two minutes along a street from end to end, with a position every 20 s."""
    town = grid_town()
    begin_s = start_s(local, timezone)
    rng = np.random.default_rng(begin_s)
    parts = []
    for cab in range(S * STEP_S // 120):
        street = np.arange(WIDE) + WIDE * int(rng.integers(HIGH))
        way = street if rng.random() < 0.5 else street[::-1]
        second = np.arange(0, 150, 20)
        along = np.linspace(0, WIDE - 1, len(second))
        lon, lat = (np.interp(along, np.arange(WIDE), each[way]) for each in (town.lon, town.lat))
        parts.append(
            pl.DataFrame(
                {
                    "cab": np.full(len(second), cab),
                    "t_unix": begin_s + 120 * cab + second,
                    "lon_e5": np.round(1e5 * lon).astype(np.int64),
                    "lat_e5": np.round(1e5 * lat).astype(np.int64),
                }
            )
        )
    pl.concat(parts).write_parquet(path)


def sumo(folder: Path) -> None:
    """town.net.xml, edge data of a simulation in one file and in two, and loops, plain and gzipped."""
    town = grid_town(4, 4)
    x_m, y_m = ((each - each[0]) * scale for each, scale in ((town.lon, 72_000), (town.lat, 111_000)))
    names = [f"{k // 2}#{k % 2}" for k in range(len(town.senders))]
    edges = []
    for name, a, b in zip(names, town.senders.tolist(), town.receivers.tolist(), strict=True):
        shape = f"{x_m[a]:.2f},{y_m[a]:.2f} {x_m[b]:.2f},{y_m[b]:.2f}"
        length = float(np.hypot(x_m[b] - x_m[a], y_m[b] - y_m[a]))
        lane = f'<lane id="{name}_0" index="0" speed="13.9" length="{length:.2f}" shape="{shape}"/>'
        edges.append(f'<edge id="{name}" from="{town.ids[a]}" to="{town.ids[b]}" priority="1">{lane}</edge>')
    nodes = [
        f'<junction id="{i}" type="priority" x="{x:.2f}" y="{y:.2f}"/>'
        for i, x, y in zip(town.ids.tolist(), x_m.tolist(), y_m.tolist(), strict=True)
    ]
    place = f'<location netOffset="-285000.00,-5492000.00" convBoundary="0,0,1,1" projParameter="{UTM}"/>'
    write_xml(folder / "town.net.xml", "net", [place, *edges, *nodes])
    counts = town.counts[:, town.senders].astype(int)
    for name, first, stop in (("edges.xml", 0, S), ("monday.xml", 0, 288), ("tuesday.xml", 0, 12)):
        write_xml(folder / name, "meandata", [interval(k, names, counts[k]) for k in range(first, stop)])
    loops = [f'<inductionLoop id="l{name}" lane="{name}_0" pos="5" period="300" file="x.xml"/>' for name in names]
    write_xml(folder / "loops.add.xml", "additional", loops)
    passed = [
        f'<interval begin="{STEP_S * k}" end="{STEP_S * (k + 1)}" id="l{name}" nVehContrib="{counts[k, e]}"/>'
        for k in range(12)
        for e, name in enumerate(names)
    ]
    write_xml(folder / "loops.out.xml", "detector", passed)


def interval(k: int, names: list[str], counts: NDArray[np.int64]) -> str:
    edges = "".join(f'<edge id="{name}" left="{n}"/>' for name, n in zip(names, counts.tolist(), strict=True))
    return f'<interval begin="{STEP_S * k}" end="{STEP_S * (k + 1)}" id="e">{edges}</interval>'


def write_xml(path: Path, root: str, parts: list[str]) -> None:
    text = f'<?xml version="1.0"?>\n<{root}>\n' + "\n".join(parts) + f"\n</{root}>\n"
    path.write_text(text)
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(text.encode(), 1))


def benchmarks(folder: Path) -> None:
    """METR-LA, PEMS08, LibCity's METR_LA and the authors' layout, as they are published."""
    town = grid_town()
    ids = [str(773_000 + i) for i in town.ids.tolist()]
    speeds = 30 + town.counts
    metr_la = folder / "metr-la"
    metr_la.mkdir(parents=True)
    times = np.datetime64("2012-03-01T00:00", "s") + STEP_S * np.arange(S)
    with h5py.File(metr_la / "metr-la.h5", "w") as file:  # a frame in the fixed format of pandas
        group = file.create_group("df")
        group["axis0"] = group["block0_items"] = np.array([i.encode() for i in ids])
        group["axis1"] = times.astype("datetime64[ns]").astype(np.int64)
        group["axis1"].attrs["kind"] = np.bytes_("datetime64")
        group["block0_values"] = speeds
    places = {"index": range(len(ids)), "sensor_id": ids, "latitude": town.lat - 15, "longitude": town.lon - 124}
    pl.DataFrame(places).write_csv(metr_la / "graph_sensor_locations.csv")
    pairs = {"from": [ids[a] for a in town.senders.tolist()], "to": [ids[b] for b in town.receivers.tolist()]}
    a, b = (each.ravel() for each in np.indices((len(ids), len(ids))))
    blocks = np.abs(a % WIDE - b % WIDE) + np.abs(a // WIDE - b // WIDE)
    every = {"from": np.array(ids)[a], "to": np.array(ids)[b], "cost": 220.0 * blocks}
    pl.DataFrame(every).write_csv(metr_la / "distances_la_2012.csv")

    pems = folder / "PEMS08"
    pems.mkdir()
    np.savez(pems / "PEMS08.npz", data=np.stack([town.counts, town.counts / 100, speeds], axis=-1))
    pl.DataFrame({"from": town.senders, "to": town.receivers, "cost": town.length_m}).write_csv(pems / "PEMS08.csv")

    libcity = folder / "METR_LA"
    libcity.mkdir()
    points = [f"[{x}, {y}]" for x, y in zip(town.lon - 124, town.lat - 15, strict=True)]
    pl.DataFrame({"geo_id": ids, "type": "Point", "coordinates": points}).write_csv(libcity / "LA.geo")
    ends = {"origin_id": pairs["from"], "destination_id": pairs["to"], "cost": town.length_m}
    rel = {"rel_id": range(len(town.senders)), "type": "geo", **ends}
    pl.DataFrame(rel).write_csv(libcity / "LA.rel")
    few = 12
    begin = datetime(2012, 3, 1, tzinfo=UTC)
    stamps = [f"{begin + timedelta(seconds=STEP_S * k):%Y-%m-%dT%H:%M:%SZ}" for k in range(few)]
    cells = {"time": stamps * len(ids), "entity_id": np.repeat(ids, few), "traffic_speed": speeds[:few].T.ravel()}
    dyna = {"dyna_id": range(few * len(ids)), "type": "state", **cells}
    pl.DataFrame(dyna).write_csv(libcity / "LA.dyna")
    config = {"info": {"data_col": ["traffic_speed"], "weight_col": "cost"}}
    (libcity / "config.json").write_text(json.dumps(config))

    authors = folder / "beijing"
    authors.mkdir()
    stamped = pd.date_range("2015-06-01", periods=S, freq="5min")
    pd.DataFrame(town.counts, index=stamped).to_pickle(authors / "traffic_df.pkl.gz")
    size = (len(ids), len(ids))
    sparse = {"v": town.length_m, "ij": np.stack([town.senders, town.receivers]), "shape": size}
    (authors / "adj_mx.pkl").write_bytes(pickle.dumps(sparse, protocol=4))
    np.save(folder.parent / "seen_0.npy", np.arange(0, len(ids), 2))


Stage = Callable[[Path], None]
