"""A city on disk: what is written comes back, from Parquet, CSV and the cache, with its changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frigate.check.city import check_city
from frigate.city.city import City
from frigate.city.folder import open_cache, open_city, read_city, write_city
from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.errors import CityError
from frigate.roads.betweenness import whole_betweenness
from frigate.roads.feature_cache import ensure_road_features, maps
from tests.support.errors import raises
from tests.support.shared_data import shared_data
from tests.support.towns import random_network, random_stream

START_S = 1_704_067_200  # Monday 2024-01-01, UTC


def ring(count: int = 5) -> RoadNetwork:
    """A ring of streets, both ways."""
    a = np.arange(count)
    b = (np.arange(count) + 1) % count
    angle = 2 * np.pi * a / count
    edges = Edges.of(
        np.concatenate([a, b]),
        np.concatenate([b, a]),
        np.linspace(50, 150, 2 * count),
        road_class=["primary", *[""] * (2 * count - 1)],
        lanes=[2.0, *[np.nan] * (2 * count - 1)],
        name=['High "St", east', *[""] * (2 * count - 1)],
        geometry=[b"\x01\x02\x00", *[b""] * (2 * count - 1)],
    )
    return RoadNetwork(a + 100, 6.1 + 0.001 * np.cos(angle), 49.6 + 0.001 * np.sin(angle), edges)


def changing_stream() -> RoadNetworkStream:
    base = ring()
    closed = base.close([(100, 101), (101, 100)])
    without = closed.remove_nodes([103])
    grown = base.add(roads=[(100, 102)], length_m=[70.0], road_class=["service"])
    values = np.random.default_rng(0).poisson(3, (8, 5)).astype(float)
    values[2, 1] = np.nan
    return make_stream(
        values,
        (base, closed, without, grown),
        start_s=START_S,
        step_s=300,
        network_of=np.array([0, 1, 1, 0, 2, 2, 3, 0]),
        timezone="Europe/Luxembourg",
        unit="veh",
    )


def assert_same_roads(a: RoadNetwork, b: RoadNetwork) -> None:
    order_a, order_b = (np.lexsort((n.receivers, n.senders)) for n in (a, b))
    for f in fields(Edges):
        left = getattr(a.edges, f.name)[order_a]
        right = getattr(b.edges, f.name)[order_b]
        np.testing.assert_array_equal(left, right, err_msg=f.name)
    assert a.fingerprint == b.fingerprint


def assert_same_stream(a: RoadNetworkStream, b: RoadNetworkStream) -> None:
    np.testing.assert_array_equal(a.values, b.values)
    np.testing.assert_array_equal(a.observed, b.observed)
    np.testing.assert_array_equal(a.utc_offset_s, b.utc_offset_s)
    np.testing.assert_array_equal(a.node_ids, b.node_ids)
    assert a.node_ids.dtype.kind == b.node_ids.dtype.kind
    for name in ("start_s", "step_s", "timezone", "quantity", "unit"):
        assert getattr(a, name) == getattr(b, name)
    for i, j in zip(a.network_of, b.network_of, strict=True):
        assert_same_roads(a.networks[i], b.networks[j])


@pytest.mark.parametrize("csv", [False, True])
def test_written_values_are_read_back(tmp_path: Path, csv: bool) -> None:
    city = City('Ring "A"', changing_stream())
    write_city(city, tmp_path / "ring", csv=csv)
    assert (tmp_path / "ring" / f"readings.{'csv' if csv else 'parquet'}").exists()
    plain, fresh, cached = (read_city(tmp_path / "ring", cache=cache) for cache in (False, True, True))
    for back in (plain, fresh, cached, open_cache(tmp_path / "ring" / "cache"), open_city(tmp_path / "ring")):
        assert back.name == city.name
        assert_same_stream(back.stream, city.stream)
        assert back.notices == plain.notices
    assert len(plain.stream.networks) == 4
    assert os.listdir(tmp_path) == ["ring"]  # nothing is left beside


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=6)
numbers_as_text = st.integers(-999, 999).map(str)


@st.composite
def cities(draw: st.DrawFn) -> City:
    kind = draw(st.sampled_from([st.integers(-(2**40), 2**40), names, numbers_as_text]))
    ids = np.array(draw(st.lists(kind, min_size=2, max_size=5, unique=True)))
    N = len(ids)
    pairs = [(a, b) for a in range(N) for b in range(N) if a != b]
    chosen = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=8, unique=True))
    metres = st.floats(0.01, 1e5)
    word = st.one_of(st.just(""), names)
    maybe = st.one_of(st.just(np.nan), st.floats(0.1, 200))

    def several(element: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(element, min_size=len(chosen), max_size=len(chosen)))

    geometry = np.empty(len(chosen), np.object_)
    geometry[:] = several(st.binary(max_size=5))
    edges = Edges.of(
        [a for a, _ in chosen],
        [b for _, b in chosen],
        several(metres),
        road_class=several(word),
        lanes=several(maybe),
        speed_kph=several(maybe),
        name=several(word),
        geometry=geometry,
    )
    degrees = st.floats(-89, 89)
    lon, lat = (np.array(draw(st.lists(degrees, min_size=N, max_size=N))) for _ in "ab")
    base = RoadNetwork(ids, lon, lat, edges)
    networks = [base]
    listed = [(ids[a].item(), ids[b].item()) for a, b in chosen]
    for _ in range(draw(st.integers(0, 2))):
        node = ids[draw(st.integers(0, N - 1))].item()
        how = draw(st.sampled_from(["remove", "close the node", "close roads"]))
        if how == "remove":
            other = base.remove_nodes([node])
        else:
            other = base.close_nodes([node]) if how == "close the node" else base
            other = other.close(draw(st.lists(st.sampled_from(listed), min_size=how == "close roads", unique=True)))
        if other.num_edges:  # a city without any road is refused
            networks.append(other)
    S = draw(st.integers(1, 6))
    which = np.array(draw(st.lists(st.integers(0, len(networks) - 1), min_size=S, max_size=S)))
    cell = st.one_of(st.just(np.nan), st.floats(0, 1e6, width=32))
    values = np.array(draw(st.lists(cell, min_size=S * N, max_size=S * N))).reshape(S, N)
    step_s = draw(st.sampled_from([1, 60, 300, 3600, 86_400]))
    quantity = draw(st.sampled_from(["count", "speed"]))
    stream = make_stream(
        values, networks, start_s=START_S, step_s=step_s, network_of=which, quantity=quantity, unit=draw(word)
    )
    return City(draw(names), stream)


@given(cities(), st.booleans())
@settings(max_examples=40)
def test_any_city_comes_back(city: City, csv: bool) -> None:
    # The stream on disk runs from the first reading to the last, and a network that no snapshot shows is not kept.
    seen = np.flatnonzero(city.stream.observed.any(axis=1))
    with TemporaryDirectory() as folder:
        write_city(city, Path(folder) / "c", csv=csv)
        plain = read_city(Path(folder) / "c", cache=False)
        cached = None
        read_city(Path(folder) / "c")
        cached = open_cache(Path(folder) / "c")
        assert plain.name == cached.name == city.name
        if not len(seen):
            assert plain.stream.num_snapshots == 0
            assert "no sensor" in " ".join(plain.notices)
            return
        expected = city.stream.slice(int(seen[0]), int(seen[-1]) + 1)
        for back in (plain, cached):
            assert_same_stream(back.stream, expected)


def test_a_closed_road_can_be_reopened_after_reading(tmp_path: Path) -> None:
    base = ring()
    shut = base.close([(100, 101)])
    write_city(City("c", make_stream(np.ones((2, 5)), shut, start_s=START_S, step_s=300)), tmp_path / "c")
    back = read_city(tmp_path / "c").network
    assert_same_roads(back, shut)
    assert_same_roads(back.reopen([(100, 101)]), base)


@pytest.mark.parametrize("csv", [False, True])
def test_forbidden_turns_come_back(tmp_path: Path, csv: bool) -> None:
    turns = np.array([[0, 1, 2], [4, 0, 4], [1, 0, 2]])  # the last enters a road that is opened later
    folder = tmp_path / "ring"
    write_city(City("Ring", changing_stream(), forbidden_turns=turns), folder, csv=csv)
    for back in (read_city(folder, cache=False), read_city(folder), read_city(folder), open_cache(folder / "cache")):
        np.testing.assert_array_equal(back.forbidden_turns, turns)
        assert back.forbidden_turns.dtype == np.int64
    (folder / "cache" / "forbidden_turns.npy").unlink()
    with raises(CityError, "cache"):
        open_cache(folder / "cache")
    write_city(City("Ring", changing_stream()), folder, csv=csv)
    assert not list(folder.glob("turns.*"))
    assert read_city(folder).forbidden_turns.shape == (0, 3)


def test_a_cache_follows_the_turns(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "c")
    assert read_city(folder).forbidden_turns.shape == open_cache(folder).forbidden_turns.shape == (0, 3)
    (folder / "turns.csv").write_text("source,via,target\n1,2,3\n")
    with raises(CityError, "changed", "cache"):
        open_cache(folder)
    assert read_city(folder).forbidden_turns.tolist() == open_cache(folder).forbidden_turns.tolist() == [[0, 1, 2]]


def test_forbidden_turns_are_checked(tmp_path: Path) -> None:
    rows = "source,via,target\n1,2,3\n2,1,3\n1,2,3\n3,2,1\n"
    city = read_city(write_tables(tmp_path / "c", turns__csv=rows))
    assert city.forbidden_turns.tolist() == [[0, 1, 2]]
    said = "\n".join(city.notices)
    assert "one of their roads is not in the network: 2 (first: turns.csv line 3, source 2, via 1, target 3)." in said
    assert "Forbidden turns named again, taken once: 1 (first: turns.csv line 4," in said
    for text, named in (
        ("source,via,target\n1,2,9\n", ("turns.csv line 2", 'target "9"')),
        ("source,via,target\n1,,3\n", ("turns.csv line 2", "via", "empty")),
        ("source,over,target\n1,2,3\n", ("turns.csv", "column via")),
    ):
        with raises(CityError, *named):
            read_city(write_tables(tmp_path / "c", turns__csv=text))
    assert read_city(write_tables(tmp_path / "c", turns__csv="source,via,target\n")).forbidden_turns.shape == (0, 3)
    (tmp_path / "c" / "turns.parquet").write_bytes(b"")
    with raises(CityError, "turns.parquet", "turns.csv"):
        read_city(tmp_path / "c")


def write_tables(folder: Path, **tables: str) -> Path:
    folder.mkdir(exist_ok=True)
    defaults = {
        "city.toml": 'step = "5min"\n',
        "nodes.csv": "node_id,lon,lat\n1,6.1,49.6\n2,6.11,49.6\n3,6.12,49.6\n",
        "edges.csv": "source,target,length_m\n1,2,100\n2,3,\n3,1,300\n",
        "readings.csv": "time,node_id,value\n2024-01-01T00:00Z,1,4\n2024-01-01T00:20Z,2,5\n",
    }
    for name, text in (defaults | {k.replace("__", "."): v for k, v in tables.items()}).items():
        (folder / name).write_text(text)
    return folder


def test_a_missing_length_is_the_straight_distance(tmp_path: Path) -> None:
    network = read_city(write_tables(tmp_path / "c")).network
    assert network.length_m[0] == 100
    assert network.length_m[1] == pytest.approx(720.7, abs=1)


def test_readings_at_any_time_go_to_their_snapshot(tmp_path: Path) -> None:
    readings = (
        "time,node_id,value\n2024-01-01T00:07:10Z,1,4\n1704067799.5,1,2\n2024-01-01T01:14:59.999+01:00,2,7\n"
        "2024-01-01T00:15Z,2,1\n"
    )
    counts = read_city(write_tables(tmp_path / "c", readings__csv=readings)).stream
    assert counts.start_s == START_S + 300
    np.testing.assert_array_equal(counts.values, [[6, 0, 0], [0, 7, 0], [0, 1, 0]])
    gauge = 'step = "5min"\nquantity = "speed"\n'
    speeds = read_city(write_tables(tmp_path / "c", readings__csv=readings, city__toml=gauge)).stream
    np.testing.assert_array_equal(speeds.values, [[2, 0, 0], [0, 7, 0], [0, 1, 0]])  # the latest stands


def test_a_change_holds_from_the_snapshot_that_starts_at_it_or_later(tmp_path: Path) -> None:
    changes = (
        "time,action,source,target,node_id,lon,lat,length_m\n"
        "2024-01-01T00:05Z,close,1,2,,,,\n"
        "2024-01-01T00:11Z,open,1,2,,,,\n"
        "2024-01-01T00:15Z,add_node,,,9,6.13,49.6,\n"
        "2024-01-01T00:15Z,add_edge,3,9,,,,55\n"
    )
    stream = read_city(write_tables(tmp_path / "c", changes__csv=changes)).stream
    assert stream.network_of.tolist() == [0, 1, 1, 2, 2]  # 00:11 is first in force at 00:15
    assert [t.num_edges for t in stream.networks] == [3, 2, 4]
    assert stream.node_ids.tolist() == [1, 2, 3, 9]
    assert [bool(t.present[3]) for t in stream.networks] == [False, False, True]


def test_a_node_added_later_lies_where_its_change_says(tmp_path: Path) -> None:
    changes = (
        "time,action,node_id,lon,lat\n"
        "2024-01-01T00:15Z,add_node,9,6.13,49.71\n"
        "2024-01-01T00:05Z,add_node,8,-6.5,-41.25\n"
        "2024-01-01T00:10Z,remove_node,8,,\n"
        "2024-01-01T00:20Z,add_node,8,1,2\n"  # it comes back where it was
    )
    stream = read_city(write_tables(tmp_path / "c", changes__csv=changes)).stream
    for network in stream.networks:
        assert network.node_ids.tolist() == [1, 2, 3, 9, 8]
        assert network.lon.tolist() == [6.1, 6.11, 6.12, 6.13, -6.5]
        assert network.lat.tolist() == [49.6, 49.6, 49.6, 49.71, -41.25]
    present = np.stack([network.present for network in stream.networks])[stream.network_of]
    assert present[:, 3].tolist() == [False, False, False, True, True]
    assert present[:, 4].tolist() == [False, True, False, False, True]


def test_a_road_closed_and_opened_again_gives_back_the_first_network(tmp_path: Path) -> None:
    changes = "time,action,source,target\n2024-01-01T00:05Z,close,1,2\n2024-01-01T00:10Z,open,1,2\n"
    stream = read_city(write_tables(tmp_path / "c", changes__csv=changes)).stream
    assert len(stream.networks) == 2
    assert stream.network_of.tolist() == [0, 1, 0, 0, 0]


def test_a_node_is_closed_and_opened_by_one_row_each(tmp_path: Path) -> None:
    """A crossing, or a road in a city on roads. What was closed for another reason stays closed."""
    changes = (
        "time,action,source,target,node_id\n"
        "2024-01-01T00:05Z,close,,,2\n"
        "2024-01-01T00:05Z,close,2,3,\n"  # works behind a crossing that is closed already
        "2024-01-01T00:10Z,close,,,1\n"
        "2024-01-01T00:15Z,open,,,2\n"
        "2024-01-01T00:20Z,open,,,1\n"
        "2024-01-01T00:20Z,open,2,3,\n"
    )
    folder = write_tables(tmp_path / "c", changes__csv=changes)
    stream = read_city(folder).stream
    open_roads = [
        sorted(zip(n.senders.tolist(), n.receivers.tolist(), strict=True))
        for n in (stream.networks[k] for k in stream.network_of.tolist())
    ]
    every = open_roads[0]
    at_2 = [road for road in every if 1 in road]
    assert at_2
    assert open_roads[1] == [road for road in every if road not in at_2]
    assert open_roads[2] == [road for road in open_roads[1] if 0 not in road]
    assert open_roads[3] == [road for road in every if 0 not in road and road != (1, 2)]
    assert open_roads[4] == every
    assert all(network.present.all() for network in stream.networks)
    write_city(read_city(folder), tmp_path / "again")
    again = read_city(tmp_path / "again").stream
    assert_same_stream(again, stream)
    for one, other in zip(stream.networks, again.networks, strict=True):
        np.testing.assert_array_equal(one.passable, other.passable)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("00:05Z,close,,,2\n2024-01-01T00:10Z,close,,,2", ("row 2", '"2"', "already closed")),
        ("00:05Z,open,,,2", ("row 1", '"2"', "was not closed")),
        ("00:05Z,close,1,2,2", ("row 1", "a node and a road")),
        ("00:05Z,close,,,", ("row 1", "source", "empty")),
        ("00:05Z,close,,,7", ("row 1", '"7"', "not in the network")),
    ],
)
def test_a_node_that_cannot_be_closed_or_opened_is_named(tmp_path: Path, rows: str, told: tuple[str, ...]) -> None:
    changes = f"time,action,source,target,node_id\n2024-01-01T{rows}\n"
    with raises(CityError, "changes.csv", *(word.replace("row", "line") for word in told[1:])):
        read_city(write_tables(tmp_path / "c", changes__csv=changes))


def test_snapshots_begin_at_whole_steps_from_local_midnight(tmp_path: Path) -> None:
    toml = 'step = "1h"\ntimezone = "Asia/Kolkata"\n'  # half an hour off UTC
    stream = read_city(write_tables(tmp_path / "c", city__toml=toml)).stream
    assert stream.local_time(stream.start_s) == "2024-01-01T05:00:00+05:30"


def test_the_cache_follows_the_tables(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "c")
    assert read_city(folder).stream.values[0, 0] == 4
    (folder / "readings.csv").write_text("time,node_id,value\n2024-01-01T00:00Z,1,9\n2024-01-01T00:20Z,2,5\n")
    with raises(CityError, "changed", "cache"):
        open_cache(folder)
    assert read_city(folder).stream.values[0, 0] == 9
    assert open_cache(folder).stream.values[0, 0] == 9


@pytest.mark.parametrize("damage", ["cache.json", "values.npy", "roads.npy"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, damage: str) -> None:
    folder = write_tables(tmp_path / "c")
    whole = read_city(folder, cache=False)  # in memory: a cached stream is the file that is damaged here
    read_city(folder)
    file = folder / "cache" / damage
    file.write_bytes(file.read_bytes()[:-7])
    with raises(CityError, "cache"):
        open_cache(folder)
    assert_same_stream(read_city(folder).stream, whole.stream)
    assert_same_stream(open_cache(folder).stream, whole.stream)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "c")
    (folder / "cache").write_text("a file where the cache would be")
    assert read_city(folder).stream.values[0, 0] == 4


def test_the_cache_opens_with_numpy_alone(tmp_path: Path) -> None:
    write_city(City("ring", changing_stream()), tmp_path / "ring")
    read_city(tmp_path / "ring")
    bare = (
        "import sys\nfor m in ('polars', 'numba', 'typer', 'rich', 'h5py'): sys.modules[m] = None\n"
        "import frigate.training.train, frigate.evaluation.evaluate\n"
        "from frigate.city.folder import open_cache, read_city\n"
        "print(open_cache(sys.argv[1] + '/cache').stream.values.sum(), read_city(sys.argv[1]).stream.values.sum())"
    )
    run = subprocess.run(
        [sys.executable, "-c", bare, str(tmp_path / "ring")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    total = float(changing_stream().values.sum())
    assert [float(x) for x in run.stdout.split()] == [total, total]


def test_networks_without_any_road_are_kept(tmp_path: Path) -> None:
    changes = "time,action,node_id\n" + "".join(f"2024-01-01T00:00Z,remove_node,{n}\n" for n in (2, 3))
    folder = write_tables(tmp_path / "c", changes__csv=changes)
    for back in (read_city(folder, cache=False), read_city(folder), open_cache(folder)):
        assert back.network.num_edges == len(back.network.closed) == 0
        assert back.network.present.tolist() == [True, False, False]


def test_values_are_read_from_the_cache_file_itself(tmp_path: Path) -> None:
    stream = read_city(write_tables(tmp_path / "c")).stream
    assert isinstance(stream.values.base, np.memmap)
    assert isinstance(stream.observed.base, np.memmap)


def test_road_features_are_computed_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_city(City("ring", changing_stream()), tmp_path / "ring")
    city = read_city(tmp_path / "ring")
    assert city.road_features == {}
    computed = ensure_road_features(city)
    own = {network.fingerprint for network in maps(city)}
    assert set(computed.road_features) == own
    assert len(own) < len(city.stream.networks)  # what is closed is no matter of the map
    kept = ensure_road_features(open_cache(tmp_path / "ring" / "cache"))
    for key in own:
        np.testing.assert_array_equal(computed.road_features[key], kept.road_features[key])
    (tmp_path / "ring" / "city.toml").write_text('step = "5min"\nname = "other"\n')  # readings change, roads do not
    with monkeypatch.context() as patch:  # none is computed again
        patch.setattr("frigate.roads.feature_cache.features_and_notice", None)
        assert set(ensure_road_features(read_city(tmp_path / "ring")).road_features) == own
    in_memory = ensure_road_features(replace(city, folder=None))
    for key in own:
        np.testing.assert_array_equal(in_memory.road_features[key], computed.road_features[key])


def test_only_a_city_or_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    city = City("ring", changing_stream())
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with raises(CityError, "not a city"):
        write_city(city, tmp_path / "thesis")
    write_city(city, tmp_path / "ring", csv=True)
    write_city(city, tmp_path / "ring")
    assert not (tmp_path / "ring" / "nodes.csv").exists()
    (tmp_path / "ring" / "notes.txt").write_text("mine")
    with raises(CityError, "notes.txt"):
        write_city(city, tmp_path / "ring")
    assert (tmp_path / "ring" / "notes.txt").read_text() == "mine"


def test_a_write_that_fails_leaves_the_old_city_whole(tmp_path: Path) -> None:
    city = City("old", changing_stream())
    write_city(city, tmp_path / "c", csv=True)
    small_disk = (  # files can be no larger than the roads' table: the write fails half way
        "import resource, signal, sys; from frigate.city.folder import read_city, write_city\n"
        "from frigate.errors import CityError\n"
        "city = read_city(sys.argv[1], cache=False)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))\n"
        "try: write_city(city, sys.argv[1], csv=True)\n"
        "except CityError as error: sys.exit('refused: ' + str(error))"
    )
    run = subprocess.run(
        [sys.executable, "-c", small_disk, str(tmp_path / "c")], capture_output=True, text=True, check=False
    )
    assert "refused" in run.stderr, run.stderr
    assert "cannot be written" in run.stderr
    assert_same_stream(read_city(tmp_path / "c", cache=False).stream, city.stream)
    assert os.listdir(tmp_path) == ["c"]


def test_check_says_what_is_in_a_city(tmp_path: Path) -> None:
    stream = changing_stream()
    values = stream.values.copy()
    values[:, 2], values[:, 4] = 0, 0
    observed = stream.observed.copy()
    observed[:, 4] = False
    observed[5] = False
    city = City("ring", replace(stream, values=values, observed=observed), notices=("Something odd: 3.",))
    report = check_city(city, positions=True)
    assert (report.nodes, report.roads, report.sensors, report.snapshots) == (5, 10, 4, 8)
    assert report.dead == (102,)
    assert report.gaps == (("2024-01-01T01:25:00+01:00", 1),)
    assert (report.networks, report.changes) == (4, 5)
    assert report.road_km == pytest.approx(1.0)
    assert report.distortions is not None
    assert set(report.distortions) == {"random", "farthest", "bourgain"}
    json.dumps(report.to_json(), allow_nan=False)
    text = "\n".join(report.lines())
    for said in ("5 nodes, 10 roads, 1.0 km", "4 (80.0% of the nodes)", "read only 0: 1 (102)", "Something odd: 3."):
        assert said in text


def test_check_names_a_sensor_that_is_stuck() -> None:
    values = np.random.default_rng(0).normal(50, 5, (20, 5))
    values[:, 3] = 61.5
    stream = make_stream(values, ring(), start_s=START_S, step_s=300, quantity="speed")
    assert check_city(City("c", stream)).stuck == (103,)


@pytest.mark.slow
@pytest.mark.shared
def test_the_whole_of_san_francisco_loads_under_two_gigabytes(tmp_path: Path) -> None:
    data = shared_data("sf-taxi-core").parent / "sf-taxi"
    make = (
        "import sys; from pathlib import Path; from frigate.city.folder import write_city\n"
        "from frigate.sources.matrix import import_matrix\n"
        "d, out = map(Path, sys.argv[1:])\n"
        "write_city(import_matrix(d / 'counts.npz', values='counts', time='t_unix', valid='valid',\n"
        "    timezone='America/Los_Angeles', nodes=d / 'nodes.parquet', edges=d / 'edges.parquet',\n"
        "    rename={'src': 'source', 'dst': 'target'}), out)"
    )
    load = (
        "import sys; from frigate.city.folder import read_city\n"
        "assert read_city(sys.argv[2]).stream.values.shape == (6720, 8992)"
    )
    peak = "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    for program in (make, load):
        run = subprocess.run(
            [sys.executable, "-c", program + peak, str(data), str(tmp_path / "sf")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert int(run.stdout) * 1024 < 2e9


def test_estimated_betweenness_is_said_and_stays_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network above the limit: the notice comes with the features, when computed and when read from the cache."""
    monkeypatch.setattr("frigate.roads.features.whole_betweenness", partial(whole_betweenness, exact_nodes=10))
    n = random_network(60, seed=0)
    write_city(City("large", random_stream([n], seed=0)), tmp_path / "large")
    city = ensure_road_features(read_city(tmp_path / "large"))
    said = [notice for notice in city.notices if "betweenness is estimated" in notice]
    assert len(said) == 1
    assert said[0] in ensure_road_features(read_city(tmp_path / "large")).notices
    assert said[0] in ensure_road_features(open_city(tmp_path / "large" / "cache")).notices
    assert list(ensure_road_features(city).notices).count(said[0]) == 1
