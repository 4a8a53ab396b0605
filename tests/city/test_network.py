"""A road network: edits return a new one and leave the old one as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frigate.city.network import Edges, RoadNetwork, clean_edges
from frigate.coordinates import EARTH_RADIUS_M, haversine_m
from frigate.errors import CityError
from tests.support.errors import raises
from tests.support.towns import random_network


def triangle(ids: object = ("a", "b", "c")) -> RoadNetwork:
    """a -> b -> c -> a, and b -> a."""
    edges = Edges.of(
        [0, 1, 2, 1],
        [1, 2, 0, 0],
        [100.0, 200.0, 300.0, 110.0],
        road_class=["primary", "", "", ""],
        lanes=[2, np.nan, 1, 1],
        name=["High Street", "", "", ""],
        geometry=[b"\x01", b"", b"", b""],
    )
    return RoadNetwork(np.array(ids), np.array([6.10, 6.11, 6.12]), np.array([49.60, 49.61, 49.60]), edges)


def roads(network: RoadNetwork, table: Edges | None = None) -> dict[tuple[Any, Any], float]:
    """Roads by their ends, with their lengths."""
    edges = network.edges if table is None else table
    ids = network.node_ids.tolist()
    ends = zip(edges.senders.tolist(), edges.receivers.tolist(), strict=True)
    return {(ids[a], ids[b]): m for (a, b), m in zip(ends, edges.length_m.tolist(), strict=True)}


# Editing


def test_a_closed_road_is_gone_and_can_be_reopened() -> None:
    network = triangle()
    shut = network.close([("a", "b")])
    assert roads(shut) == {("b", "c"): 200, ("c", "a"): 300, ("b", "a"): 110}
    assert roads(shut, shut.closed) == {("a", "b"): 100}
    back = shut.reopen([("a", "b")])
    assert len(back.closed) == 0
    assert back.fingerprint == network.fingerprint
    assert back.edges.name[back.senders == 0].tolist() == ["High Street"]  # all of it comes back
    assert back.edges.geometry[back.senders == 0].tolist() == [b"\x01"]


@given(st.integers(0, 10**6), st.data())
@settings(max_examples=30)
def test_closing_and_reopening_any_roads_in_any_order_gives_back_the_network(seed: int, data: st.DataObject) -> None:
    network = random_network(8, seed=seed)
    chosen = data.draw(st.lists(st.sampled_from(list(roads(network))), unique=True))
    shut = network.close(chosen)
    assert shut.num_edges == network.num_edges - len(chosen)
    one_by_one = network
    for road in data.draw(st.permutations(chosen)):
        one_by_one = one_by_one.close([road])
    assert one_by_one.fingerprint == shut.fingerprint
    for road in data.draw(st.permutations(chosen)):
        shut = shut.reopen([road])
    assert shut.fingerprint == network.fingerprint


def test_added_nodes_and_roads() -> None:
    network = triangle()
    grown = network.add(
        nodes=[("d", 6.13, 49.7)], roads=[("c", "d"), ("d", "a")], length_m=[None, 55.0], lanes=[3.0, 1.0]
    )
    assert grown.node_ids.tolist() == ["a", "b", "c", "d"]
    assert (grown.lon[3], grown.lat[3]) == (6.13, 49.7)
    assert grown.present.all()
    straight = float(haversine_m(grown.lon[2:3], grown.lat[2:3], grown.lon[3:], grown.lat[3:])[0])
    assert roads(grown) == {**roads(network), ("c", "d"): straight, ("d", "a"): 55.0}
    assert grown.edges.lanes[-2:].tolist() == [3, 1]
    assert np.isnan(grown.edges.speed_kph[-2:]).all()


def test_a_removed_node_keeps_its_row_and_takes_its_roads_with_it() -> None:
    network = triangle().close([("b", "a")])
    without = network.remove_nodes(["a"])
    assert without.node_ids.tolist() == ["a", "b", "c"]
    assert without.present.tolist() == [False, True, True]
    assert roads(without) == {("b", "c"): 200}
    with raises(CityError, "b,a"):  # one of its ends has gone
        without.reopen([("b", "a")])
    again = without.add(nodes=[("a", 0.0, 0.0)], roads=[("a", "b")])
    assert again.present.all()
    assert (again.lon[0], again.lat[0]) == (6.10, 49.60)  # it comes back where it was
    assert ("a", "b") in roads(again)


EDITS: dict[str, Callable[[RoadNetwork], RoadNetwork]] = {
    "close": lambda n: n.close([("a", "b"), ("c", "a")]),
    "reopen": lambda n: n.reopen([("b", "a")]),
    "add": lambda n: n.add(nodes=[("z", 1.0, 2.0)], roads=[("a", "z"), ("a", "c")]),
    "remove_nodes": lambda n: n.remove_nodes(["b"]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_leaves_the_network_as_it_was(edit: str) -> None:
    network, same = (triangle().close([("b", "a")]) for _ in range(2))
    changed = EDITS[edit](network)
    assert changed is not network
    assert changed.fingerprint != network.fingerprint
    for f in fields(Edges):
        for table in ("edges", "closed"):
            left, right = (getattr(getattr(n, table), f.name) for n in (network, same))
            np.testing.assert_array_equal(left, right)
    for name in ("node_ids", "lon", "lat", "present"):
        np.testing.assert_array_equal(getattr(network, name), getattr(same, name))
    with pytest.raises(FrozenInstanceError):
        network.lon = changed.lon  # type: ignore[misc]


REFUSED: dict[str, tuple[Callable[[Any], object], tuple[str, ...]]] = {
    "close what is not there": (
        lambda n: n.close([("a", "c")]),
        ("a,c", "from a"),
    ),
    "close twice": (lambda n: n.close([("a", "b")]).close([("a", "b")]), ("a,b", "open")),
    "close at an unknown node": (lambda n: n.close([("a", "x")]), ('"x"', "3 nodes")),
    "reopen an open road": (lambda n: n.reopen([("a", "b")]), ("a,b", "closed")),
    "reopen beside a new one": (
        lambda n: n.close([("a", "b")]).add(roads=[("a", "b")]).reopen([("a", "b")]),
        ("a,b", "already open"),
    ),
    "add a node twice": (lambda n: n.add(nodes=[("a", 0, 0)]), ('"a"', "already there")),
    "add a road twice": (lambda n: n.add(roads=[("a", "b")]), ("a,b", "already there")),
    "add one road twice at once": (lambda n: n.add(roads=[("a", "c"), ("a", "c")]), ("a,c", "already there")),
    "add a loop": (lambda n: n.add(roads=[("a", "a")]), ("to itself",)),
    "add no length": (lambda n: n.add(roads=[("a", "c")], length_m=[0]), ("0.0 m",)),
    "add an endless road": (lambda n: n.add(roads=[("a", "c")], length_m=[np.inf]), ("inf m",)),
    "add at a removed node": (
        lambda n: n.remove_nodes(["c"]).add(roads=[("a", "c")]),
        ("removed",),
    ),
    "remove an unknown node": (lambda n: n.remove_nodes(["x"]), ('"x"',)),
    "ids that repeat": (lambda n: triangle(("a", "b", "a")), ("ids", "unique")),
    "columns of two lengths": (lambda n: replace(n, lon=n.lon[:2]), ("length",)),
    "two roads with the same ends": (
        lambda n: n.with_roads(Edges.of([2, 0, 0], [0, 1, 1], [9.0, 1.0, 2.0])),
        ("a,b", "frigate.city.network.clean_edges"),
    ),
    "a loop in the table": (
        lambda n: n.with_roads(Edges.of([0, 2], [1, 2], [1.0, 2.0])),
        ("c,c",),
    ),
    "a column too short": (
        lambda n: n.add(roads=[("a", "c"), ("c", "b")], road_class=["primary"]),
        ("2 roads", "road_class 1"),
    ),
    "a length too few": (lambda n: n.add(roads=[("a", "c"), ("c", "b")], length_m=[1]), ("1 lengths", "2 roads")),
    "a length that is a word": (lambda n: n.add(roads=[("a", "c")], length_m=["far"]), ("'far'",)),
    "lanes that are a word": (lambda n: n.add(roads=[("a", "c")], lanes=["two"]), ("'two'",)),
    "a road as text": (lambda n: n.add(roads=["a,c"]), ("'a,c'", "(41, 42)")),
    "a road to close as text": (lambda n: n.close(["ab"]), ("'ab'", "(41, 42)")),
    "a road of three": (lambda n: n.reopen([("a", "b", "c")]), ("two end nodes",)),
    "a node without a place": (lambda n: n.add(nodes=[("d", 6.1)]), ("id, lon and lat",)),
    "a place that is none": (lambda n: n.add(nodes=[("d", np.nan, 49.6)]), ("lon nan", "lat 49.6")),
    "a longitude too far": (lambda n: n.add(nodes=[("d", 181, 0)]), ("lon 181", "lat 0")),
    "a latitude too far": (lambda n: n.add(nodes=[("d", 49.6, -91)]), ("lon 49.6", "lat -91")),
    "a place in words": (lambda n: n.add(nodes=[("d", "east", 0)]), ("lon 'east'", "lat 0")),
    "a word among numbers": (
        lambda n: triangle((1, 2, 3)).add(nodes=[("N1", 6.1, 49.6)]),
        ('"N1"', "whole numbers"),
    ),
    "a fraction among numbers": (
        lambda n: triangle((1, 2, 3)).add(nodes=[(4.5, 6.1, 49.6)]),  # type: ignore[list-item]
        ('"4.5"', "whole numbers"),
    ),
    "a number too large": (
        lambda n: triangle((1, 2, 3)).add(nodes=[(2**70, 6.1, 49.6)]),
        (str(2**70), "whole numbers"),
    ),
    "a number that is there as text": (
        lambda n: triangle((1, 2, 3)).add(nodes=[("2", 0, 0)]),
        ('"2"', "already there"),
    ),
    "a road to nowhere": (lambda n: n.with_roads(Edges.of([0], [7], [1.0])), ("row 7", "3 nodes")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    edit, named = REFUSED[what]
    with raises(CityError, *named):
        edit(triangle())


def test_ids_are_found_as_text_or_as_numbers() -> None:
    numbered = triangle((10, 20, -30))
    lettered = triangle(("10", "20", "c"))
    assert numbered.rows_of([10, "20", " -30 "]).tolist() == [0, 1, 2]
    assert lettered.rows_of(["10", 20]).tolist() == [0, 1]
    for wrong in ("1.0", "--10", "²", "", "9" * 5000):
        with raises(CityError, "3 nodes", "10, 20, -30"):
            numbered.row_of(wrong)


def test_new_ids_are_as_the_networks_own() -> None:
    assert triangle((1, 2, 3)).add(nodes=[("4", 6.1, 49.6)]).node_ids.tolist() == [1, 2, 3, 4]
    assert triangle().add(nodes=[(4, 6.1, 49.6)]).node_ids.tolist() == ["a", "b", "c", "4"]


def test_the_same_nodes_are_those_of_one_id_and_place() -> None:
    network = triangle((10, 20, 30))
    assert network.same_nodes(network).tolist() == [0, 1, 2]
    assert network.same_nodes(network.close([(10, 20)])).tolist() == [0, 1, 2]
    grown = network.add(nodes=[(40, 6.2, 49.7)])
    assert grown.same_nodes(network).tolist() == [0, 1, 2, -1]
    assert network.same_nodes(grown).tolist() == [0, 1, 2]
    assert network.same_nodes(replace(network, node_ids=np.array([30, 20, 10]))).tolist() == [-1, 1, -1]
    shifted = replace(network, lat=network.lat + np.array([0, 40, 60]) / 111_195)
    assert network.same_nodes(shifted).tolist() == [0, 1, -1]
    assert network.same_nodes(replace(network, node_ids=np.array(["10", "x", "30"]))).tolist() == [0, -1, 2]


# Fingerprint


def test_the_fingerprint_knows_what_a_forecast_depends_on() -> None:
    network = triangle()
    e = network.edges
    order = np.array([2, 0, 3, 1])
    alike = replace(e.take(order), name=np.full(4, "x"))
    same = replace(network, roads=alike.join(e), is_open=np.repeat([True, False], 4))
    assert same.fingerprint == network.fingerprint  # neither order nor names matter
    others = [
        replace(network, node_ids=np.array(["a", "b", "d"])),
        replace(network, lon=network.lon + 1e-9),
        replace(network, lat=network.lat + 1e-9),
        replace(network, present=np.array([True, True, False])),
        network.with_roads(e.take(order[:3])),
        network.with_roads(replace(e, length_m=e.length_m + 1e-9)),
        network.with_roads(replace(e, lanes=np.ones(4))),
        network.with_roads(replace(e, speed_kph=np.full(4, 30.0))),
        network.with_roads(replace(e, road_class=np.full(4, "service"))),
        network.with_roads(replace(e, senders=e.receivers, receivers=e.senders)),
    ]
    assert len({network.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)


# Cleaning and distances


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, 7.0])), max_size=20))
def test_cleaned_roads_are_the_shortest_of_each_pair(raw: list[tuple[int, int, float]]) -> None:
    edges, cleaned = clean_edges(Edges.of(*(zip(*raw, strict=True) if raw else ([], [], []))))
    shortest: dict[tuple[int, int], float] = {}
    for a, b, m in raw:
        if a != b:
            shortest[a, b] = min(shortest.get((a, b), np.inf), m or 1.0)
    found = zip(edges.senders.tolist(), edges.receivers.tolist(), strict=True)
    assert dict(zip(found, edges.length_m.tolist(), strict=True)) == shortest
    assert len(edges) == len(shortest)
    assert cleaned.self_loops.sum() == sum(a == b for a, b, _ in raw)
    assert cleaned.zero_length.sum() == sum(a != b and m == 0 for a, b, m in raw)
    assert cleaned.parallel.sum() == len(raw) - cleaned.self_loops.sum() - len(shortest)


def test_cleaning_keeps_the_attributes_of_the_road_it_keeps() -> None:
    edges, _ = clean_edges(Edges.of([0, 0, 1], [1, 1, 1], [9, 5, 3], name=["long", "short", "loop"], lanes=[1, 2, 3]))
    assert (edges.name.tolist(), edges.lanes.tolist(), edges.length_m.tolist()) == (["short"], [2], [5])


def distance(lon_a: float, lat_a: float, lon_b: float, lat_b: float) -> float:
    return float(haversine_m(*(np.array([x]) for x in (lon_a, lat_a, lon_b, lat_b)))[0])


def test_great_circle_distances() -> None:
    quarter = np.pi / 2 * EARTH_RADIUS_M
    assert distance(6.1, 49.6, 6.1, 49.6) == 0
    assert distance(0, 0, 90, 0) == pytest.approx(quarter)
    assert distance(17, 0, 17, 90) == pytest.approx(quarter)
    assert distance(0, 0, 180, 0) == pytest.approx(2 * quarter)
    assert distance(179.5, 0, -179.5, 0) == pytest.approx(quarter / 90)  # across the date line
    assert distance(6, 60, 7, 60) == pytest.approx(distance(6, 0, 7, 0) / 2, rel=1e-4)  # meridians close in


places = st.tuples(st.floats(-180, 180), st.floats(-90, 90))


@given(places, places, places)
def test_great_circle_distance_is_a_metric(
    a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]
) -> None:
    assert distance(*a, *b) == pytest.approx(distance(*b, *a))
    assert distance(*a, *c) <= distance(*a, *b) + distance(*b, *c) + 1e-3
