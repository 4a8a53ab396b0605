"""LibCity's atomic files: read, written, and the same again."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frigate.city.city import City
from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import make_stream
from frigate.errors import CityError
from frigate.sources.benchmarks.importer import import_benchmark
from frigate.sources.benchmarks.libcity_export import export_libcity
from tests.support.benchmark_files import IDS, SPEEDS, edges_of, write_libcity
from tests.support.errors import raises


def city_of(
    seed: int, *, text: bool, snapshots: int, quantity: str = "count", timezone: str = "Europe/Luxembourg"
) -> City:
    """A city with gaps, zeros, road attributes and ids of one kind."""
    rng = np.random.default_rng(seed)
    N = int(rng.integers(2, 6))
    ids = np.array([f"{n * 7}" for n in range(N)], np.str_) if text else np.arange(N) * 7
    ends = np.array([(a, b) for a in range(N) for b in range(N) if a != b and rng.random() < 0.7] or [(0, 1)])
    edges = Edges.of(
        ends[:, 0],
        ends[:, 1],
        rng.uniform(1, 5000, len(ends)),
        road_class=np.where(rng.random(len(ends)) < 0.5, "primary", ""),
        lanes=np.where(rng.random(len(ends)) < 0.5, 2.0, np.nan),
        name=np.where(rng.random(len(ends)) < 0.5, 'Rue "du, Lac"', ""),
    )
    network = RoadNetwork(ids, rng.uniform(-180, 180, N), rng.uniform(-90, 90, N), edges)
    values = rng.integers(0, 3, (snapshots, N)).astype(np.float32) * rng.random((snapshots, N)).astype(np.float32)
    observed = rng.random((snapshots, N)) < 0.6
    step_s = 300
    start_s = 1_711_839_600  # 2024-03-31, the night on which clocks go on
    stream = make_stream(
        values,
        network,
        start_s=start_s,
        step_s=step_s,
        observed=observed,
        timezone=timezone,
        quantity=quantity,
        unit="vehicles",
    )
    return City("A town, by Lac", stream)


def assert_same(a: City, b: City) -> None:
    for name in ("values", "observed", "utc_offset_s"):
        np.testing.assert_array_equal(getattr(a.stream, name), getattr(b.stream, name))
    for name in ("step_s", "timezone", "quantity", "unit", "num_snapshots"):
        assert getattr(a.stream, name) == getattr(b.stream, name)
    if a.stream.num_snapshots:
        assert a.stream.start_s == b.stream.start_s
    for name in ("node_ids", "lon", "lat"):
        ours = getattr(a.network, name)
        theirs = getattr(b.network, name)
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype.kind == theirs.dtype.kind
    for field in fields(Edges):
        np.testing.assert_array_equal(getattr(a.network.edges, field.name), getattr(b.network.edges, field.name))
    assert a.name == b.name


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    text=st.booleans(),
    snapshots=st.sampled_from([0, 1, 2, 40]),
    quantity=st.sampled_from(["count", "speed", "Travel time"]),
)
def test_a_city_comes_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, seed: int, text: bool, snapshots: int, quantity: str
) -> None:
    folder = tmp_path_factory.mktemp("libcity") / "out"
    city = city_of(seed, text=text, snapshots=snapshots, quantity=quantity)
    assert export_libcity(city, folder) == ()
    assert_same(import_benchmark("libcity", files=folder), city)
    assert_same(import_benchmark("libcity", files=folder), city)


def test_libcity_reads_the_written_files(tmp_path: Path) -> None:
    """As LibCity loads it: ids in the order of .geo, the same times for each, values to be shaped by both."""
    city = city_of(3, text=False, snapshots=5)
    export_libcity(city, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    stem = config["info"]["geo_file"]
    feature = config["info"]["data_col"][0]
    assert (stem, feature) == ("A_town_by_Lac", "traffic_flow")
    geo = pd.read_csv(tmp_path / "out" / f"{stem}.geo")
    dyna = pd.read_csv(tmp_path / "out" / f"{stem}.dyna")
    rel = pd.read_csv(tmp_path / "out" / f"{stem}.rel")
    N = len(geo)
    S = 5
    assert dyna["dyna_id"].tolist() == list(range(N * S))
    assert dyna["entity_id"].tolist() == np.repeat(geo["geo_id"], S).tolist()
    assert len(set(dyna["time"][:S])) == S and dyna["time"][:S].tolist() * N == dyna["time"].tolist()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", dyna["time"][0])
    shaped = dyna[feature].to_numpy().reshape(N, S).T
    np.testing.assert_array_equal(np.isnan(shaped), ~city.stream.observed)
    np.testing.assert_allclose(np.nan_to_num(shaped), city.stream.values, rtol=1e-6)
    assert rel["origin_id"].isin(geo["geo_id"]).all() and (rel[config["info"]["weight_col"]] > 0).all()
    assert json.loads(geo["coordinates"][0]) == [city.network.lon[0], city.network.lat[0]]


def test_losses_in_libcitys_format_are_reported(tmp_path: Path) -> None:
    city = city_of(3, text=False, snapshots=4)
    network = city.network
    road = (network.node_ids[network.senders[0]].item(), network.node_ids[network.receivers[0]].item())
    stream = make_stream(
        city.stream.values,
        [network, network.close([road])],
        start_s=0,
        step_s=300,
        network_of=np.array([0, 0, 1, 1]),
    )
    told = export_libcity(City("t", stream, forbidden_turns=np.array([[0, 1, 2]])), tmp_path / "out")
    assert told == (
        "Networks over time, of which LibCity stores only the last: 2.",
        "Closed roads, which LibCity cannot store: 1.",
        "Forbidden turns, which LibCity cannot store: 1.",
    )
    assert import_benchmark("libcity", files=tmp_path / "out").network.num_edges == network.num_edges - 1


def test_only_atomic_files_are_replaced(tmp_path: Path) -> None:
    city = city_of(1, text=False, snapshots=2)
    export_libcity(city, tmp_path / "out")
    export_libcity(city_of(2, text=False, snapshots=2), tmp_path / "out")
    assert_same(import_benchmark("libcity", files=tmp_path / "out"), city_of(2, text=False, snapshots=2))
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with raises(CityError, "thesis.tex"):
        export_libcity(city, tmp_path / "out")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("name", ["package.json", "notes.geojson", "config.json.bak", "Town.geo"])
def test_files_of_others_stay_where_atomic_files_are_written(name: str, tmp_path: Path) -> None:
    city = city_of(1, text=False, snapshots=2)
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).write_text("mine")
    with raises(CityError, name):
        export_libcity(city, folder)
    if name.endswith(".geo"):  # an atomic file, but not ours
        export_libcity(city, folder, overwrite=True)
        assert_same(import_benchmark("libcity", files=folder), city)
        return
    with raises(CityError, name):
        export_libcity(city, folder, overwrite=True)
    assert (folder / name).read_text() == "mine"


def test_files_of_others(tmp_path: Path) -> None:
    city = import_benchmark("libcity", files=write_libcity(tmp_path))
    assert (city.name, city.stream.quantity, city.stream.step_s) == ("LA", "speed", 300)
    np.testing.assert_array_equal(city.stream.values, SPEEDS.astype(np.float32))
    assert city.stream.observed.all()
    assert city.stream.local_time(city.stream.start_s) == "2012-03-01T00:00:00+00:00"
    assert any(n.startswith("Zeros kept as readings of 0") and n.endswith(": 2.") for n in city.notices)
    assert any(n.startswith("Times read as UTC") for n in city.notices)
    assert edges_of(city)["767541", "767542"] == 30
    local = import_benchmark("libcity", files=tmp_path, timezone="America/Los_Angeles", zeros="missing")
    assert local.stream.local_time(local.stream.start_s) == "2012-03-01T00:00:00-08:00"
    np.testing.assert_array_equal(local.stream.observed, SPEEDS != 0)


def edit(folder: Path, name: str, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, (folder / name).read_text())
    assert count
    (folder / name).write_text(text)


def test_nodes_without_places_get_invented_ones(tmp_path: Path) -> None:
    edit(write_libcity(tmp_path), "LA.geo", r'"\[.*\]"', "[]")
    city = import_benchmark("libcity", files=tmp_path)
    assert any(n.startswith("Coordinates invented") for n in city.notices)
    assert np.isfinite(city.network.lon).all() and edges_of(city)["767541", "767542"] == 30
    edit(tmp_path, "LA.rel", "cost", "link_weight")
    assert set(edges_of(import_benchmark("libcity", files=tmp_path)).values()) == {1000.0}


def test_a_line_is_a_node_at_its_middle(tmp_path: Path) -> None:
    line = '"[[-118.0, 34.0], [-118.2, 34.2]]"'
    edit(write_libcity(tmp_path), "LA.geo", r'(773869),Point,"\[.*\]"', rf"\1,LineString,{line}")
    city = import_benchmark("libcity", files=tmp_path)
    assert (city.network.lon[0], city.network.lat[0]) == pytest.approx((-118.1, 34.1))
    assert any(n.startswith("Lines and areas, taken as nodes at the middle of their points: 1") for n in city.notices)


def test_rows_in_any_order_and_twice(tmp_path: Path) -> None:
    folder = write_libcity(tmp_path)
    header, *rows = (folder / "LA.dyna").read_text().splitlines()
    again = rows[0].rsplit(",", 1)[0] + ",11.5"
    (folder / "LA.dyna").write_text("\n".join([header, *rows[::-1], again]) + "\n")
    stream = import_benchmark("libcity", files=folder).stream
    assert stream.values[0, 0] == 11.5
    np.testing.assert_array_equal(stream.values[1:], SPEEDS[1:].astype(np.float32))


@pytest.mark.parametrize(
    ("name", "pattern", "new", "named"),
    [
        ("LA.geo", r'"\[-118.31829, 34.15497\]"', '"[34.15497, -118.31829]"', ("LA.geo line 2", "swapped")),
        ("LA.geo", r'"\[-118.31829, 34.15497\]"', '"[x]"', ("LA.geo line 2", "coordinates", "'[x]'")),
        ("LA.geo", r'"\[-118.31829, 34.15497\]"', "[]", ("LA.geo", "coordinates are empty")),
        ("LA.geo", "767541", "773869", ("LA.geo line 3", 'geo_id "773869"')),
        ("LA.geo", "coordinates", "where", ("LA.geo", "column coordinates")),
        ("LA.rel", "0,geo,773869", "0,geo,1", ("LA.rel line 2", 'source "1"')),
        ("LA.dyna", "traffic_speed", "wind", ("LA.dyna", '"traffic_speed"')),
        ("LA.dyna", "entity_id", "who", ("LA.dyna", "column entity_id")),
        ("LA.dyna", "2012-03-01T00:05:00Z", "noon", ("LA.dyna line", '"noon"')),
        ("LA.dyna", r"Z,\d+", "Z,5", ("LA.dyna line", "12 of 12")),
        ("config.json", "{", "[", ("config.json", "damaged", "line 1")),
    ],
)
def test_wrong_files_say_where(tmp_path: Path, name: str, pattern: str, new: str, named: tuple[str, ...]) -> None:
    edit(write_libcity(tmp_path), name, pattern, new)
    with raises(CityError, *named):
        import_benchmark("libcity", files=tmp_path)


def test_two_data_sets_in_a_folder_have_to_be_named(tmp_path: Path) -> None:
    folder = write_libcity(tmp_path)
    (folder / "SF.geo").write_text((folder / "LA.geo").read_text())
    with raises(CityError, "*.geo", "LA.geo, SF.geo"):
        import_benchmark("libcity", files=folder)
    files = {part: folder / f"LA.{part}" for part in ("geo", "rel", "dyna")}
    assert [str(x) for x in import_benchmark("libcity", files=files).stream.node_ids.tolist()] == IDS
