"""Importing a matrix [time, node] beside tables of nodes and roads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pytest

from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.errors import CityError
from frigate.sources.matrix import import_matrix
from tests.support.errors import raises
from tests.support.shared_data import shared_data

START_S = 1_704_067_200  # 2024-01-01T00:00Z
COUNTS = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, 1, 2]], np.uint8)
TIMES = START_S + 300 * np.arange(4)


Tables = dict[str, Any]  # the options `nodes` and `edges`


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    nodes = tmp_path / "nodes.csv"
    edges = tmp_path / "roads.csv"
    nodes.write_text("node_id,lon,lat,extra\n7,6.1,49.6,x\n5,6.11,49.6,y\n9,6.12,49.6,z\n")
    edges.write_text("src,dst,dist_mi,limit_mph,lanes\n7,5,0.5,30,1\n5,9,1,,2\n9,7,0.25,20,\n")
    return {"nodes": nodes, "edges": edges}


RENAME = {"src": "source", "dst": "target", "dist_mi": "length_m", "limit_mph": "speed_kph"}


def imported(tables: Tables, file: Path, **options: Any) -> City:
    return import_matrix(file, **tables, rename=RENAME, **options)


def save_npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "m.npz", **arrays)
    return folder / "m.npz"


def test_units_are_converted_on_the_way(tables: Tables, tmp_path: Path) -> None:
    city = imported(tables, save_npz(tmp_path, counts=COUNTS, t=TIMES), values="counts", time="t")
    np.testing.assert_allclose(city.network.length_m, [804.672, 1609.344, 402.336])
    np.testing.assert_allclose(city.network.edges.speed_kph, [48.28032, np.nan, 32.18688])
    assert city.stream.node_ids.tolist() == [7, 5, 9]
    np.testing.assert_array_equal(city.stream.values, COUNTS)
    assert "Columns of nodes.csv that are not read (extra): 1." in city.notices


def test_an_array_that_python_2_saved_is_read_without_a_warning(tables: Tables, tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", COUNTS)
    old, new = (f"({rows}, {columns}), }}".encode() for rows, columns in (COUNTS.shape, ("4L", "3L")))
    content = (tmp_path / "m.npy").read_bytes()
    assert content.count(old + b"  ") == 1 and COUNTS.shape == (4, 3)
    (tmp_path / "m.npy").write_bytes(content.replace(old + b"  ", new))
    city = imported(tables, tmp_path / "m.npy", start="2024-01-01T00:00", step="5min")
    np.testing.assert_array_equal(city.stream.values, COUNTS)


def files(folder: Path) -> dict[str, tuple[Path, dict[str, str]]]:
    np.save(folder / "m.npy", COUNTS)
    with h5py.File(folder / "m.h5", "w") as file:
        file["df/values"] = COUNTS
        file["df/axis1"] = TIMES * 10**9  # as pandas writes them
        file["text"] = [f"2024-01-01T00:{m:02d}Z" for m in (0, 5, 10, 15)]
    wide = ["when,9,7,5", *(f"2024-01-01T00:{5 * i:02d}Z,{r[2]},{r[0]},{r[1]}" for i, r in enumerate(COUNTS))]
    (folder / "m.csv").write_text("\n".join(wide) + "\n")
    text = np.array([f"2024-01-01T00:{m:02d}" for m in (0, 5, 10, 15)])
    npz = save_npz(folder, c=COUNTS, unix=TIMES, text=text, stamp=text.astype("datetime64[s]"), float_s=TIMES * 1.0)
    return {
        "npy": (folder / "m.npy", {"start": "2024-01-01T00:00", "step": "5min"}),
        "h5 nanoseconds": (folder / "m.h5", {"values": "df/values", "time": "df/axis1"}),
        "h5 text": (folder / "m.h5", {"values": "df/values", "time": "text"}),
        "wide csv": (folder / "m.csv", {}),
        "npz unnamed": (npz, {"time": "unix"}),
        "npz text": (npz, {"values": "c", "time": "text"}),
        "npz datetime64": (npz, {"values": "c", "time": "stamp"}),
        "npz floats": (npz, {"values": "c", "time": "float_s"}),
        "npz start": (npz, {"values": "c", "start": "2024-01-01T02:00+02:00", "step": "5min"}),
    }


KINDS = [
    "npy",
    "h5 nanoseconds",
    "h5 text",
    "wide csv",
    "npz unnamed",
    "npz text",
    "npz datetime64",
    "npz floats",
    "npz start",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_stream(tables: Tables, tmp_path: Path, kind: str) -> None:
    file, options = files(tmp_path)[kind]
    stream = imported(tables, file, timezone="UTC", **options).stream
    np.testing.assert_array_equal(stream.values, COUNTS)
    assert stream.observed.all()
    assert (stream.start_s, stream.step_s) == (START_S, 300)


def test_a_start_without_a_zone_is_local(tables: Tables, tmp_path: Path) -> None:
    options = {"start": "2024-01-01T00:00", "step": "5min", "timezone": "America/Los_Angeles"}
    stream = imported(tables, save_npz(tmp_path, c=COUNTS), **options).stream
    assert stream.local_time(stream.start_s) == "2024-01-01T00:00:00-08:00"


def test_gaps_and_masks_are_not_observed(tables: Tables, tmp_path: Path) -> None:
    times = START_S + np.array([0, 300, 900, 1200])  # one step is missing
    rows = save_npz(tmp_path, c=COUNTS, t=times, ok=np.array([True, False, True, True]))
    stream = imported(tables, rows, values="c", time="t", valid="ok").stream
    assert stream.observed.any(axis=1).tolist() == [True, False, False, True, True]
    cells = np.ones((4, 3), bool)
    cells[0, 1] = False
    stream = imported(tables, save_npz(tmp_path, c=COUNTS, t=times, ok=cells), values="c", time="t", valid="ok").stream
    assert stream.observed[0].tolist() == [True, False, True]
    assert stream.values[0].tolist() == [1, 0, 3]


def test_rows_closer_than_a_step_are_bucketed(tables: Tables, tmp_path: Path) -> None:
    file = save_npz(tmp_path, c=COUNTS, t=START_S + np.array([0, 60, 300, 330]))
    summed = imported(tables, file, values="c", time="t", step="5min").stream
    np.testing.assert_array_equal(summed.values, [COUNTS[0] + COUNTS[1], COUNTS[2] + COUNTS[3]])
    latest = imported(tables, file, values="c", time="t", step="5min", quantity="speed").stream
    np.testing.assert_array_equal(latest.values, COUNTS[[1, 3]])


def test_bad_cells_are_counted(tables: Tables, tmp_path: Path) -> None:
    values = COUNTS.astype(float)
    values[0, 0], values[1, 1], values[2, 2] = np.nan, np.inf, -1
    city = imported(tables, save_npz(tmp_path, c=values, t=TIMES[[1, 0, 2, 3]]), values="c", time="t")
    assert city.stream.observed.sum() == 9
    said = "\n".join(city.notices)
    for notice in (
        "not observed: 1",
        'Infinite readings were left out: 1 (first: row 2 of the matrix, node "5")',
        "Negative counts were left out: 1",
        "earlier than the row above, sorted: 1",
    ):
        assert notice in said
    np.testing.assert_array_equal(city.stream.values[1], [0, 2, 3])  # rows in order of time


@pytest.mark.parametrize("csv", [False, True])
def test_an_imported_city_comes_back_from_disk(tables: Tables, tmp_path: Path, csv: bool) -> None:
    city = imported(tables, save_npz(tmp_path, c=COUNTS, t=TIMES), values="c", time="t", name="Here", unit="veh")
    write_city(city, tmp_path / "city", csv=csv)
    back = read_city(tmp_path / "city")
    assert (back.name, back.stream.unit) == ("Here", "veh")
    np.testing.assert_array_equal(back.stream.values, COUNTS)
    assert back.network.fingerprint == city.network.fingerprint


Save = Callable[[Path], Path]
REFUSED: dict[str, tuple[Save, dict[str, Any], tuple[str, ...]]] = {
    "no such file": (lambda d: d / "none.npz", {}, ("none.npz", "no such file")),
    "no such array": (
        lambda d: save_npz(d, count=COUNTS),
        {"values": "counts"},
        ('"counts"', '"count"'),
    ),
    "which matrix": (lambda d: save_npz(d, a=COUNTS, b=COUNTS), {}, ("m.npz", "2 matrices", "a, b")),
    "no times": (lambda d: save_npz(d, c=COUNTS), {}, ("m.npz", "start and step")),
    "start without step": (lambda d: save_npz(d, c=COUNTS), {"start": "2024-01-01"}, ("m.npz", "start and step")),
    "start and time": (lambda d: save_npz(d, c=COUNTS, t=TIMES), {"start": "2024-01-01", "time": "t"}, ("start",)),
    "bad start": (lambda d: save_npz(d, c=COUNTS), {"start": "noon", "step": "5min"}, ('start "noon"',)),
    "bad step": (
        lambda d: save_npz(d, c=COUNTS),
        {"start": "2024-01-01", "step": "7min"},
        ("7min",),
    ),
    "usual step": (lambda d: save_npz(d, c=COUNTS, t=TIMES // 300 * 7), {"time": "t"}, ("m.npz", "7s")),
    "turned": (
        lambda d: save_npz(d, c=COUNTS[:3].repeat(2, 1)),
        {"start": "2024-01-01", "step": "1h"},
        ("turned",),
    ),
    "columns": (
        lambda d: save_npz(d, c=COUNTS[:, :2]),
        {"start": "2024-01-01", "step": "1h"},
        ("2 columns", "nodes.csv", "3"),
    ),
    "three axes": (lambda d: save_npz(d, c=COUNTS[..., None]), {"values": "c"}, ("one feature",)),
    "times too few": (
        lambda d: save_npz(d, c=COUNTS, t=TIMES[:2]),
        {"values": "c", "time": "t"},
        ("2 times", "4 rows"),
    ),
    "bad time": (lambda d: save_npz(d, c=COUNTS, t=["x"] * 4), {"time": "t"}, ("m.npz row 1", 't "x"')),
    "mask shape": (
        lambda d: save_npz(d, c=COUNTS, ok=[True]),
        {"valid": "ok", "start": "2024-01-01", "step": "1h"},
        ("valid", "shape"),
    ),
    "mask type": (
        lambda d: save_npz(d, c=COUNTS, ok=["y"] * 4),
        {"valid": "ok", "start": "2024-01-01", "step": "1h"},
        ("m.npz", '"ok"', "True and false"),
    ),
    "zone": (lambda d: save_npz(d, c=COUNTS), {"timezone": "Mars"}, ("time zone", '"Mars"')),
    "all missing": (lambda d: save_npz(d, c=COUNTS * np.nan, t=TIMES), {"time": "t"}, ("no reading",)),
    "text": (
        lambda d: save_npz(d, c=COUNTS.astype(str), t=TIMES),
        {"time": "t", "values": "c"},
        ("Numbers",),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tables: Tables, tmp_path: Path, what: str) -> None:
    save, options, named = REFUSED[what]
    with raises(CityError, *named):
        imported(tables, save(tmp_path), **options)


@pytest.mark.parametrize("end", ["npz", "npy", "h5", "xlsx", "csv"])
def test_a_file_that_is_not_what_its_name_says(tables: Tables, tmp_path: Path, end: str) -> None:
    (tmp_path / f"m.{end}").write_bytes(b"\x00\xff not a matrix")
    with raises(CityError, f"m.{end}"):
        imported(tables, tmp_path / f"m.{end}", start=None if end == "csv" else "2024-01-01", step="5min")


def test_pickled_arrays_are_refused(tables: Tables, tmp_path: Path) -> None:
    file = save_npz(tmp_path, c=np.array([[object()]]))
    with raises(CityError, "m.npz", "damaged", "Object arrays"):
        imported(tables, file, values="c", start="2024-01-01", step="5min")


def test_a_wide_csv_with_other_nodes(tables: Tables, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("time,7,5,99\n2024-01-01T00:00Z,1,,3\n2024-01-01T00:05Z,4,5,6\n")
    city = imported(tables, tmp_path / "m.csv", step="5min")
    np.testing.assert_array_equal(city.stream.observed, [[True, False, False], [True, True, False]])
    assert any(n.startswith("Sensors left out because they have no place in the network: 1") for n in city.notices)
    (tmp_path / "m.csv").write_text("time,7,98,99\n2024-01-01T00:00Z,1,,3\n")
    with raises(CityError, "2 of 3"):
        imported(tables, tmp_path / "m.csv", step="5min")


def test_a_map_that_fits_no_table(tables: Tables, tmp_path: Path) -> None:
    file = save_npz(tmp_path, c=COUNTS, t=TIMES)
    with raises(CityError, '"scr"', '"src"'):
        import_matrix(file, **tables, time="t", values="c", rename={"scr": "source", "dst": "target"})
    with raises(CityError, "speed", "length"):
        import_matrix(file, **tables, time="t", values="c", rename=RENAME | {"limit_mph": "length_m"})


@pytest.mark.shared
@pytest.mark.slow  # 26 million cells; the tests above import small matrices
def test_the_shared_cities_come_in_as_they_are(tmp_path: Path) -> None:
    lux, sf, la = (shared_data(name) for name in ("lux-sim", "sf-taxi-core", "metr-la-week"))
    ends = {"src": "source", "dst": "target"}

    def tables(folder: Path) -> Tables:
        return {"nodes": folder / "nodes.parquet", "edges": folder / "edges.parquet"}

    city = import_matrix(
        lux / "counts.npz",
        **tables(lux),
        values="counts",
        start="2024-01-01T00:00",
        step="5min",
        rename=ends | {"speed_limit_kmh": "speed_kph"},
    )
    np.testing.assert_array_equal(city.stream.values, np.load(lux / "counts.npz")["counts"])
    assert city.network.edges.speed_kph[0] == 50
    assert city.stream.wall_clock[0].tolist() == [0, 0, 0]  # Monday, midnight

    city = import_matrix(
        sf / "counts.npz",
        **tables(sf),
        values="counts",
        time="t_unix",
        valid="valid",
        timezone="America/Los_Angeles",
        rename=ends,
    )
    write_city(city, tmp_path / "sf")
    back = read_city(tmp_path / "sf").stream
    with np.load(sf / "counts.npz") as held:
        np.testing.assert_array_equal(back.observed, np.repeat(held["valid"][:, None], 2464, axis=1))
        np.testing.assert_array_equal(back.values, np.where(held["valid"][:, None], held["counts"], 0))
    assert back.local_time(back.start_s) == "2008-05-17T03:00:00-07:00"

    rename = ends | {"road_distance_m_est": "length_m"}
    city = import_matrix(
        la / "speed.npz",
        **tables(la),
        values="speed_mph",
        time="t_local",
        quantity="speed",
        timezone="America/Los_Angeles",
        rename=rename,
    )
    np.testing.assert_array_equal(city.stream.values, np.load(la / "speed.npz")["speed_mph"])
    assert city.stream.unit == "mph"
    assert city.stream.local_time(city.stream.start_s) == "2012-03-01T00:00:00-08:00"
    lengths = pl.read_parquet(la / "edges.parquet")["road_distance_m_est"].to_numpy()
    np.testing.assert_allclose(city.network.length_m, lengths)


def test_a_mistaken_time_is_refused_with_its_row(tables: Tables, tmp_path: Path) -> None:
    times = TIMES.copy()
    times[2] = -2_000_000_000
    file = save_npz(tmp_path, c=COUNTS, t=times)
    with raises(CityError, "1906-08-16T20:26:40Z (row 3 of the matrix)", "row 4 of the matrix"):
        imported(tables, file, values="c", time="t", step="1s")


def test_on_roads_a_column_is_a_row_of_the_road_table(tables: Tables, tmp_path: Path) -> None:
    file = save_npz(tmp_path, counts=COUNTS, t=TIMES)
    city = imported(tables, file, values="counts", time="t", on="roads")
    assert city.stream.node_ids.tolist() == ["7>5", "5>9", "9>7"]
    np.testing.assert_array_equal(city.stream.values, COUNTS)
    assert len(city.network.lines) == 3
    tables["edges"].write_text("src,dst\n7,5\n7,7\n9,7\n")  # a loop is no road: its column goes, not another
    city = import_matrix(file, **tables, values="counts", time="t", on="roads", rename={"src": "source"})
    assert city.stream.node_ids.tolist() == ["7>5", "9>7"]
    np.testing.assert_array_equal(city.stream.values, COUNTS[:, [0, 2]])
    tables["edges"].write_text("src,dst,oneway\n7,5,yes\n5,9,no\n9,7,yes\n")
    with raises(CityError, "roads.csv line 3", "both ways"):
        import_matrix(file, **tables, values="counts", time="t", on="roads")
    tables["edges"].write_text("src,dst\n7,5\n5,9\n")
    with raises(CityError, "3 columns", "roads.csv has 2 roads"):
        import_matrix(file, **tables, values="counts", time="t", on="roads")


def test_tables_have_common_column_names(tables: Tables, tmp_path: Path) -> None:
    tables["nodes"].write_text("osmid;x;y\n7;6,1;49,6\n5;6,11;49,6\n9;6,12;49,6\n")
    tables["edges"].write_text("u\tv\tlength\n7\t5\t730\n5\t9\t730\n9\t7\t1500\n")
    city = import_matrix(save_npz(tmp_path, counts=COUNTS, t=TIMES), **tables, values="counts", time="t")
    np.testing.assert_allclose(city.network.lon, [6.1, 6.11, 6.12])
    np.testing.assert_allclose(city.network.length_m, [730, 730, 1500])
    np.testing.assert_array_equal(city.stream.values, COUNTS)


def test_a_node_that_would_be_left_out_is_refused_as_columns_would_shift(tables: Tables, tmp_path: Path) -> None:
    tables["nodes"].write_text("node_id,lon,lat\n7,6.1,49.6\n5,6.11,\n9,6.12,49.6\n8,6.13,49.6\n")
    with raises(CityError, "nodes.csv line 3", 'lat ""', "not a number"):
        imported(tables, save_npz(tmp_path, counts=COUNTS, t=TIMES), values="counts", time="t")


def test_the_time_zone_is_that_of_the_place_where_none_is_given(tables: Tables, tmp_path: Path) -> None:
    file = save_npz(tmp_path, counts=COUNTS)
    city = imported(tables, file, start="2024-01-01T00:00", step="5min")
    assert city.stream.timezone == "Europe/Luxembourg"
    assert city.stream.local_time(city.stream.start_s) == "2024-01-01T00:00:00+01:00"
    assert "Time zones taken from the location of the map (Europe/Luxembourg), as none was given: 1." in city.notices
    told = imported(tables, file, start="2024-01-01T00:00", step="5min", timezone="Asia/Tokyo")
    assert told.stream.timezone == "Asia/Tokyo"
    assert not any("Time zones taken" in notice for notice in told.notices)
