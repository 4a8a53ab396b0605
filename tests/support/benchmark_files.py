"""The public data sets in small, as their publishers write them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd

from frigate.city.city import City

IDS = ["773869", "767541", "767542", "717447"]


PLACES = [(34.15497, -118.31829), (34.11621, -118.23799), (34.11641, -118.23819), (34.07248, -118.26772)]


COSTS = np.array([[0, 9000, 9050, 4000], [8000, 0, 30, 5000], [8000, 35, 0, 5010], [4200, 5100, 5200, 0]], float)


SPEEDS = np.array([[64.375, 67.625, 0, 61.5], [62.5, 0, 66.25, 60], [64, 63.75, 65.5, 59.25]])


def frame_h5(path: Path, values: np.ndarray, ids: Any, times: np.ndarray, *, key: str = "df") -> None:
    """A frame in the fixed format of pandas, with h5py alone."""
    with h5py.File(path, "w") as file:
        group = file.create_group(key)
        group["axis0"] = group["block0_items"] = np.array(ids)
        group["axis1"] = times.astype("datetime64[ns]").astype(np.int64)
        group["axis1"].attrs["kind"] = np.bytes_("datetime64")
        group["block0_values"] = values


def write_metr_la(folder: Path, *, values: np.ndarray = SPEEDS, start: str = "2012-03-01T00:00") -> Path:
    (folder / "sensor_graph").mkdir(parents=True, exist_ok=True)
    times = np.datetime64(start, "s") + 300 * np.arange(len(values))
    frame_h5(folder / "metr-la.h5", values, [i.encode() for i in IDS], times)
    lines = [f"{n},{i},{lat},{lon}" for n, (i, (lat, lon)) in enumerate(zip(IDS, PLACES, strict=True))]
    where = folder / "sensor_graph" / "graph_sensor_locations.csv"
    where.write_text("\n".join(["index,sensor_id,latitude,longitude", *lines]) + "\n")
    pairs = [f"{a},{b},{COSTS[i, j]}" for i, a in enumerate(IDS) for j, b in enumerate(IDS)]
    text = "\n".join(["from,to,cost", "1201054,1201054,0.0", "1201054,773869,2610.9", *pairs]) + "\n"
    (folder / "sensor_graph" / "distances_la_2012.csv").write_text(text)
    return folder


def write_pems_bay(folder: Path) -> Path:
    """PEMS-BAY's tables have no header, and its columns are integers."""
    folder.mkdir(parents=True, exist_ok=True)
    times = np.datetime64("2017-01-01T00:00", "s") + 300 * np.arange(len(SPEEDS))
    frame_h5(folder / "pems-bay.h5", SPEEDS, [int(i) for i in IDS], times, key="speed")
    places = [f"{i},{lat},{lon}" for i, (lat, lon) in zip(IDS, PLACES, strict=True)]
    (folder / "graph_sensor_locations_bay.csv").write_text("\n".join(places) + "\n")
    pairs = [f"{a},{b},{COSTS[i, j]}" for i, a in enumerate(IDS) for j, b in enumerate(IDS)]
    (folder / "distances_bay_2017.csv").write_text("\n".join(pairs) + "\n")
    return folder


def write_pems(folder: Path, kind: str, *, ids: list[str] | None = None, features: int = 3, rows: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    data = np.arange(rows * 4 * features, dtype=float).reshape(rows, 4, features)
    np.savez_compressed(folder / f"{kind.upper()}.npz", data=data)
    names = ids or [str(i) for i in range(4)]
    scale = 1609.344 if kind in ("pems03", "pems07") else 1
    edges = [(0, 1, 400.0), (1, 2, 500.0), (2, 3, 300.0), (3, 3, 0.0), (1, 0, 410.0)]
    lines = [f"{names[a]},{names[b]},{d / scale:.6f}" for a, b, d in edges]
    (folder / f"{kind.upper()}.csv").write_text("\n".join(["from,to,cost", *lines]) + "\n")
    if ids:
        (folder / f"{kind.upper()}.txt").write_text("\n".join(ids) + "\n")
    return folder


def write_authors(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    times = pd.date_range("2015-06-01", periods=4, freq="5min")
    pd.DataFrame(np.arange(12).reshape(4, 3), index=times).to_pickle(folder / "traffic_df.pkl.gz")
    matrix = {"v": np.array([120.0, 80.0, 95.5]), "ij": np.array([[0, 1, 2], [1, 2, 0]]), "shape": (3, 3)}
    (folder / "adj_mx.pkl").write_bytes(pickle.dumps(matrix, protocol=4))
    np.save(folder / "seen_30.npy", np.array([2, 0]))
    return folder


def write_libcity(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    places = [f'{i},Point,"[{lon}, {lat}]"' for i, (lat, lon) in zip(IDS, PLACES, strict=True)]
    (folder / "LA.geo").write_text("\n".join(["geo_id,type,coordinates", *places]) + "\n")
    pairs = [(a, b, COSTS[i, j]) for i, a in enumerate(IDS) for j, b in enumerate(IDS) if a != b]
    rel = [f"{n},geo,{a},{b},{c}" for n, (a, b, c) in enumerate(pairs)]
    (folder / "LA.rel").write_text("\n".join(["rel_id,type,origin_id,destination_id,cost", *rel]) + "\n")
    dyna = [f"state,2012-03-01T00:{5 * t:02d}:00Z,{i},{SPEEDS[t, n]}" for n, i in enumerate(IDS) for t in range(3)]
    rows = [f"{n},{row}" for n, row in enumerate(dyna)]
    (folder / "LA.dyna").write_text("\n".join(["dyna_id,type,time,entity_id,traffic_speed", *rows]) + "\n")
    (folder / "config.json").write_text('{"info": {"data_col": ["traffic_speed"], "weight_col": "cost"}}')
    return folder


def small_files(folder: Path) -> dict[str, Path]:
    """Tiny valid inputs of each format, by "KIND/file". Each lies in a folder of its own that imports as that kind:
    `import_benchmark(key.split("/")[0], files=FOLDER)` with FOLDER = `folder / KIND`; alter any file and try again."""
    write_metr_la(folder / "metr-la")
    write_pems_bay(folder / "pems-bay")
    adjacency = [IDS, {x: n for n, x in enumerate(IDS)}, np.eye(4, k=1, dtype=np.float32)]
    (folder / "pems-bay" / "adj_mx_bay.pkl").write_bytes(pickle.dumps(adjacency, protocol=2))
    write_pems(folder / "pems03", "pems03", ids=["317842", "318711", "318721", "315955"], features=1)
    write_pems(folder / "pems04", "pems04")
    write_authors(folder / "frigate")
    write_libcity(folder / "libcity")
    made = sorted(p for p in folder.rglob("*") if p.is_file())
    return {f"{p.relative_to(folder).parts[0]}/{p.name}": p for p in made}


def edges_of(city: City) -> dict[tuple[str, str], float]:
    ids = [str(x) for x in city.stream.node_ids.tolist()]
    ends = zip(city.network.senders.tolist(), city.network.receivers.tolist(), strict=True)
    return {(ids[a], ids[b]): m for (a, b), m in zip(ends, city.network.length_m.tolist(), strict=True)}
