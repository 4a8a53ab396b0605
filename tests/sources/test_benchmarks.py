"""The field's data sets, written here as their publishers write them, and imported."""

from __future__ import annotations

import gzip
import pickle
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import polars as pl
import pytest

from frigate.city.folder import read_city, write_city
from frigate.city.network import Edges
from frigate.coordinates import haversine_m
from frigate.errors import CityError, FrigateError
from frigate.sources.benchmarks.importer import KINDS, import_benchmark, read_seen
from frigate.sources.benchmarks.layout import invented_places
from tests.support.benchmark_files import (
    COSTS,
    IDS,
    PLACES,
    SPEEDS,
    edges_of,
    frame_h5,
    small_files,
    write_authors,
    write_metr_la,
    write_pems,
    write_pems_bay,
)
from tests.support.errors import raises
from tests.support.shared_data import shared_data


def near() -> dict[tuple[str, str], float]:
    weight = np.exp(-np.square(COSTS / COSTS.std()))
    chosen = {(a, b): COSTS[i, j] for i, a in enumerate(IDS) for j, b in enumerate(IDS) if weight[i, j] >= 0.1}
    assert 4 < len(chosen) < 16  # some are too far
    return {pair: metres for pair, metres in chosen.items() if pair[0] != pair[1]}


# METR-LA and PEMS-BAY


@pytest.mark.parametrize(("kind", "write"), [("metr-la", write_metr_la), ("pems-bay", write_pems_bay)])
def test_loops_keep_the_usual_pairs_and_zeros_are_missing(tmp_path: Path, kind: str, write: Any) -> None:
    city = import_benchmark(kind, files=write(tmp_path))
    stream = city.stream
    assert stream.node_ids.tolist() == [int(i) for i in IDS]
    np.testing.assert_array_equal(stream.observed, SPEEDS != 0)
    np.testing.assert_array_equal(stream.values, SPEEDS.astype(np.float32))
    np.testing.assert_allclose(np.stack([city.network.lat, city.network.lon], axis=1), PLACES)
    assert edges_of(city) == pytest.approx(near())
    assert (stream.quantity, stream.unit, stream.step_s) == ("speed", "mph", 300)
    assert stream.local_time(stream.start_s).endswith("01T00:00:00-08:00")
    assert f"Zeros taken as not observed: in {kind.upper()} a speed of 0 means missing: 2." in city.notices
    assert any("weight exp(-(d/s)^2) under 0.1" in n for n in city.notices)


def test_zeros_are_kept_when_asked_and_the_rule_is_always_told(tmp_path: Path) -> None:
    kept = import_benchmark("METR_LA", files=write_metr_la(tmp_path), zeros="kept", name="LA")
    assert kept.stream.observed.all() and kept.name == "LA"
    assert "Zeros kept as readings of 0: asked for: 2." in kept.notices
    full = import_benchmark("metr-la", files=write_metr_la(tmp_path, values=SPEEDS + 1))
    assert "Zeros taken as not observed: in METR-LA a speed of 0 means missing: 0." in full.notices


def test_adjacency_chooses_the_pairs_and_distances_their_lengths(tmp_path: Path) -> None:
    folder = write_metr_la(tmp_path)
    order = [2, 0, 3, 1]  # the matrix has an order of its own
    weight = np.zeros((4, 4), np.float32)
    weight[0, 2] = 0.3  # from 767542 to 717447
    weight[1, 1] = 1
    held = [[IDS[i] for i in order], {IDS[i]: n for n, i in enumerate(order)}, weight]
    (folder / "adj_mx.pkl").write_bytes(pickle.dumps(held, protocol=2))
    assert edges_of(import_benchmark("metr-la", files=folder)) == {("767542", "717447"): 5010.0}
    (folder / "sensor_graph" / "distances_la_2012.csv").unlink()
    straight = import_benchmark("metr-la", files=folder)
    (lat_a, lon_a) = PLACES[2]
    (lat_b, lon_b) = PLACES[3]
    metres = haversine_m(*(np.array([x]) for x in (lon_a, lat_a, lon_b, lat_b)))
    assert edges_of(straight)["767542", "717447"] == pytest.approx(float(metres[0]))
    assert "Pairs without a distance, given the straight-line distance: 1." in straight.notices


def test_an_hour_that_the_clocks_leave_out_gives_way(tmp_path: Path) -> None:
    """METR-LA's rows are 5 minutes apart across 2012-03-11 02:00, when clocks went on to 03:00."""
    values = np.arange(1, 4 * 36 + 1, dtype=float).reshape(36, 4)
    city = import_benchmark("metr-la", files=write_metr_la(tmp_path, values=values, start="2012-03-11T01:00"))
    rows = np.r_[0:12, 24:36]
    np.testing.assert_array_equal(city.stream.values, values[rows].astype(np.float32))
    assert any(n.startswith("Local times that a clock change leaves out") for n in city.notices)
    first = 'first: node "773869" at 2012-03-11T10:00:00Z'
    assert any(f"repeated for the same node and time, the last kept: 48 ({first})" in n for n in city.notices)


def test_what_pandas_writes_is_read(tmp_path: Path) -> None:
    pytest.importorskip("tables")
    folder = write_metr_la(tmp_path)
    times = pd.date_range("2012-03-01", periods=3, freq="5min")
    for unit in ("ns", "us", "s"):
        frame = pd.DataFrame(SPEEDS, index=times.as_unit(unit), columns=[int(i) for i in IDS])
        frame.to_hdf(folder / "metr-la.h5", key="df", mode="w")
        city = import_benchmark("metr-la", files=folder)
        assert city.stream.local_time(city.stream.start_s) == "2012-03-01T00:00:00-08:00"
        np.testing.assert_array_equal(city.stream.values, SPEEDS.astype(np.float32))


@pytest.mark.shared
def test_the_week_of_metr_la_comes_back(tmp_path: Path) -> None:
    folder = shared_data("metr-la-week")
    nodes = pl.read_parquet(folder / "nodes.parquet")
    edges = pl.read_parquet(folder / "edges.parquet")
    with np.load(folder / "speed.npz") as held:
        speed = held["speed_mph"]
        times = held["t_local"].astype("datetime64[s]")
    ids = [str(x) for x in nodes["sensor_id"].to_list()]
    frame_h5(tmp_path / "metr-la.h5", speed, [i.encode() for i in ids], times)
    places = nodes.select(pl.col("node_id").alias("index"), "sensor_id", pl.col("lat").alias("latitude"), "lon")
    places.rename({"lon": "longitude"}).write_csv(tmp_path / "graph_sensor_locations.csv")
    weight = np.zeros((len(ids), len(ids)), np.float32)
    weight[edges["src"].to_numpy(), edges["dst"].to_numpy()] = edges["weight"].to_numpy()
    held_adj = [ids, {x: n for n, x in enumerate(ids)}, weight]
    (tmp_path / "adj_mx.pkl").write_bytes(pickle.dumps(held_adj, protocol=2))
    named = [edges.select(pl.col(c).replace_strict(range(len(ids)), ids).alias(c)) for c in ("src", "dst")]
    distances = pl.concat([*named, edges.select("road_distance_m_est")], how="horizontal")
    distances.write_csv(tmp_path / "distances_la_2012.csv")
    city = import_benchmark("metr-la", files=tmp_path)
    np.testing.assert_array_equal(city.stream.values, speed.astype(np.float32))
    assert city.network.num_edges == 1515
    wanted = {
        (ids[a], ids[b]): max(m, 1.0) for a, b, m in edges.select("src", "dst", "road_distance_m_est").iter_rows()
    }
    assert edges_of(city) == pytest.approx(wanted)
    assert city.stream.local_time(city.stream.start_s) == "2012-03-01T00:00:00-08:00"


# PEMS03, 04, 07, 08


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("pems03", "2018-09-01T00:00:00-07:00"),
        ("pems04", "2018-01-01T00:00:00-08:00"),
        ("pems07", "2017-05-01T00:00:00-07:00"),
        ("pems08", "2016-07-01T00:00:00-07:00"),
    ],
)
def test_pems_has_its_dates_and_units(tmp_path: Path, kind: str, start: str) -> None:
    city = import_benchmark(kind.upper(), files=write_pems(tmp_path, kind))
    assert city.stream.local_time(city.stream.start_s) == start
    assert (city.stream.quantity, city.stream.step_s, city.name) == ("count", 300, kind)
    np.testing.assert_allclose(city.network.length_m, [400, 500, 300, 410], atol=0.01)
    unit = "miles" if kind in ("pems03", "pems07") else "metres"
    assert f"Lengths of {kind.upper()}.csv read as {unit}: 4." in city.notices
    assert any(n.startswith("Coordinates invented from road lengths") for n in city.notices)
    assert any(n.startswith("Zeros kept as readings of 0") and n.endswith(": 1.") for n in city.notices)
    assert city.stream.observed.all()


@pytest.mark.parametrize(
    ("feature", "quantity", "column"),
    [(None, "count", 0), ("flow", "count", 0), ("occupy", "occupancy", 1), ("speed", "speed", 2)],
)
def test_pems_features(tmp_path: Path, feature: str | None, quantity: str, column: int) -> None:
    city = import_benchmark("pems04", files=write_pems(tmp_path, "pems04"), feature=feature)
    assert city.stream.quantity == quantity
    wanted = np.arange(48, dtype=np.float32).reshape(4, 4, 3)[:, :, column]
    np.testing.assert_array_equal(city.stream.values, wanted)


def test_pems03_names_its_sensors_in_a_file(tmp_path: Path) -> None:
    ids = ["317842", "318711", "318721", "315955"]
    folder = write_pems(tmp_path, "pems03", ids=ids, features=1)
    assert [str(x) for x in import_benchmark("pems03", files=folder).stream.node_ids] == ids
    (folder / "PEMS03.txt").unlink()
    with raises(CityError, "pairs", "sensors"):
        import_benchmark("pems03", files=folder)


def test_a_matrix_in_place_of_pairs_is_refused(tmp_path: Path) -> None:
    folder = write_pems(tmp_path, "pems08")
    matrix = [",0,1,2,3", "0,0.0,0.0,55.7,0.0", "1,0.0,0.0,0.0,371.6"]
    (folder / "PEMS08.csv").write_text("\n".join(matrix) + "\n")
    with raises(CityError, "PEMS08.csv", "5 columns"):
        import_benchmark("pems08", files=folder)


def test_rows_across_the_end_of_summer_time_leave_an_hour_open(tmp_path: Path) -> None:
    """PEMS03 has one row for 01:00 on 2018-11-04, an hour that came twice."""
    rows = (64 * 24 + 6) * 12
    stream = import_benchmark("pems03", files=write_pems(tmp_path, "pems03", rows=rows)).stream
    assert stream.num_snapshots == rows + 12
    gap = np.flatnonzero(~stream.observed.any(axis=1))
    assert stream.local_time(int(stream.times_s[gap[0]])) == "2018-11-04T01:00:00-08:00"
    assert len(gap) == 12


def test_invented_places_come_near_the_lengths() -> None:
    n = 12
    grid = np.arange(n * n).reshape(n, n)
    senders = np.concatenate([grid[:-1].ravel(), grid[:, :-1].ravel()])
    receivers = np.concatenate([grid[1:].ravel(), grid[:, 1:].ravel()])
    edges = Edges.of(senders, receivers, np.full(len(senders), 250.0))
    lon, lat = invented_places(n * n + 2, edges)  # and two nodes that no road reaches
    away = haversine_m(lon[senders], lat[senders], lon[receivers], lat[receivers])
    assert 150 < np.median(away) < 450
    assert len(np.unique(np.stack([lon, lat]), axis=1).T) == n * n + 2
    np.testing.assert_array_equal(invented_places(n * n + 2, edges)[0], lon)
    assert not np.array_equal(invented_places(n * n + 2, edges, seed=1)[0], lon)


# The authors' layout


def test_the_authors_layout(tmp_path: Path) -> None:
    city = import_benchmark("frigate", files=write_authors(tmp_path / "Harbin"))
    assert city.name == "Harbin" and city.stream.node_ids.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(city.stream.values, np.arange(12).reshape(4, 3))
    assert city.stream.local_time(city.stream.start_s) == "2015-06-01T00:00:00+08:00"
    assert edges_of(city) == {("0", "1"): 120.0, ("1", "2"): 80.0, ("2", "0"): 95.5}
    assert read_seen(tmp_path / "Harbin" / "seen_30.npy", city) == [0, 2]
    assert any("cannot be told apart: 1." in n for n in city.notices)
    assert any("seen_30.npy" in n for n in city.notices)
    missing = import_benchmark("frigate", files=tmp_path / "Harbin", zeros="missing", timezone="UTC")
    assert int((~missing.stream.observed).sum()) == 1
    assert missing.stream.local_time(missing.stream.start_s) == "2015-06-01T00:00:00+00:00"


def test_lengths_that_cannot_be_metres_want_a_unit(tmp_path: Path) -> None:
    folder = write_authors(tmp_path)
    matrix = {"v": np.array([0.12, 0.08, 0.0955]), "ij": np.array([[0, 1, 2], [1, 2, 0]]), "shape": (3, 3)}
    (folder / "adj_mx.pkl").write_bytes(pickle.dumps(matrix))
    with raises(CityError, "length_unit"):
        import_benchmark("frigate", files=folder)
    city = import_benchmark("frigate", files=folder, length_unit="km")
    np.testing.assert_allclose(city.network.length_m, [120, 80, 95.5])


# All of them


def test_every_kind_goes_to_a_city_folder_and_back(tmp_path: Path) -> None:
    files = small_files(tmp_path / "in")
    kinds = {key.split("/")[0] for key in files}
    assert kinds == set(KINDS) - {"pems07", "pems08"}
    for kind in sorted(kinds):
        city = import_benchmark(kind, files=tmp_path / "in" / kind)
        write_city(city, tmp_path / "out")
        back = read_city(tmp_path / "out", cache=False)
        np.testing.assert_array_equal(back.stream.values, city.stream.values)
        np.testing.assert_array_equal(back.stream.observed, city.stream.observed)
        assert edges_of(back) == edges_of(city)
        assert back.stream.start_s == city.stream.start_s


def test_files_can_be_named_one_by_one(tmp_path: Path) -> None:
    folder = write_pems(tmp_path, "pems08")
    (folder / "PEMS08.npz").rename(folder / "mine.npz")
    with raises(CityError, "readings", "pems08.npz"):
        import_benchmark("pems08", files=folder)
    files = {"readings": folder / "mine.npz", "distances": folder / "PEMS08.csv"}
    assert import_benchmark("pems08", files=files).network.num_nodes == 4
    with raises(CityError, '"roads"', "readings, distances, ids"):
        import_benchmark("pems08", files={**files, "roads": folder / "PEMS08.csv"})


def spoil(folder: Path, name: str, old: str, new: str) -> None:
    path = next(folder.rglob(name))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("kind", "name", "old", "new", "named"),
    [
        (
            "metr-la",
            "graph_sensor_locations.csv",
            "34.15497,-118.31829",
            "-118.31829,34.15497",
            ("graph_sensor_locations.csv line 2", "swapped"),
        ),
        ("metr-la", "graph_sensor_locations.csv", "latitude", "north", ("graph_sensor_locations.csv", "column lat")),
        ("metr-la", "graph_sensor_locations.csv", "773869", "773860", ("graph_sensor_locations.csv", '"773869"')),
        ("metr-la", "distances_la_2012.csv", "2610.9", "far", ("distances_la_2012.csv line 3", '"far"')),
        ("metr-la", "distances_la_2012.csv", "2610.9", "-1", ("distances_la_2012.csv line 3", '"-1"')),
        ("metr-la", "distances_la_2012.csv", "2610.9", "inf", ("distances_la_2012.csv line 3", '"inf"')),
        ("pems03", "PEMS03.txt", "318711", "317842", ("PEMS03.txt", '"317842"')),
        ("pems03", "PEMS03.txt", "318711\n", "", ("PEMS03.txt", "3 sensors", "PEMS03.npz", "4")),
    ],
)
def test_wrong_tables_say_where(
    tmp_path: Path, kind: str, name: str, old: str, new: str, named: tuple[str, ...]
) -> None:
    small_files(tmp_path)
    spoil(tmp_path / kind, name, old, new)
    with raises(CityError, *named):
        import_benchmark(kind, files=tmp_path / kind)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kind": "metr-lo"}, ("metr-lo", '"metr-la"')),
        ({"zeros": "none"}, ("none", '"missing"', '"kept"')),
        ({"feature": "wind"}, ("wind", "flow, occupancy, speed")),
        ({"length_unit": "ell"}, ("ell", "m, km, mi")),
        ({"timezone": "Mars"}, ("time zone", '"Mars"')),
        ({"files": "nowhere"}, ("nowhere", "no such folder")),
        ({"kind": "metr-la"}, ("No file with readings",)),
        ({"kind": "metr-la", "feature": "flow"}, ("one feature",)),
    ],
)
def test_wrong_options_list_the_right_ones(tmp_path: Path, options: dict[str, Any], named: tuple[str, ...]) -> None:
    given = {"kind": "pems04", "files": write_pems(tmp_path, "pems04"), **options}
    with raises(CityError, *named):
        import_benchmark(given.pop("kind"), **given)


def test_claims_larger_than_the_file_are_refused(tmp_path: Path) -> None:
    folder = write_pems(tmp_path / "pems", "pems04")
    header = b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000, 4, 3)}"
    with zipfile.ZipFile(folder / "PEMS04.npz", "w") as archive:
        archive.writestr("data.npy", header)
    with raises(CityError, "PEMS04.npz"):
        import_benchmark("pems04", files=folder)
    with zipfile.ZipFile(folder / "PEMS04.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("data.npy", bytes(1 << 26))
    with raises(CityError, "PEMS04.npz", "damaged"):
        import_benchmark("pems04", files=folder)
    loops = write_metr_la(tmp_path / "loops")
    with h5py.File(loops / "metr-la.h5", "a") as file:
        del file["df/block0_values"]
        file["df"].create_dataset("block0_values", (1_000_000, 1_000_000), "f8", chunks=(100, 100))
    with raises(CityError, "metr-la.h5", "GB of memory"):
        import_benchmark("metr-la", files=loops)
    raw = (loops / "sensor_graph" / "distances_la_2012.csv").read_bytes()
    (loops / "sensor_graph" / "distances_la_2012.csv").write_bytes(gzip.compress(raw))
    write_h5 = write_metr_la(tmp_path / "again") / "metr-la.h5"
    (loops / "metr-la.h5").write_bytes(write_h5.read_bytes())
    with raises(CityError, "distances_la_2012.csv", "gzip"):
        import_benchmark("metr-la", files=loops)


def test_altered_files_are_read_or_refused(tmp_path: Path) -> None:
    """A small turn of what the slow tests do in child processes; HDF5 is native and left to them."""
    files = {key: path for key, path in small_files(tmp_path).items() if path.suffix != ".h5"}
    rng = np.random.default_rng(0)
    refused = 0
    for key, path in files.items():
        whole = path.read_bytes()
        for turn in range(12):
            raw = bytearray(whole)
            if turn % 3 == 0:
                raw = raw[: int(rng.integers(len(raw)))]
            else:
                for at in rng.integers(len(raw), size=2):
                    raw[at] = int(rng.integers(256))
            path.write_bytes(bytes(raw))
            try:
                import_benchmark(key.split("/")[0], files=tmp_path / key.split("/")[0])
            except FrigateError:
                refused += 1
        path.write_bytes(whole)
    assert refused > 50
