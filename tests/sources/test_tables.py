"""Importing a user's own tables of nodes, edges and readings."""

from __future__ import annotations

import csv
import struct
import tempfile
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.city.network import Edges, RoadNetwork
from frigate.city.network_tables import connected_parts
from frigate.config import change, preset
from frigate.coordinates import haversine_m
from frigate.errors import CityError, FrigateError
from frigate.forecasting.forecast import forecast
from frigate.roads.geometry import NotALineError, PlaceIndex, line_length_m, read_line, write_line
from frigate.sources.matrix import import_matrix
from frigate.sources.osm.importer import import_osm
from frigate.sources.tables.detectors import SensorSite, attach
from frigate.sources.tables.importer import import_tables
from frigate.sources.tables.street_names import same_street
from frigate.training.train import train
from tests.support.command_line import assert_refused, frigate
from tests.support.errors import raises
from tests.support.shared_data import shared_data
from tests.support.table_files import EDGES, NODES, START, long_readings, small_files, steps

ORDER = ["A", "B", "C", "D"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return small_files(tmp_path / "in")


def put(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def imported(files: dict[str, Path], readings: Path | None = None, **options: Any) -> City:
    return import_tables(nodes=files["nodes.csv"], edges=files["edges.csv"], readings=readings, **options)


def rows_of(report: Path) -> list[dict[str, str]]:
    with report.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def roads(city: City) -> set[tuple[Any, Any]]:
    network = city.network
    return set(
        zip(network.node_ids[network.senders].tolist(), network.node_ids[network.receivers].tolist(), strict=True)
    )


# Networks


def test_a_direction_gives_one_road_or_two(files: dict[str, Path]) -> None:
    city = imported(files)
    assert roads(city) == {("A", "B"), ("B", "A"), ("B", "C"), ("C", "B"), ("B", "D"), ("D", "B"), ("D", "A")}
    assert city.stream.num_snapshots == 0


def test_lines_say_where_the_nodes_are_and_a_backward_road_has_its_line_reversed(files: dict[str, Path]) -> None:
    city = import_tables(edges=files["lines.csv"])
    network = city.network
    assert roads(city) == {("A", "B"), ("B", "A"), ("B", "C"), ("A", "C")}
    for a, b, wkb, metres in zip(
        network.senders, network.receivers, network.edges.geometry, network.length_m, strict=True
    ):
        line = read_line(wkb)
        np.testing.assert_allclose(line[0], [network.lon[a], network.lat[a]])
        np.testing.assert_allclose(line[-1], [network.lon[b], network.lat[b]])
        assert metres == pytest.approx(line_length_m(line))


def test_lines_without_node_ids_meet_at_their_ends(tmp_path: Path) -> None:
    path = put(tmp_path, "e.csv", "wkt,oneway\n" + "".join(f'"LINESTRING(6.{i} 49, 6.{i + 1} 49)",0\n' for i in (1, 2)))
    city = import_tables(edges=path)
    assert city.network.num_nodes == 3 and city.network.num_edges == 4


def test_wkb_of_parquet_and_wkt_give_the_same(files: dict[str, Path], tmp_path: Path) -> None:
    ours = import_tables(edges=files["streets.parquet"])
    text = 'u,v,wkt,direction\n1,2,"LINESTRING Z (6.1 49.6 3, 6.11 49.6 3)",both\n'
    text += '2,3,"SRID=4326;MULTILINESTRING((6.11 49.6,6.115 49.6),(6.115 49.6,6.12 49.6))",backward\n'
    theirs = import_tables(edges=put(tmp_path, "e.csv", text))
    assert roads(ours) == roads(theirs) == {(1, 2), (2, 1), (3, 2)}
    np.testing.assert_allclose(ours.network.length_m, theirs.network.length_m)


LINES = st.lists(
    st.tuples(st.floats(-179, 179).filter(lambda x: x != 0), st.floats(-89, 89)), min_size=2, max_size=6
).map(lambda points: np.array(points, np.float64))


@given(LINES, st.booleans(), st.booleans(), st.integers(0, 3))
def test_every_way_to_write_a_line_is_read_the_same(line: np.ndarray, big: bool, ewkb: bool, extra: int) -> None:
    order, byte = (">", 0) if big else ("<", 1)
    wide = np.concatenate([line, np.zeros((len(line), (0, 1, 1, 2)[extra]))], axis=1)
    code = 2 | (0x20000000 | extra << 30 if ewkb else 0) if ewkb else 2 + 1000 * extra
    srid = struct.pack(f"{order}I", 4326) if ewkb else b""
    head = struct.pack(f"{order}BI", byte, code) + srid + struct.pack(f"{order}I", len(line))
    wkb = head + wide.astype(f"{order}f8").tobytes()
    np.testing.assert_array_equal(read_line(wkb), line)
    np.testing.assert_array_equal(read_line(wkb.hex()), line)
    np.testing.assert_array_equal(read_line(write_line(line)), line)
    text = ", ".join(" ".join(repr(float(x)) for x in point) for point in wide)
    np.testing.assert_array_equal(read_line(f"linestring{('', ' Z', ' M', ' ZM')[extra]}({text})"), line)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_line_are_refused(data: bytes) -> None:
    for value in (data, b"\1\2\0\0\0" + data, data.decode("latin-1"), "LINESTRING(" + data.decode("latin-1")):
        with suppress(NotALineError):
            assert len(read_line(value)) >= 2


@given(st.integers(0, 1000), st.floats(-0.01, 0.01), st.floats(-0.01, 0.01))
def test_the_nearest_road_is_the_nearest(seed: int, dx: float, dy: float) -> None:
    rng = np.random.default_rng(seed)
    lon, lat = rng.uniform(-0.01, 0.01, (2, 10)) + np.array([[6.1], [49.6]])
    network = RoadNetwork(np.arange(10), lon, lat, Edges.of(np.arange(5), np.arange(5, 10), np.ones(5)))
    found, metres, _ = PlaceIndex.of_roads(network).near(6.1 + dx, 49.6 + dy, 0)
    share = np.linspace(0, 1, 2001)[:, None]
    walked = []
    for a, b in zip(network.senders, network.receivers, strict=True):
        at = (1 - share) * (network.lon[a], network.lat[a]) + share * (network.lon[b], network.lat[b])
        walked.append(haversine_m(at[:, 0], at[:, 1], np.array(6.1 + dx), np.array(49.6 + dy)).min())
    assert metres[0] == pytest.approx(min(walked), abs=2.0)
    assert walked[int(found[0])] == pytest.approx(min(walked), abs=2.0)


# Readings


def times_in(style: str) -> tuple[str, list[str]]:
    """The header and the cells of six times a step apart."""
    texts = {
        "iso": "%Y-%m-%dT%H:%M:%S+00:00",
        "iso space": "%Y-%m-%d %H:%M",
        "dots": "%d.%m.%Y %H:%M",
        "short year": "%d.%m.%y %H:%M:%S",
        "american": "%m/%d/%Y %I:%M %p",
        "british": "%d/%m/%Y %H:%M",
        "slashed": "%Y/%m/%d %H:%M",
        "compact": "%Y%m%d%H%M",
    }
    if style in texts:
        return "when", [t.strftime(texts[style]) for t in steps(6)]
    if style == "two columns":
        return "Datum,Uhrzeit", [t.strftime("%d.%m.%Y,%H:%M") for t in steps(6)]
    scale = {"unix": 1, "unix ms": 1000}[style]
    return "when", [str(int(t.timestamp()) * scale) for t in steps(6)]


STYLES = ["iso", "iso space", "dots", "short year", "american", "british"]
STYLES += ["slashed", "compact", "two columns", "unix", "unix ms"]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("shape", ["long", "wide"])
def test_times_and_shapes(style: str, shape: str, files: dict[str, Path], tmp_path: Path) -> None:
    head, times = times_in(style)
    if shape == "wide":
        text = "\n".join([f"{head},C,A", *(f"{t},{i + 1},{i}" for i, t in enumerate(times))])
    else:
        rows = [f"{t},{who},{i + k}" for i, t in enumerate(times) for k, who in enumerate("AC")]
        text = "\n".join([f"{head},where,vehicles", *rows])
    rename = {"Datum": "date", "Uhrzeit": "time"} if "," in head else {"when": "time"}
    rename |= {"where": "node_id"} if shape == "long" else {}
    city = imported(files, put(tmp_path, "r.csv", text + "\n"), rename=rename, timezone="UTC")
    assert city.stream.start_s == int(START.timestamp()) and city.stream.step_s == 300
    np.testing.assert_array_equal(city.stream.values[:, [0, 2]], [[i, i + 1] for i in range(6)])
    assert city.stream.sensors.tolist() == [True, False, True, False]


def test_days_and_months_are_never_guessed(files: dict[str, Path], tmp_path: Path) -> None:
    text = "time,node_id,value\n" + "".join(f"03/04/2024 08:{m:02d},A,1\n" for m in (0, 5, 10))
    path = put(tmp_path, "r.csv", text)
    with raises(CityError, "r.csv line 2", '"03/04/2024 08:00"', "--date-order dmy"):
        imported(files, path, timezone="UTC")
    for order, month in (("dmy", 4), ("mdy", 3)):
        start_s = imported(files, path, timezone="UTC", date_order=order).stream.start_s
        assert datetime.fromtimestamp(start_s, UTC).month == month
    both = put(tmp_path, "b.csv", text + "13/04/2024 08:00,A,1\n04/13/2024 08:00,A,1\n")
    with raises(CityError, "b.csv line 5", "b.csv line 6", "day"):
        imported(files, both, timezone="UTC")


def test_the_end_of_a_day_is_the_next(files: dict[str, Path], tmp_path: Path) -> None:
    rows = ["14.01.2024;23:55", "14.01.2024;24:00", "15.01.2024;00:05"]
    text = "date;time;node_id;value\n" + "".join(f"{r};A;{i}\n" for i, r in enumerate(rows))
    city = imported(files, put(tmp_path, "r.csv", text), timezone="Europe/Luxembourg")
    np.testing.assert_array_equal(city.stream.values[:, 0], [0, 1, 2])


def test_semicolons_and_decimal_commas(files: dict[str, Path], tmp_path: Path) -> None:
    text = "time;node_id;value\n" + "".join(
        f"{t:%Y-%m-%dT%H:%MZ};A;{v}\n" for t, v in zip(steps(3), ("1,5", "1.234,5", "1.234"), strict=True)
    )
    city = imported(files, put(tmp_path, "r.csv", text), quantity="speed")
    np.testing.assert_allclose(city.stream.values[:, 0], [1.5, 1234.5, 1234])
    mixed = put(tmp_path, "m.csv", text + "2024-01-15T00:15Z;A;1,234,567\n2024-01-15T00:20Z;A;6,13\n")
    with raises(CityError, "decimal"):
        imported(files, mixed, quantity="speed")
    grouped = text.replace(";", ",").replace("1,5", "7").replace("1.234,5", '"1,234"').replace("1.234", "2.5")
    city = imported(files, put(tmp_path, "g.csv", grouped), quantity="speed")
    np.testing.assert_allclose(city.stream.values[:, 0], [7, 1234, 2.5])


def test_latin_1_is_named_and_read_when_asked_for(files: dict[str, Path], tmp_path: Path) -> None:
    text = long_readings("Zähler").replace("A", "Ä")
    path = put(tmp_path, "r.csv", text.encode("latin-1"))
    with raises(CityError, "r.csv line 1", "0xe4", "--encoding latin-1"):
        imported(files, path)
    sensors = put(tmp_path, "s.csv", "Zähler,node_id\nÄ,A\nC,C\n".encode("latin-1"))
    city = imported(files, path, sensors=sensors, rename={"Zähler": "sensor_id"}, encoding="latin-1")
    assert city.stream.sensors.tolist() == [True, False, True, False]


def test_every_rejected_row_is_listed_with_its_line_and_reason(files: dict[str, Path], tmp_path: Path) -> None:
    good = long_readings(count=12)
    bad = [
        ("soon,A,1", "time", "soon", "is not a time"),
        ("2024-01-15T00:00Z,A,many", "value", "many", "is not a number"),
        ("2024-01-15T00:00Z,A,-3", "value", "-3", "is a negative count"),
        ("2024-01-15T00:00Z,,3", "node_id", "", "is empty"),
        ("2024-01-15T00:00Z,Z,3", "node_id", "Z", 'node "Z", which is not in the network'),
        ("2024-13-15T00:00Z,A,3", "time", "2024-13-15T00:00Z", "no"),
        ('2024-01-15T00:00Z,A,"1\n2"', "value", "1\n2", "is not a number"),
        ("2024-01-15T00:00Z,A,5", "node_id", "A", "later row for the same time"),
        ("2024-01-15T00:00Z,A,0", "", "", ""),
    ]
    path = put(tmp_path, "r.csv", good + "\n\n" + "\n".join(row for row, *_ in bad) + "\n")
    report = tmp_path / "rejected.csv"
    city = imported(files, path, report=report)
    lines = path.read_text().splitlines()
    listed = rows_of(report)
    # The first reading of A at midnight, on line 2, also has a later row for its time.
    assert listed[0]["line"] == "2" and "later row" in listed[0]["reason"]
    assert len(listed) == len(bad)
    for row, (text, column, value, reason) in zip(listed[1:], bad[:-1], strict=True):
        assert lines[int(row["line"]) - 1] == text.splitlines()[0]
        assert (row["file"], row["column"], row["value"]) == ("r.csv", column, value)
        assert reason in row["reason"]
    assert f"Rows listed in {report}: {len(listed)}." in city.notices
    assert city.stream.observed[0, 0] and city.stream.values[0, 0] == 0


def test_a_table_that_is_mostly_wrong_is_refused_and_still_listed(files: dict[str, Path], tmp_path: Path) -> None:
    path = put(tmp_path, "r.csv", "time,node_id,value\n" + "x,A,1\n" * 3 + "2024-01-15T00:00Z,A,1\n")
    report = tmp_path / "rejected.csv"
    with raises(CityError, "r.csv line 2", '"x"', "3 of 4 rows"):
        imported(files, path, report=report)
    assert [row["line"] for row in rows_of(report)] == ["2", "3", "4"]
    other = put(tmp_path, "precious.csv", "mine")
    with raises(CityError, "rejected"):
        imported(files, path, report=other)
    assert other.read_text() == "mine"


def test_bad_nodes_and_edges_are_listed(tmp_path: Path) -> None:
    nodes = put(tmp_path, "n.csv", NODES + "E,0,0\nA,7,50\n,6,49\nF,6.1,x\nG,6.1,999\n")
    edges = put(tmp_path, "e.csv", EDGES + "A,Q,1,both\nA,C,-5,both\nA,C,5,sideways\n")
    report = tmp_path / "rejected.csv"
    with raises(CityError, "n.csv", "5 of 9 rows"):
        import_tables(nodes=nodes, edges=edges)
    nodes.write_text(nodes.read_text() + "H,6.2,49.6\n")
    city = import_tables(nodes=nodes, edges=edges, report=report)
    told = {(row["file"], row["line"]): row["reason"] for row in rows_of(report)}
    lines = {"n.csv": range(6, 11), "e.csv": range(6, 9)}
    assert set(told) == {(file, str(line)) for file, held in lines.items() for line in held}
    assert "(0, 0)" in told["n.csv", "6"] and "must be unique" in told["n.csv", "7"]
    assert "not in the nodes" in told["e.csv", "6"]
    assert city.network.num_nodes == 5


def test_swapped_coordinates_are_named(tmp_path: Path, files: dict[str, Path]) -> None:
    nodes = put(tmp_path, "n.csv", "node_id,lat,lon\nA,-122.4,37.7\nB,-122.5,37.7\n")
    with raises(CityError, "swapped"):
        import_tables(nodes=nodes, edges=files["edges.csv"])
    lines = put(tmp_path, "l.csv", 'source,target,wkt\nA,B,"LINESTRING(49.6 6.1,49.6 6.11)"\n')
    with raises(CityError, "l.csv line 2", "swapped"):
        import_tables(nodes=files["nodes.csv"], edges=lines)
    sensors = put(tmp_path, "s.csv", "sensor_id,lat,lon\nA,6.1,49.6\nC,6.12,49.6\n")
    readings = put(tmp_path, "r.csv", long_readings("sensor_id"))
    with raises(CityError, "r.csv line 2", '"A"', "swapped", "2 of 2"):
        imported(files, readings, sensors=sensors)


# Sensors


def test_sensors_are_attached_to_the_nearest_node(files: dict[str, Path], tmp_path: Path) -> None:
    readings = put(tmp_path, "r.csv", long_readings("detector").replace(",A,", ",s1,").replace(",C,", ",s2,"))
    city = imported(files, readings, sensors=files["sensors.csv"])
    assert city.stream.sensors.tolist() == [True, False, True, False]
    far = put(tmp_path, "far.csv", "sensor_id,lon,lat\ns1,6.101,49.6\ns2,6.121,49.6\n")
    with raises(CityError, '"s1"', "73 m", "A", "--snap 100"):
        imported(files, readings, sensors=far)
    city = imported(files, readings, sensors=far, snap_m=100)
    assert city.stream.sensors.tolist() == [True, False, True, False]
    with raises(CityError, '"s1"', "sensors"):
        imported(files, readings, sensors=put(tmp_path, "o.csv", "sensor_id,node_id\nother,A\n"))


@given(
    st.lists(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=3, max_size=3), min_size=4, max_size=8),
    st.sampled_from(["count", "speed"]),
)
@settings(max_examples=12)
def test_several_detectors_on_a_node(cells: list[list[int | None]], quantity: str) -> None:
    ones: list[int | None] = [1, 1, 1]
    cells = [*[ones] * 6, *cells, [2, 2, 2]]  # enough to show that each reports every step
    text = "time,s1,s2,s3\n" + "".join(
        f"{t:%Y-%m-%dT%H:%MZ}," + ",".join("" if v is None else str(v) for v in row) + "\n"
        for t, row in zip(steps(len(cells)), cells, strict=True)
    )
    with tempfile.TemporaryDirectory() as folder:
        files = small_files(Path(folder))
        sensors = put(Path(folder), "s.csv", "sensor_id,node_id\ns1,A\ns2,A\ns3,B\n")
        readings = put(Path(folder), "r.csv", text)
        city = imported(files, readings, sensors=sensors, step="5min", quantity=quantity)
    for t, (a, b, c) in enumerate(cells):
        there = [v for v in (a, b) if v is not None]
        seen = len(there) == 2 if quantity == "count" else bool(there)
        assert city.stream.observed[t].tolist() == [seen, c is not None, False, False]
        if seen:
            wanted = sum(there) if quantity == "count" else sum(there) / len(there)
            assert city.stream.values[t, 0] == pytest.approx(wanted)


def test_readings_coarser_than_the_step_are_refused_with_the_step_to_use(
    files: dict[str, Path], tmp_path: Path
) -> None:
    fine = [f"{t:%Y-%m-%dT%H:%MZ},{w},1" for t in steps(12) for w in "ABD"]
    coarse = [f"{t:%Y-%m-%dT%H:%MZ},C,1" for t in steps(6, 15)]
    path = put(tmp_path, "r.csv", "\n".join(["time,node_id,value", *fine, *coarse]) + "\n")
    for step in (None, "5min", "10min"):
        with raises(CityError, '"C"', "--step 15min"):
            imported(files, path, step=step)
    with raises(CityError, "20min"):
        imported(files, path, step="20min")
    city = imported(files, path, step="15min")
    assert city.stream.values[0].tolist() == [3, 3, 1, 3]


def test_a_time_without_a_zone_needs_one(files: dict[str, Path], tmp_path: Path) -> None:
    path = put(tmp_path, "r.csv", long_readings().replace("Z", ""))
    with raises(CityError, "--timezone"):
        imported(files, path)
    mixed = put(tmp_path, "m.csv", long_readings().replace("T00:00Z", "T00:00").replace("T00:05Z", "T01:05+01:00"))
    city = imported(files, mixed, timezone="UTC")
    assert city.stream.num_snapshots == 6
    assert any(n.startswith("Times without a zone, read as local time (m.csv): 2") for n in city.notices)


def test_the_network_of_a_city_brings_its_time_zone(files: dict[str, Path], tmp_path: Path) -> None:
    local = put(tmp_path, "r.csv", long_readings().replace("Z", ""))
    city = imported(files, timezone="Asia/Tokyo")
    write_city(city, tmp_path / "city")
    taken = "Time zones taken from the network's city (Asia/Tokyo), as none was given: 1."
    for network in (city, tmp_path / "city"):
        there = import_tables(network=network, readings=local)
        assert (there.stream.timezone, there.stream.start_s) == ("Asia/Tokyo", int(START.timestamp()) - 9 * 3600)
        assert taken in there.notices
    assert import_tables(network=city).stream.timezone == "Asia/Tokyo"
    given_zone = import_tables(network=city, readings=local, timezone="UTC")
    assert (given_zone.stream.timezone, given_zone.stream.start_s) == ("UTC", int(START.timestamp()))
    assert taken not in given_zone.notices


def test_a_sensor_is_not_attached_to_a_node_that_is_gone() -> None:
    place = np.array([6.1, 6.2]), np.array([49.6, 49.6])
    network = RoadNetwork(np.array(["A", "B"]), *place, Edges.none()).remove_nodes(["B"])
    found = attach([SensorSite(lon=6.2, lat=49.6)], network, names=["S"], roads=None, snap_m=None)
    node_of = found.node_of
    why = found.reasons
    assert node_of.tolist() == [-1] and "m from the nearest node, A" in why[0]


# On roads


def test_turns_that_the_city_forbids_are_no_edges(files: dict[str, Path], tmp_path: Path) -> None:
    city = imported(files)
    turn = city.network.rows_of(["A", "B", "C"])[None]
    write_city(replace(city, forbidden_turns=turn), tmp_path / "city")
    readings = put(tmp_path, "r.csv", long_readings("node_id").replace(",A,", ",A>B,").replace(",C,", ",B>A,"))
    free, bound = (import_tables(network=n, readings=readings, on="roads") for n in (city, tmp_path / "city"))
    assert roads(free) - roads(bound) == {("A>B", "B>C")}
    np.testing.assert_array_equal(free.stream.values, bound.stream.values)
    kept = import_tables(network=tmp_path / "city", readings=files["readings.csv"])
    np.testing.assert_array_equal(kept.forbidden_turns, turn)


def test_a_detector_on_a_road_is_a_node_of_the_line_graph(files: dict[str, Path], tmp_path: Path) -> None:
    readings = put(tmp_path, "r.csv", long_readings("sensor_id"))
    places = {
        "bearing": "sensor_id,lon,lat,bearing\nA,6.105,49.6001,eastbound\nC,6.105,49.5999,268\n",
        "ends": "sensor_id,source,target\nA,A,B\nC,B,A\n",
        "node": "sensor_id,node_id\nA,A>B\nC,B>A\n",
    }
    for name, text in places.items():
        city = imported(files, readings, sensors=put(tmp_path, f"{name}.csv", text), on="roads")
        assert city.network.node_ids[city.stream.sensors].tolist() == ["A>B", "B>A"], name
        at = city.network.row_of("A>B")
        np.testing.assert_array_equal(city.stream.values[:, at], range(6))
    both = put(tmp_path, "both.csv", "sensor_id,lon,lat\nA,6.105,49.6001\nC,6.115,49.6\n")
    with raises(CityError, '"A"', "A>B", "B>A", "bearing"):
        imported(files, readings, sensors=both, on="roads")
    far = put(tmp_path, "far.csv", "sensor_id,lon,lat\nA,6.102,49.5991\nC,6.102,49.5991\n")
    with raises(CityError, "101 m", "A>B", "--snap 200"):
        imported(files, readings, sensors=far, on="roads")


def test_detectors_of_one_direction_are_not_taken_as_intersections_unasked(
    files: dict[str, Path], tmp_path: Path
) -> None:
    readings = put(tmp_path, "r.csv", long_readings("sensor_id"))

    def places(*rows: str) -> Path:
        return put(tmp_path, "s.csv", "\n".join(rows) + "\n")

    directed = places("sensor_id,lon,lat,bearing", "A,6.1001,49.6,E", "C,6.1101,49.6,both")
    with raises(CityError, "r.csv", "1 of 2 detectors", '"A"', "bearing E", "--on roads", "--on nodes"):
        imported(files, readings, sensors=directed)
    told = "taken as all traffic of an intersection"
    on_nodes = imported(files, readings, sensors=directed, on="nodes")
    assert sum(told in notice for notice in on_nodes.notices) == 1
    on_roads = imported(files, readings, sensors=directed, on="roads")
    assert on_roads.network.node_ids[on_roads.stream.sensors].tolist() == ["A>B", "B>C", "C>B"]
    on_a_road = places("sensor_id,source,target,node_id", "A,A,B,", "C,,,C")
    with raises(CityError, '"A"', "road A,B", "--on roads"):
        imported(files, readings, sensors=on_a_road)
    # A bearing is not needed: these are far from any intersection, but on a road.
    mid = places("sensor_id,lon,lat", "A,6.105,49.6001", "C,6.115,49.6")
    with raises(CityError, "r.csv", "2 of 2 detectors", "on a road", '"A"', "361 m", "11 m", "--on roads"):
        imported(files, readings, sensors=mid)
    with raises(CityError, '"A"', "361 m", "--snap 500"):
        imported(files, readings, sensors=mid, on="nodes")
    for fine in (("A,6.1001,49.6", "C,6.1201,49.6001"), ("A,6.1001,49.6,both", "C,6.1201,49.6001,")):
        at = places("sensor_id,lon,lat" + ",bearing" * (fine[1][-1] == ","), *fine)
        assert not any(told in notice for notice in imported(files, readings, sensors=at).notices)
    whole = imported(files, files["readings.csv"])  # readings of nodes, by their ids
    assert not any(told in notice for notice in whole.notices)


def test_one_bearing_for_all_detectors_without_one(files: dict[str, Path], tmp_path: Path) -> None:
    readings = put(tmp_path, "r.csv", long_readings("sensor_id"))
    sensors = put(tmp_path, "s.csv", "sensor_id,lon,lat,bearing\nA,6.105,49.6001,\nC,6.115,49.6,W\n")
    unsaid = "sensor_id,lon,lat\nA,6.105,49.6001\nC,6.115,49.6\n"
    with raises(CityError, '"A"', "A>B", "B>A", "bearing", "--bearing both"):
        imported(files, readings, sensors=put(tmp_path, "n.csv", unsaid), on="roads")
    city = imported(files, readings, sensors=sensors, on="roads", bearing="both")
    assert city.network.node_ids[city.stream.sensors].tolist() == ["A>B", "B>A", "C>B"]
    with raises(CityError, '"A"', 'bearing "upwards"'):
        imported(files, readings, sensors=put(tmp_path, "n.csv", unsaid), on="roads", bearing="upwards")


def test_codes_of_directions_are_no_degrees(files: dict[str, Path], tmp_path: Path) -> None:
    readings = put(tmp_path, "r.csv", long_readings("sensor_id"))
    sensors = put(tmp_path, "s.csv", "sensor_id,lon,lat,direction\nA,6.105,49.6001,1\nC,6.105,49.6001,2\n")
    with raises(CityError, '"A"', '"1"', "code", "bearing"):
        imported(files, readings, sensors=sensors, on="roads")
    words = put(
        tmp_path, "w.csv", "sensor_id,lon,lat,Richtung\nA,6.105,49.6001,Fahrtrichtung Ost\nC,6.105,49.6001,Ouest\n"
    )
    city = imported(files, readings, sensors=words, on="roads")
    assert city.network.node_ids[city.stream.sensors].tolist() == ["A>B", "B>A"]


def test_the_name_of_a_street_decides_between_near_roads(files: dict[str, Path], tmp_path: Path) -> None:
    edges = put(
        tmp_path,
        "e.csv",
        "source,target,name,wkt\n"
        'A,B,Hauptstraße,"LINESTRING(6.1 49.6,6.11 49.6)"\n'
        'C,D,Avenue de Clichy,"LINESTRING(6.1 49.6002,6.11 49.6002)"\n'
        'B,C,,"LINESTRING(6.11 49.6,6.13 49.61,6.1 49.6002)"\n',
    )

    def roads_of(sensors: str, a: str = "A", c: str = "C") -> list[str]:
        text = long_readings("sensor_id").replace(",A,", f",{a},").replace(",C,", f",{c},")
        city = import_tables(
            edges=edges, readings=put(tmp_path, "r.csv", text), sensors=put(tmp_path, "s.csv", sensors), on="roads"
        )
        notices.extend(city.notices)
        rows = {name: node for name, node, *_ in city.detectors.rows()}
        return [str(city.network.node_ids[rows[name]]) for name in (a, c)]

    notices: list[str] = []
    near = "6.105,49.60005", "6.104,49.60015"  # 6 m from the one street, 17 m from the other
    assert roads_of(f"sensor_id,lon,lat\nA,{near[0]}\nC,{near[1]}\n") == ["A>B", "C>D"]
    named = roads_of(f"sensor_id,lon,lat,Rue\nA,{near[0]},Av_de_Clichy\nC,{near[1]},Hauptstr. 12\n")
    assert named == ["C>D", "A>B"]
    own = roads_of(
        f"sensor_id,lon,lat\nZ1 Av. de Clichy,{near[0]}\nHauptstr. Ost,{near[1]}\n", "Z1 Av. de Clichy", "Hauptstr. Ost"
    )
    assert own == ["C>D", "A>B"]
    assert not any("street is none" in notice for notice in notices)
    assert roads_of(f"sensor_id,lon,lat,street\nA,{near[0]},Nowhere\nC,{near[1]},\n") == ["A>B", "C>D"]
    assert [n for n in notices if "street is none of the near roads" in n and '"A", street "Nowhere"' in n]


@pytest.mark.parametrize(
    ("text", "street", "same"),
    [
        ("Hauptstr.", "Hauptstraße", True),
        ("Haupt-Strasse 12a", "Hauptstrasse", True),
        ("Av_de_Clichy", "Avenue de Clichy", True),
        ("Clichy", "Avenue de Clichy", True),
        ("MAIN ST", "Main Street", True),
        ("Main St / 2nd Ave", "2nd Avenue", True),
        ("Bahnhofstr.", "Hauptstraße", False),
        ("Main Road", "Main Street", False),
        ("12", "12th Street", False),
        ("", "Main Street", False),
        ("Main Street", "", False),
    ],
)
def test_names_of_streets(text: str, street: str, same: bool) -> None:
    assert same_street(text, street) == same


def test_sensors_that_are_left_out_are_named_with_what_to_do(files: dict[str, Path], tmp_path: Path) -> None:
    rows = [f"{t:%Y-%m-%dT%H:%MZ},{who},1" for t in steps(6) for who in "ABCDE"]
    readings = put(tmp_path, "r.csv", "\n".join(["time,sensor_id,value", *rows]) + "\n")
    places = "A,6.105,49.6001,E\nB,6.105,49.5999,W\nC,6.115,49.6,E\nD,6.105,49.5985,E\nE,6.1001,49.606,N\n"
    city = imported(files, readings, sensors=put(tmp_path, "s.csv", "sensor_id,lon,lat,bearing\n" + places), on="roads")
    (told,) = (notice for notice in city.notices if notice.startswith("Sensors left out"))
    first, second = city.places[told]
    assert '"D" is 167 m from the nearest road, A>B. Pass --snap 200' in first and first in told
    assert second.startswith('"E" ') and "--snap" in second
    south = "A,6.105,49.6001,E\nB,6.105,49.5999,W\nC,6.115,49.6,E\nD,6.115,49.6,S\nE,6.1,49.6,E\n"
    city = imported(files, readings, sensors=put(tmp_path, "s.csv", "sensor_id,lon,lat,bearing\n" + south), on="roads")
    (told,) = (notice for notice in city.notices if notice.startswith("Sensors left out"))
    assert "leads in direction 180 degrees; the nearest, D>B, is 361 m away. Pass --snap 500" in told


def test_a_new_detector_finds_its_road_in_a_city_on_roads(files: dict[str, Path], tmp_path: Path) -> None:
    first = put(tmp_path, "s.csv", "sensor_id,lon,lat,bearing\nA,6.105,49.6001,E\nC,6.105,49.6001,W\n")
    city = imported(files, put(tmp_path, "r.csv", long_readings("sensor_id")), sensors=first, on="roads")
    write_city(city, tmp_path / "city")
    text = long_readings("sensor_id").replace(",C,", ",N,")
    more = put(tmp_path, "more.csv", "sensor_id,lon,lat,bearing\nA,6.105,49.6001,E\nN,6.1195,49.6001,both\n")
    told = import_tables(network=tmp_path / "city", readings=put(tmp_path, "n.csv", text), sensors=more)
    assert told.network.node_ids[told.stream.sensors].tolist() == ["A>B", "B>C", "C>B"]
    assert told.network.fingerprint == city.network.fingerprint


def test_a_road_is_named_by_the_users_own_id(tmp_path: Path) -> None:
    edges = put(
        tmp_path,
        "e.csv",
        "segment_id,u,v,wkt,direction\n"
        '10,1,2,"LINESTRING(6.1 49.6,6.11 49.6)",both\n20,2,1,"LINESTRING(6.11 49.6,6.11 49.7,6.1 49.6)",both\n'
        '30,2,3,"LINESTRING(6.11 49.6,6.12 49.6)",forward\n',
    )
    rows = [f"{t:%Y-%m-%dT%H:%MZ},{s},{d},1" for t in steps(3) for s, d in ((10, "forward"), (10, "W"), (30, ""))]
    readings = put(tmp_path, "r.csv", "\n".join(["time,sensor_id,bearing,count", *rows]) + "\n")
    sensors = put(tmp_path, "s.csv", "sensor_id,link_id,direction\n10,10,backward\n30,30,\n")
    city = import_tables(edges=edges, readings=readings, sensors=sensors, on="roads", rename={"count": "value"})
    assert city.network.node_ids[city.stream.sensors].tolist() == ["2>3", "2>1"]
    direct = put(tmp_path, "d.csv", "\n".join(["time,link_id,direction,count", *rows]).replace(",30,,", ",30,forward,"))
    city = import_tables(edges=edges, readings=direct, on="roads")
    assert sorted(city.network.node_ids[city.stream.sensors].tolist()) == ["1>2", "2>1", "2>3"]


# Bad input


@pytest.mark.parametrize(
    ("name", "data", "named"),
    [
        ("r.csv", b"", ("r.csv", "empty")),
        ("r.csv", b"\n\n \n", ("r.csv", "empty")),
        ("r.csv", b"time,node_id,value\n", ("r.csv", "no rows")),
        ("r.csv", b"\x1f\x8b\x08\x00rest", ("r.csv", "gzip")),
        ("r.csv", b"PK\x03\x04rest", ("r.csv", "zip", "spreadsheet")),
        ("r.csv", b"PAR1restPAR1", ("r.csv", "Parquet")),
        ("r.parquet", b"time,node_id,value\n", ("r.parquet", "Parquet")),
        ("r.parquet", b"PAR1nonsensePAR1", ("r.parquet", "Parquet")),
        ("r.csv", b"a\0b,c\n1,2\n", ("r.csv", "zero bytes")),
        ("r.csv", "time,node_id,value\n".encode("utf-16"), ("r.csv", "no rows")),
        ("r.csv", b"time,node_id,value\n2024-01-15T00:00Z,A,1,2\n", ("r.csv line 2", "4 fields", "3 columns")),
        ("r.csv", b'time,node_id,value\n2024-01-15T00:00Z,A,"1\n', ("r.csv", "quotation mark")),
        ("r.csv", b"time,node_id,amount\n2024-01-15T00:00Z,A,1\n", ("r.csv", "column value")),
        ("r.csv", b"time,count,volume,node\n1,1,1,A\n", ("r.csv", "count", "volume")),
        ("r.csv", b"time,node_id,value\n1705276800,A,1\n", ("--step",)),
        ("r.csv", b"time,node_id,value\n1705276800,Q,1\n", ('node "Q"',)),
        ("r.csv", b"time,node_id,value\n99999999,A,1\n4102444800,A,1\n4102444801,A,1\n", ("r.csv line 2", "line 4")),
        ("r.csv", b"time,node_id,value\n1705276800,A,\n", ("r.csv", "no usable reading")),
    ],
)
def test_bad_readings_are_refused_in_words(
    name: str, data: bytes, named: tuple[str, ...], files: dict[str, Path], tmp_path: Path
) -> None:
    with raises(CityError, *named):
        imported(files, put(tmp_path, name, data))


def test_a_parquet_file_that_expands_a_thousandfold_is_refused(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRIGATE_READ_MEMORY_GB", "0.2")
    path = tmp_path / "bomb.parquet"
    frame = pl.select(pl.repeat(1_705_276_800, 4_000_000).alias("time")).with_columns(node_id=pl.lit("A"), value=1)
    frame.write_parquet(path, compression="zstd", row_group_size=4_000_000)
    with raises(CityError, "bomb.parquet", "0.2 GB"):
        imported(files, path)


def test_arguments_that_do_not_fit(files: dict[str, Path], tmp_path: Path) -> None:
    city = imported(files)
    readings = files["readings.csv"]
    refused: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"edges": files["edges.csv"], "network": city}, ("edges",)),
        ({}, ("edges",)),
        ({"network": city, "nodes": files["nodes.csv"]}, ("--nodes",)),
        ({"network": city, "sensors": files["sensors.csv"]}, ("both",)),
        ({"network": city, "on": "rails"}, ('"rails"', "nodes or roads")),
        ({"network": city, "readings": readings, "rename": {"nodeid": "node_id"}}, ("nodeid", '"node_id"')),
        ({"network": city, "readings": readings, "rename": {"value": "walue"}}, ("walue", '"value"')),
        ({"network": city, "readings": readings, "snap_m": -1.0}, ("-1", "0 or more")),
        ({"network": city, "readings": readings, "encoding": "klingon"}, ("klingon",)),
        ({"network": city, "readings": readings, "date_order": "ydm"}, ("ydm",)),
        ({"network": city, "readings": readings, "timezone": "Mars"}, ('"Mars"',)),
        ({"network": city, "readings": readings, "step": "7min"}, ("7min",)),
        ({"network": tmp_path / "none"}, ("none", "no such folder")),
        ({"edges": files["edges.csv"]}, ("edges.csv", "nodes")),
    ]
    for options, named in refused:
        with raises(CityError, *named):
            import_tables(**options)


@pytest.mark.parametrize("name", ["nodes.csv", "edges.csv", "readings.csv", "lines.csv", "wide.csv", "streets.parquet"])
def test_mutated_files_give_a_city_or_a_plain_error(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files = small_files(tmp_path)
    whole = files[name].read_bytes()
    for _ in range(12):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(len(data)))
            kind = int(rng.integers(3))
            if kind == 0:
                data[at] = int(rng.integers(256))
            elif kind == 1:
                del data[at : at + int(rng.integers(1, 20))]
            else:
                data[at:at] = data[at : at + 20]
            data = data or bytearray(b"x")
        files[name].write_bytes(bytes(data))
        with suppress(FrigateError):
            if name in ("lines.csv", "streets.parquet"):
                import_tables(edges=files[name], report=tmp_path / "rejected.csv")
            else:
                readings = files[name if name == "wide.csv" else "readings.csv"]
                imported(files, readings, timezone="UTC", report=tmp_path / "rejected.csv")


# To the end


def osm_grid(path: Path, side: int) -> Path:
    """Streets that cross every 150 m, as OpenStreetMap writes them."""
    nodes = [
        f'<node id="{y * side + x + 1}" lon="{6 + x / 500}" lat="{49.6 + y / 800}"/>'
        for y in range(side)
        for x in range(side)
    ]
    rows = [[y * side + x + 1 for x in range(side)] for y in range(side)]
    refs = ["".join(f'<nd ref="{n}"/>' for n in way) for way in (*rows, *zip(*rows, strict=True))]
    ways = [f'<way id="{i}">{r}<tag k="highway" v="residential"/></way>' for i, r in enumerate(refs, 1)]
    return put(path.parent, path.name, f'<osm version="0.6">{"".join(nodes + ways)}</osm>')


def test_a_map_and_readings_with_coordinates_train_and_forecast(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    bare = import_osm(osm_grid(tmp_path / "town.osm", 4))
    loops = [(x, y) for y in range(4) for x in range(4) if (x, y) not in ((0, 0), (0, 3), (3, 0), (3, 3))]
    rows = [
        f"{t:%d.%m.%Y %H:%M},loop {x}-{y},{6 + x / 500 + 1e-5:.6f},{49.6 + y / 800:.6f},{rng.poisson(9)}"
        for t in steps(150)
        for x, y in loops
    ]
    readings = put(tmp_path, "counts.csv", "\n".join(["Zeit,detector,lng,latitude,vehicles", *rows]) + "\n")
    city = import_tables(network=bare, readings=readings, rename={"Zeit": "time"}, timezone="Europe/Luxembourg")
    assert city.stream.sensors.sum() == len(loops)
    assert bare.notices and city.notices[: len(bare.notices)] == bare.notices
    write_city(city, tmp_path / "city")
    kept = read_city(tmp_path / "city")
    np.testing.assert_array_equal(kept.stream.values, city.stream.values)
    sizes = {
        "model": {"width": 8, "layers": 1, "hidden": 8},
        "train": {"epochs": 1, "steps_per_epoch": 2, "masks": 3, "batch_size": 4},
        "task": {"past": 4, "horizon": 4},
    }
    run = train(kept, settings=change(preset("default"), sizes), device="cpu")
    made = forecast(run, device="cpu")
    assert made.values.shape == (4, bare.network.num_nodes) and np.isfinite(made.values).all()


# The real thing


@pytest.mark.shared
def test_the_streets_of_san_francisco() -> None:
    streets = shared_data("sf-streets-traces") / "streets.parquet"
    city = import_tables(edges=streets, timezone="America/Los_Angeles")
    network = city.network
    assert (network.num_nodes, network.num_edges) == (9_161, 27_176)
    assert "Parallel roads were left out, the shortest of each kept: 786." in city.notices  # of 27,962 directions
    assert connected_parts(network)[0] == 8_992
    taxi = shared_data("sf-taxi")
    nodes, edges = (pl.read_parquet(taxi / f"{name}.parquet") for name in ("nodes", "edges"))
    theirs_of = dict(zip(nodes["node_id"].to_list(), nodes["source_id"].to_list(), strict=True))
    theirs = {(theirs_of[a], theirs_of[b]): m for a, b, m in edges.select("src", "dst", "length_m").iter_rows()}
    assert len(theirs) == 26_801 and set(theirs) <= roads(city)
    ends = (network.node_ids[rows].tolist() for rows in (network.senders, network.receivers))
    ours_m = dict(zip(zip(*ends, strict=True), network.length_m.tolist(), strict=True))
    off = {pair: ours_m[pair] - metres for pair, metres in theirs.items() if abs(ours_m[pair] - metres) > 0.01}
    assert len(off) == 8 and max(off.values()) < 0  # sf-taxi gives a street at least the distance of its nodes
    assert sum(ours_m[pair] for pair in theirs) == pytest.approx(3_309_312.6, abs=1)


# What a column measures


@pytest.mark.parametrize("quantity", ["Count", " count", "COUNT "])
def test_a_count_is_a_count_in_any_case(files: dict[str, Path], tmp_path: Path, quantity: str) -> None:
    text = "time,node_id,value\n2024-01-15T08:00Z,A,3\n2024-01-15T08:01Z,A,4\n2024-01-15T08:05Z,A,5\n"
    given = ("--nodes", files["nodes.csv"], "--edges", files["edges.csv"], "--readings", put(tmp_path, "r.csv", text))
    said = frigate("import", "tables", *given, "--step", "5min", "--quantity", quantity, "-o", tmp_path / "city")
    assert said.status == 0
    city = read_city(tmp_path / "city")
    assert city.stream.quantity == "count" and city.stream.values[:, 0].tolist() == [7, 5]


def test_a_quantity_that_is_nearly_count_is_refused_before_anything_is_written(
    files: dict[str, Path], tmp_path: Path
) -> None:
    said = frigate(
        "import",
        "tables",
        "--nodes",
        files["nodes.csv"],
        "--edges",
        files["edges.csv"],
        "--quantity",
        "counts",
        "-o",
        tmp_path / "city",
    )
    assert_refused(said, '"counts"', '"count"')
    assert not (tmp_path / "city").exists()


def test_a_column_of_speeds_is_not_summed(files: dict[str, Path], tmp_path: Path) -> None:
    text = "time,node_id,speed\n2024-01-15T08:00Z,A,50\n2024-01-15T08:01Z,A,52\n2024-01-15T08:05Z,A,54\n"
    path = put(tmp_path, "r.csv", text)
    with raises(CityError, "r.csv", '"speed"', "--quantity speed"):
        imported(files, path, step="5min")
    assert imported(files, path, step="5min", quantity="speed").stream.values[:, 0].tolist() == [52, 54]
    assert imported(files, path, step="5min", quantity="count").stream.values[:, 0].tolist() == [102, 54]


# Nothing is taken at face value that cannot be right


@pytest.mark.parametrize("first", [45292.0, 0], ids=["spreadsheet days", "row numbers"])
def test_numbers_that_are_no_seconds_are_not_read_as_1970(files: dict[str, Path], tmp_path: Path, first: float) -> None:
    rows = [f"{first + i / 288 if first else i},{i},{i}" for i in range(6)]
    with raises(CityError, "r.csv line 2", "time"):
        imported(files, put(tmp_path, "r.csv", "time,A,C\n" + "\n".join(rows)), timezone="UTC")
    frame = pl.DataFrame({"time": [first + i for i in range(6)], "A": list(range(6))})
    frame.write_parquet(tmp_path / "r.parquet")
    with raises(CityError, "r.parquet row 1", "time"):
        imported(files, tmp_path / "r.parquet", timezone="UTC")


def test_the_index_that_pandas_writes_is_no_time(files: dict[str, Path], tmp_path: Path) -> None:
    path = put(tmp_path, "m.csv", ",A,B,C,D\n" + "\n".join(f"{i},1,2,3,4" for i in range(6)))
    with raises(CityError, "m.csv line 2", '"0"'):
        import_matrix(path, nodes=files["nodes.csv"], edges=files["edges.csv"])


@pytest.mark.parametrize("as_text", [False, True])
def test_times_rounded_to_float32_are_refused(files: dict[str, Path], tmp_path: Path, as_text: bool) -> None:
    rounded = np.array([t.timestamp() for t in steps(12)]).astype(np.float32)
    frame = pl.DataFrame({"time": rounded, "node_id": ["A"] * 12, "value": range(12)})
    if as_text:
        path = put(tmp_path, "r.csv", "time,node_id,value\n" + "".join(f"{t:.0f},A,1\n" for t in rounded))
    else:
        frame.write_parquet(path := tmp_path / "r.parquet")
    with raises(CityError, path.name, "float32"):
        imported(files, path, step="5min")
    whole = frame.with_columns(pl.Series("time", [t.timestamp() for t in steps(12)]))
    whole.write_parquet(tmp_path / "whole.parquet")
    assert imported(files, tmp_path / "whole.parquet").stream.num_snapshots == 12


def test_the_place_of_a_short_year_is_never_guessed(files: dict[str, Path], tmp_path: Path) -> None:
    def start(text: str, **options: Any) -> datetime:
        rows = "".join(f"{day},A,1\n" for day in text.split())
        city = imported(files, put(tmp_path, "r.csv", "time,node_id,value\n" + rows), timezone="UTC", **options)
        return datetime.fromtimestamp(city.stream.start_s, UTC)

    with raises(CityError, "r.csv line 2", '"24/01/05"', "--date-order ymd"):
        start("24/01/05 24/01/06", step="1d")
    for order, day in (("ymd", datetime(2024, 1, 5, tzinfo=UTC)), ("dmy", datetime(2005, 1, 24, tzinfo=UTC))):
        assert start("24/01/05 24/01/05", step="1d", date_order=order) == day
    assert start("24/01/05 24/01/06 24/01/07", step="1d") == datetime(2024, 1, 5, tzinfo=UTC)
    assert start("13/01/24 14/01/24 15/01/24", step="1d") == datetime(2024, 1, 13, tzinfo=UTC)
    assert start("01/13/24 02/13/24 03/13/24", step="1d") == datetime(2024, 1, 13, tzinfo=UTC)


def test_dots_that_could_be_thousands_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    def values(*cells: str) -> list[float]:
        rows = "".join(f"{t:%Y-%m-%dT%H:%MZ};A;{cell}\n" for t, cell in zip(steps(len(cells)), cells, strict=True))
        city = imported(files, put(tmp_path, "r.csv", "time;node_id;value\n" + rows), quantity="speed")
        return np.round(city.stream.values[:, 0].astype(np.float64), 3).tolist()

    with raises(CityError, "r.csv line 3", "value"):
        values("987", "1.234", "12")
    assert values("987", "1.234", "12.5") == [987, 1.234, 12.5]
    assert values("987.000", "1.234", "12.500") == [987, 1.234, 12.5]
    assert values("987", "1.234", "1,5") == [987, 1234, 1.5]


def test_lengths_in_kilometres_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    roads = "A,B,0.73\nB,C,0.725\nC,B,0.725\nB,A,0.73\nB,D,{}\n"
    path = put(tmp_path, "e.csv", "source,target,length\n" + roads.format(1.112))
    with raises(CityError, '"A" to "B"', "0.73 m", "721 m", "length_km"):
        import_tables(nodes=files["nodes.csv"], edges=path)
    path = put(tmp_path, "e.csv", "source,target,length_km\n" + roads.format(1.112))
    assert import_tables(nodes=files["nodes.csv"], edges=path).network.length_m.max() == pytest.approx(1112)
    one = EDGES.replace("A,B,730", "A,B,0.73")
    city = import_tables(nodes=files["nodes.csv"], edges=put(tmp_path, "e.csv", one))
    assert any("0.73 m" in notice for notice in city.notices)


@pytest.mark.parametrize("quantity", ["count", "speed"])
def test_a_detector_of_both_directions_reads_at_both(quantity: str, files: dict[str, Path], tmp_path: Path) -> None:
    readings = put(tmp_path, "r.csv", long_readings("sensor_id"))
    places = {
        "point": "sensor_id,lon,lat,bearing\nA,6.105,49.6001,both\nC,6.115,49.6,E\n",
        "ends": "sensor_id,source,target,direction\nA,A,B,two-way\nC,B,C,\n",
    }
    share = 0.5 if quantity == "count" else 1.0
    for name, text in places.items():
        sensors = put(tmp_path, f"{name}.csv", text)
        city = imported(files, readings, sensors=sensors, on="roads", quantity=quantity)
        assert city.network.node_ids[city.stream.sensors].tolist() == ["A>B", "B>C", "B>A"], name
        for road in ("A>B", "B>A"):
            np.testing.assert_array_equal(city.stream.values[:, city.network.row_of(road)], share * np.arange(6))
        assert sum("both directions of a road" in notice for notice in city.notices) == 1
        assert city.detectors.names.tolist() == ["A", "C", "A"]
    oneway = put(tmp_path, "oneway.csv", "sensor_id,source,target,direction\nA,D,A,both\nC,B,C,\n")
    city = imported(files, readings, sensors=oneway, on="roads", quantity=quantity)
    np.testing.assert_array_equal(city.stream.values[:, city.network.row_of("D>A")], range(6))  # it has one direction


def test_parallel_roads_are_nodes_of_their_own_on_roads(tmp_path: Path) -> None:
    edges = put(
        tmp_path,
        "e.csv",
        "link_id,source,target,length_m,wkt\n"
        'near,1,2,800,"LINESTRING(6.1 49.6,6.11 49.6)"\nfar,1,2,2500,"LINESTRING(6.1 49.6,6.105 49.61,6.11 49.6)"\n'
        'back,2,1,800,"LINESTRING(6.11 49.6,6.1 49.6)"\n',
    )
    rows = [f"{t:%Y-%m-%dT%H:%MZ},{s},{v}" for t in steps(3) for s, v in (("near", 1), ("far", 2))]
    readings = put(tmp_path, "r.csv", "\n".join(["time,road_id,value", *rows]) + "\n")
    city = import_tables(edges=edges, readings=readings, on="roads")
    assert city.network.node_ids.tolist() == ["1>2", "1>2#2", "2>1"]
    np.testing.assert_array_equal(city.stream.values[0], [1, 2, 0])
    assert not any("Parallel" in notice for notice in city.notices)
    point = put(tmp_path, "p.csv", readings.read_text().replace("road_id", "sensor_id"))
    sensors = put(tmp_path, "s.csv", "sensor_id,lon,lat\nfar,6.105,49.6101\nnear,6.102,49.6041\n")
    found = import_tables(edges=edges, readings=point, sensors=sensors, on="roads", snap_m=100)
    assert found.network.node_ids[found.stream.sensors].tolist() == ["1>2#2"]
    ends = put(tmp_path, "ends.csv", "sensor_id,source,target\nfar,1,2\nnear,1,2\n")
    with raises(CityError, "1>2 or 1>2#2", "node_id"):
        import_tables(edges=edges, readings=point, sensors=ends, on="roads")
    on_nodes = import_tables(edges=edges)
    assert on_nodes.network.num_edges == 2
    assert on_nodes.network.length_m.tolist() == [800, 800]


def test_lines_above_the_names_of_the_columns_are_left_out(files: dict[str, Path], tmp_path: Path) -> None:
    plain = files["readings.csv"].read_text()
    for k, above in enumerate(("Counts of the city\n", "# made by hand\n\nPeriod:;2024\n", '"A, title",\n\n')):
        readings = put(tmp_path, f"r{k}.csv", above + plain)
        city = imported(files, readings)
        np.testing.assert_array_equal(city.stream.values, imported(files, files["readings.csv"]).stream.values)
        lines = above.count("\n")
        assert f"Lines of r{k}.csv above the header, left out: {lines}." in city.notices
        report = tmp_path / "report.csv"
        for node in ("A", '"A"'):  # quoted, lines are counted row by row
            wrong = put(tmp_path, f"w{k}.csv", above + plain + f"2024-01-15T00:00Z,{node},many\n")
            imported(files, wrong, report=report)
            assert rows_of(report)[0]["line"] == str(lines + len(plain.splitlines()) + 1)
        semicolons = put(tmp_path, f"s{k}.csv", above + plain.replace(",", ";"))
        np.testing.assert_array_equal(imported(files, semicolons).stream.values, city.stream.values)
    assert not any("above the header" in notice for notice in imported(files, files["readings.csv"]).notices)


def test_a_title_padded_with_separators_is_no_header(files: dict[str, Path], tmp_path: Path) -> None:
    plain = files["readings.csv"].read_text().replace(",", ";")
    columns = plain.splitlines()[0].count(";") + 1
    assert columns == 3
    titles = ("Traffic counts", "Period:", "", '"Office; of roads"')
    padded = "".join(title + ";" * (columns - 1) + "\n" for title in titles)
    wanted = imported(files, files["readings.csv"]).stream.values
    city = imported(files, put(tmp_path, "p.csv", padded + plain))
    np.testing.assert_array_equal(city.stream.values, wanted)
    assert "Lines of p.csv above the header, left out: 4." in city.notices
    index = "".join(f"{i};{row}\n" for i, row in enumerate(plain.splitlines()[1:]))  # as pandas writes it
    city = imported(files, put(tmp_path, "i.csv", "Traffic counts;;;\n;" + plain.splitlines()[0] + "\n" + index))
    np.testing.assert_array_equal(city.stream.values, wanted)
    # Rows that are mostly empty are no titles where they follow the header.
    long = ";".join(["time", *"ABCD"]) + "\n" + "".join(f"2024-01-15T{h:02}:00Z;{h};;;\n" for h in range(24))
    city = imported(files, put(tmp_path, "e.csv", long))
    assert city.stream.values[:, 0].tolist() == list(range(24))
    assert not any("above the header" in notice for notice in city.notices)


def test_columns_are_known_in_other_languages_and_with_their_unit(files: dict[str, Path], tmp_path: Path) -> None:
    wanted = imported(files, files["readings.csv"]).stream.values
    plain = files["readings.csv"].read_text()
    for header in (
        "Zeitpunkt,Knoten,Verkehrsstärke [Kfz/h]",
        "Date et heure de comptage,nœud,Débit horaire",
        "Date Time,Node ID,Count (veh/h)",
    ):
        readings = put(tmp_path, "r.csv", plain.replace("time,node_id,value", header))
        rename = {"nœud": "node_id"} if "nœud" in header else {}
        np.testing.assert_array_equal(imported(files, readings, rename=rename).stream.values, wanted)
    speeds = put(tmp_path, "s.csv", plain.replace("time,node_id,value", "Zeit,Knoten,Geschwindigkeit [km/h]"))
    with raises(CityError, "s.csv", "Geschwindigkeit [km/h]", "--quantity speed"):
        imported(files, speeds)
    for header, kph in (("speed_limit_kmh", 30), ("Speed limit (mph)", 48.28032), ("Tempolimit [km/h]", 30)):
        rows = [row.rpartition(",") for row in EDGES.splitlines()]
        columns = [header, *["30"] * (len(rows) - 1)]
        lines = [f"{row},{more},{last}" for (row, _, last), more in zip(rows, columns, strict=True)]
        edges = put(tmp_path, "e.csv", "\n".join(lines) + "\n")
        roads = import_tables(nodes=files["nodes.csv"], edges=edges).network.edges
        np.testing.assert_allclose(roads.speed_kph, kph, rtol=1e-6)


def test_nodes_have_street_names_of_their_own(files: dict[str, Path], tmp_path: Path) -> None:
    named = NODES.replace("lat", "lat,Street").replace("49.60\n", "49.60,Fort\n", 1).replace("49.60\n", "49.60,\n")
    nodes = put(tmp_path, "n.csv", named.replace("49.61\n", "49.61,=Mill\n"))
    edges = put(tmp_path, "e.csv", EDGES.replace("direction", "direction,name").replace("both\n", "both,High\n"))
    edges.write_text(edges.read_text().replace("forward\n", "forward,\n"))
    city = import_tables(nodes=nodes, edges=edges, readings=files["readings.csv"])
    assert city.network.streets.tolist() == ["Fort", "High", "High", "=Mill"]
    for csv_tables in (False, True):
        write_city(city, tmp_path / f"city{csv_tables}", csv=csv_tables)
        for _ in range(2):  # from the tables, from the cache
            read = read_city(tmp_path / f"city{csv_tables}")
            assert read.network.streets.tolist() == city.network.streets.tolist()
    folder = tmp_path / "cityTrue"
    put(folder, "changes.csv", "time,action,node_id,lon,lat\n2024-01-15T00:10Z,add_node,E,6.13,49.6\n")
    assert read_city(folder).network.streets.tolist() == ["Fort", "High", "High", "=Mill", ""]
    more = city.network.add(nodes=[("E", 6.13, 49.6)], roads=[("C", "E"), ("E", "C")])
    assert more.streets.tolist() == [*city.network.streets.tolist(), ""]
    on = import_tables(network=city, on="roads").network  # a road has its own name, not those that turns lead to
    assert dict(zip(on.node_ids.tolist(), on.streets.tolist(), strict=True)) == {
        **dict.fromkeys(("A>B", "B>A", "B>C", "C>B", "B>D", "D>B"), "High"),
        "D>A": "",
    }


def test_each_file_has_its_own_encoding(files: dict[str, Path], tmp_path: Path) -> None:
    nodes = put(tmp_path, "n.csv", files["nodes.csv"].read_text().replace("A,", "Ä,").encode("latin-1"))
    edges = put(tmp_path, "e.csv", files["edges.csv"].read_text().replace("A", "Ä"))
    readings = put(tmp_path, "r.csv", files["readings.csv"].read_text().replace("A", "Ä").encode("utf-16"))
    with raises(CityError, "n.csv line 2", "0xc4", "--encoding latin-1"):
        import_tables(nodes=nodes, edges=edges)
    assert "Ä" in import_tables(nodes=nodes, edges=edges, encoding="latin-1").network.node_ids
    city = import_tables(nodes=nodes, edges=edges, readings=readings, encoding="latin-1")
    np.testing.assert_array_equal(city.stream.values, imported(files, files["readings.csv"]).stream.values)


def test_a_sheet_of_excel_is_a_table(files: dict[str, Path], tmp_path: Path) -> None:
    frame = pl.read_csv(files["readings.csv"], try_parse_dates=True)
    frame = frame.with_columns(pl.col("time").dt.replace_time_zone(None))
    xlsx = tmp_path / "r.xlsx"
    frame.write_excel(xlsx, position="A3")  # two empty rows above
    plain = imported(files, files["readings.csv"])
    np.testing.assert_array_equal(imported(files, xlsx, timezone="UTC").stream.values, plain.stream.values)
    split = frame.with_columns(date=pl.col("time").dt.date(), time=pl.col("time").dt.time())
    split.write_excel(xlsx)
    np.testing.assert_array_equal(imported(files, xlsx, timezone="UTC").stream.values, plain.stream.values)
    put(tmp_path, "broken.xlsx", xlsx.read_bytes()[:900])
    with raises(CityError, "broken.xlsx", "damaged"):
        imported(files, tmp_path / "broken.xlsx")
    pl.DataFrame().write_excel(tmp_path / "empty.xlsx")
    with raises(CityError, "empty.xlsx", "no sheet with rows"):
        imported(files, tmp_path / "empty.xlsx")
