"""A city on its roads: roads are nodes, allowed turns are edges, and nothing downstream knows the difference."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frigate.check.city import check_city
from frigate.city.city import City
from frigate.city.folder import open_cache, read_city, write_city
from frigate.city.network import Edges, NodeId, RoadNetwork
from frigate.city.stream import make_stream
from frigate.config import change, preset
from frigate.coordinates import haversine_m
from frigate.errors import CityError
from frigate.evaluation.evaluate import evaluate
from frigate.forecasting.edits import about_closed, edit_network
from frigate.forecasting.forecast import forecast
from frigate.reading.notices import Notices
from frigate.roads.features import FEATURES, road_features
from frigate.roads.geometry import line_length_m, read_line, write_line
from frigate.roads.on_roads import on_roads
from frigate.training.run import RunOnCity
from frigate.training.train import train
from tests.support.errors import raises
from tests.support.towns import START_S, random_network, random_stream

Turn = tuple[NodeId, NodeId, NodeId]


def turns_by_nodes(network: RoadNetwork, base: RoadNetwork) -> set[Turn]:
    """The turns of a line graph as (from, via, to), by the names of the nodes of the first network."""
    ids = base.node_ids.tolist()
    ends = [(ids[a], ids[b]) for a, b in zip(base.senders.tolist(), base.receivers.tolist(), strict=True)]
    pairs = zip(network.senders.tolist(), network.receivers.tolist(), strict=True)
    return {(ends[a][0], ends[a][1], ends[b][1]) for a, b in pairs}


def allowed(base: RoadNetwork, restrictions: list[tuple[NodeId, NodeId, NodeId, str]]) -> set[Turn]:
    """The same by its definition, one road after another."""
    ids = base.node_ids.tolist()
    roads = [(ids[a], ids[b]) for a, b in zip(base.senders.tolist(), base.receivers.tolist(), strict=True)]
    found: set[Turn] = set()
    for a, via in roads:
        exits = [b for start, b in roads if start == via]
        only = [b for x, y, b, kind in restrictions if (x, y) == (a, via) and kind == "only" and b in exits]
        no = [b for x, y, b, kind in restrictions if (x, y) == (a, via) and kind == "no"]
        free = [b for b in exits if b not in no and (not only or b in only)]
        onward = [b for b in free if b != a]
        found |= {(a, via, b) for b in onward or free}
    return found


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_turns_are_what_restrictions_and_dead_ends_leave(seed: int, data: st.DataObject) -> None:
    base = random_network(8, seed=seed, roads_per_node=2.5)
    node = st.sampled_from(base.node_ids.tolist())
    rules = data.draw(st.lists(st.tuples(node, node, node, st.sampled_from(["no", "only"])), max_size=30))
    line = on_roads(base, restrictions=rules)
    assert turns_by_nodes(line, base) == allowed(base, rules)
    assert len(line.edges) == len(set(zip(line.senders.tolist(), line.receivers.tolist(), strict=True)))
    assert line.num_nodes == base.num_edges


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_a_city_forbids_its_own_turns(seed: int, data: st.DataObject) -> None:
    base = random_network(8, seed=seed, roads_per_node=2.5)
    row = st.integers(0, 7)
    turns = np.array(data.draw(st.lists(st.tuples(row, row, row), min_size=1, max_size=30)), np.int64)
    city = City("Nodes", random_stream([base], seed=0), forbidden_turns=turns)
    more = [(base.node_ids[0].item(), base.node_ids[1].item(), base.node_ids[2].item(), "no")]
    rules = [(a, via, b, "no") for a, via, b in base.node_ids[turns].tolist()]
    for given_too in ([], more):
        line = on_roads(city, restrictions=given_too)
        assert turns_by_nodes(line, base) == allowed(base, [*rules, *given_too])


def cross() -> RoadNetwork:
    """N, E, S, W around M, both ways, and a road from N on to a dead end T."""
    lon = np.array([0, 0, 1, 0, -1, 0])
    lat = np.array([0, 1, 0, -1, 0, 2])
    one = np.array([0, 0, 0, 0, 1])
    other = np.array([1, 2, 3, 4, 5])
    edges = Edges.of(
        np.concatenate([one, other]),
        np.concatenate([other, one]),
        np.arange(100, 1100, 100),
        road_class=[f"c{i}" for i in range(10)],
        lanes=np.arange(1, 11),
        speed_kph=10.0 * np.arange(1, 11),
        name=[f"s{i}" for i in range(10)],
    )
    return RoadNetwork(np.array(["M", "N", "E", "S", "W", "T"]), 6 + 0.01 * lon, 49 + 0.01 * lat, edges)


def test_a_turn_is_half_of_each_road_and_like_the_road_it_enters() -> None:
    base = cross()
    line = on_roads(base)
    left = line.senders
    entered = line.receivers
    np.testing.assert_allclose(line.length_m, (base.length_m[left] + base.length_m[entered]) / 2)
    for column in ("road_class", "lanes", "speed_kph", "name"):
        np.testing.assert_array_equal(getattr(line.edges, column), getattr(base.edges, column)[entered])
    assert line.node_ids.tolist()[:2] == ["M>N", "M>E"]
    np.testing.assert_allclose(line.lon[:2], [6.0, 6.005])
    np.testing.assert_allclose(line.lat[:2], [49.005, 49.0])
    over_its_middle = np.array([[6, 49], [6, 49.005], [6, 49.01]])
    np.testing.assert_allclose(read_line(line.lines[0]), over_its_middle)  # from M to N
    assert ("M>E", "E>M") in turns_of(line, "E>M")  # a dead end
    assert ("M>N", "N>M") not in turns_of(line, "N>M")  # leads on to T


@settings(max_examples=40)
@given(points=st.lists(st.tuples(st.floats(-0.02, 0.02), st.floats(-0.02, 0.02)), min_size=2, max_size=7))
def test_the_middle_parts_a_road_in_halves(points: list[tuple[float, float]]) -> None:
    base = cross()
    course = np.array([(0, 0), *points, (0, 0.01)]) + np.array([6, 49])
    base.edges.geometry[0] = write_line(course)  # M>N
    line = on_roads(base)
    turn = int(np.flatnonzero((line.senders == 0) & (line.receivers == 4))[0])  # M>N, N>T
    whole = read_line(line.edges.geometry[turn])
    assert line_length_m(whole) == pytest.approx(
        line_length_m(course) / 2 + line_length_m(np.array([[6, 49.02], [6, 49.01]])) / 2, rel=2e-3, abs=0.5
    )
    np.testing.assert_allclose(whole[0], [line.lon[0], line.lat[0]], atol=1e-12)
    np.testing.assert_allclose(whole[-1], [line.lon[4], line.lat[4]], atol=1e-12)


def test_a_road_across_the_date_line_has_its_middle_there() -> None:
    edges = Edges.of([0, 1], [1, 0], [10, 10])
    base = RoadNetwork(np.array([1, 2]), np.array([179.9, -179.9]), np.zeros(2), edges)
    line = on_roads(base)
    np.testing.assert_allclose(np.abs(line.lon), 180)
    assert line.node_ids.tolist() == ["1>2", "2>1"]


def test_own_ids_and_own_turns() -> None:
    base = cross()
    line = on_roads(base, ids=np.arange(70, 80), turns=np.array([[5, 1], [5, 2], [5, 1]]))
    assert line.node_ids.tolist() == list(range(70, 80))
    assert turns_of(line, 75) == [(75, 71), (75, 72)]
    kept = on_roads(base, turns=np.array([[5, 1], [5, 2]]), restrictions=[("N", "M", "E", "no_left_turn")])
    assert turns_by_nodes(kept, base) == {("N", "M", "S")}


def test_parallel_roads_stay_apart_and_a_restriction_holds_for_both() -> None:
    base = cross()
    double = base.edges.join(base.edges.take(np.array([0])))  # M>N twice
    ids = [f"r{i}" for i in range(11)]
    line = on_roads(base, edges=double, ids=ids, restrictions=[("E", "M", "N", "no")])
    into = {a for road in ("r0", "r10") for a, b in turns_of(line, road) if b == road}
    assert into == {"r7", "r8"}  # from S and W; not from E, nor back from N
    with raises(CityError, '"r0"', "2 roads"):
        on_roads(base, edges=double, ids=["r0", *ids[:10]])
    longer = replace(double, length_m=np.append(base.length_m[0] + 50, double.length_m[1:]))
    assert on_roads(base, edges=longer).node_ids.tolist()[::10] == ["M>N#2", "M>N"]  # the shortest has the plain name


def test_restrictions_that_say_nothing_are_counted() -> None:
    notices = Notices()
    on_roads(cross(), restrictions=[("N", "M", "Q", "no"), ("N", "E", "M", "only")], notices=notices)
    assert list(notices.sentences()) == [
        "Turn restrictions left out, one of their roads is not in the network: 2 (first: from N over M to Q)."
    ]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"restrictions": [("N", "M", "E", "yes")]}, ('"yes"',)),
        ({"ids": ["a", "b"]}, ("2 ids", "10 roads")),
        ({"turns": np.array([[0, 1]])}, ("turn 0,1",)),
        ({"turns": np.array([[0, 99]])}, ("row 99", "10 roads")),
    ],
)
def test_refused(options: dict[str, object], named: tuple[str, ...]) -> None:
    with raises(CityError, *named):
        on_roads(cross(), **options)  # type: ignore[arg-type]


def test_a_network_without_roads_is_refused() -> None:
    with raises(CityError, "no open road"):
        on_roads(RoadNetwork(np.array([1]), np.zeros(1), np.zeros(1), Edges.none()))


# Downstream


@cache
def road_run(name: str) -> RunOnCity:
    line = on_roads(random_network(8, seed=3))
    stream = random_stream([line], seed=3, snapshots=70)
    model = {"width": 8, "layers": 2, "hidden": 8, **({"anchors": 4} if name == "paper" else {})}
    task = {"past": 4, "horizon": 3}
    training = {"epochs": 1, "steps_per_epoch": 2, "masks": 3, "batch_size": 4}
    tiny = change(preset(name), {"model": model, "task": task, "train": training})
    city = City("Roads", stream)
    return train(city, seen=0.5, settings=tiny, device="cpu").on(city)


def test_a_road_is_closed_by_its_id_or_its_ends_and_a_node_by_its_id() -> None:
    line = on_roads(cross())
    at_road = turns_of(line, "M>N")
    for named in ("M>N", "M,N", " M , N ", ("M", "N")):
        closed = edit_network(line, close=[named])
        said = about_closed(line, [named])
        assert closed.num_edges == line.num_edges - len(at_road)
        assert turns_of(closed, "M>N") == []
        assert said == [f"closed road M>N, with the {len(at_road)} turns into and out of it."]
    assert closed.reopen_nodes(["M>N"]).fingerprint == line.fingerprint
    assert line.close(at_road).reopen(at_road).fingerprint == line.fingerprint
    with raises(CityError, '"M>Q"', "its id", '--close "41>42"'):
        edit_network(line, close=["M>Q"])
    with raises(CityError, '"M>N"', "already closed"):
        edit_network(closed, close=["M>N"])
    base = cross()
    without = edit_network(base, close=["T"])
    said = about_closed(base, ["T"])
    assert without.num_edges == base.num_edges - 2
    assert said == ["closed node T, with the 2 roads at it."]


def turns_of(network: RoadNetwork, road: str | int) -> list[tuple[str | int, str | int]]:
    """The turns into and out of a road."""
    row = network.row_of(road)
    ids = network.node_ids
    at = np.flatnonzero((network.senders == row) | (network.receivers == row))
    return list(zip(ids[network.senders[at]].tolist(), ids[network.receivers[at]].tolist(), strict=True))


@pytest.mark.parametrize("name", ["paper", "default"])
def test_training_evaluation_and_forecast_run_on_roads(name: str) -> None:
    run = road_run(name).run
    city = road_run(name).city
    unseen = evaluate(run, city).model.unseen
    assert unseen is not None and np.isfinite(unseen.mae.value)
    network = city.network
    ahead = forecast(run, stream=city)
    assert ahead.node_ids.tolist() == network.node_ids.tolist()
    assert np.isfinite(ahead.values).all()
    busiest = int(np.argmax(np.bincount(network.senders)))
    road = str(network.node_ids[busiest])
    turn = next((a, b) for a, b in turns_of(network, road) if a == road)
    closed = edit_network(network, close=[f"{turn[0]},{turn[1]}"])
    assert closed.num_edges == network.num_edges - 1
    moved = forecast(run, closed, city).values
    assert np.isfinite(moved).all() and not np.array_equal(moved, ahead.values)
    shut = forecast(run, stream=city, close=[road])
    assert np.isfinite(shut.values).all()
    np.testing.assert_array_equal(
        shut.values, forecast(run, network.close(turns_of(network, road)), city).values, strict=True
    )
    assert any(f"closed road {road}, with the" in notice for notice in shut.notices)
    shapes = [feature["geometry"] for feature in ahead.to_geojson()["features"][:: ahead.horizon]]
    assert {shape["type"] for shape in shapes} == {"LineString"}
    np.testing.assert_array_equal(shapes[busiest]["coordinates"], read_line(network.lines[busiest]))


def test_a_city_of_roads_comes_back_from_disk_and_can_be_checked(tmp_path: Path) -> None:
    line = on_roads(City("Nodes", random_stream([cross()], seed=0)))
    city = City("Roads", make_stream(np.ones((4, 10)), line, start_s=START_S, step_s=300))
    write_city(city, tmp_path / "roads")
    back = read_city(tmp_path / "roads")
    assert back.network.fingerprint == line.fingerprint
    np.testing.assert_array_equal(back.network.edges.geometry, line.edges.geometry)
    for again in (back, open_cache(tmp_path / "roads")):
        np.testing.assert_array_equal(again.network.lines, line.lines)
    write_city(back, tmp_path / "text", csv=True)
    np.testing.assert_array_equal(read_city(tmp_path / "text").network.lines, line.lines)
    assert check_city(back).roads == line.num_edges
    features = road_features(line)
    assert np.isfinite(features[:, FEATURES.index("speed_max_kph")]).all()


def test_distances_along_the_line_graph_are_those_along_the_roads() -> None:
    """From the middle of the first road to the middle of the last, over a row of towns."""
    lon = 6 + 0.01 * np.arange(5.0)
    metre = haversine_m(lon[:-1], np.full(4, 49.0), lon[1:], np.full(4, 49.0))
    base = RoadNetwork(np.arange(5), lon, np.full(5, 49.0), Edges.of(range(4), range(1, 5), metre))
    line = on_roads(base)
    assert line.length_m.sum() == pytest.approx(metre.sum() - metre[0] / 2 - metre[-1] / 2)
    straight = haversine_m(line.lon[:1], line.lat[:1], line.lon[-1:], line.lat[-1:])
    assert line.length_m.sum() == pytest.approx(straight[0], rel=1e-6)
