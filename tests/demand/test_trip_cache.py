"""Trips are searched once for a network: they stay in memory, and in the cache of a city's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.city.network import RoadNetwork
from frigate.city.stream import make_stream
from frigate.demand import trip_cache
from frigate.demand.calibration import RouteSet, route_set
from frigate.demand.estimate import sample_routes
from frigate.demand.rerouting import Detours, find_detours
from frigate.demand.settings import DemandSettings
from frigate.demand.trip_cache import KEPT, cached_detours, cached_trips
from frigate.demand.trip_model import estimate_demand
from frigate.roads.line_graph import LineGraph, line_graph
from tests.support.towns import START_S, random_network

FEW = DemandSettings(sets=2)


@pytest.fixture(autouse=True)
def nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trip_cache, "_kept", {})
    monkeypatch.setattr(trip_cache, "_detours", {})


def network(seed: int = 0) -> RoadNetwork:
    return random_network(12, seed=seed)


def a_turn(network: RoadNetwork) -> NDArray[np.int64]:
    """From the third road into one that follows it."""
    senders = network.senders
    receivers = network.receivers
    into = np.flatnonzero((senders == receivers[2]) & (receivers != senders[2]))[0]
    return np.array([[senders[2], receivers[2], receivers[into]]])


def same(a: tuple[RouteSet, ...], b: tuple[RouteSet, ...]) -> bool:
    return all(
        np.array_equal(x.routes.roads, y.routes.roads) and abs(x.through_node - y.through_node).nnz == 0
        for x, y in zip(a, b, strict=True)
    )


def sampled(graph: LineGraph) -> tuple[RouteSet, ...]:
    return tuple(route_set(graph, routes) for routes in sample_routes(graph, FEW, seed=0))


def test_the_trips_of_the_last_networks_stay_in_memory() -> None:
    first = cached_trips(network(), FEW)[1]
    assert same(first, sampled(line_graph(network())))
    for seed in range(1, KEPT):
        cached_trips(network(seed), FEW)
    assert cached_trips(network(), FEW)[1] is first
    for seed in range(1, KEPT + 1):
        cached_trips(network(seed), FEW)
    assert len(trip_cache._kept) == KEPT
    assert cached_trips(network(), FEW)[1] is not first


def test_other_roads_turns_seeds_or_settings_have_other_trips() -> None:
    first = cached_trips(network(), FEW)[1]
    others = (
        cached_trips(network(), FEW, seed=1),
        cached_trips(network(), replace(FEW, searches=FEW.searches[1:])),
        cached_trips(network(), FEW, forbidden_turns=a_turn(network())),
        cached_trips(network(1), FEW),
    )
    assert not any(other[1] is first for other in others)


def test_a_citys_folder_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_stream(np.ones((3, 12)), network(), start_s=START_S, step_s=3600, quantity="count")
    write_city(City("Town", stream), tmp_path)
    roads = read_city(tmp_path).network

    def files() -> list[Path]:
        return list((tmp_path / "cache").glob("*trips-*.npz"))

    made = cached_trips(roads, FEW)[1]
    assert files() == []
    assert cached_trips(roads, FEW, folder=tmp_path)[1] is made
    (file,) = files()  # written for another process although this one has them in memory
    whole = file.read_bytes()
    for damaged in (False, True):
        trip_cache._kept.clear()
        if damaged:
            file.write_bytes(whole[: len(whole) // 2])
        else:
            monkeypatch.setattr(trip_cache, "sample_routes", None)
        assert same(cached_trips(roads, FEW, folder=tmp_path)[1], made)
        monkeypatch.undo()
        monkeypatch.setattr(trip_cache, "_kept", {})
    assert len(file.read_bytes()) == len(whole)  # as good as new


def test_demand_of_a_city_takes_its_trips_from_the_folder(tmp_path: Path) -> None:
    stream = make_stream(np.ones((3, 12)), network(), start_s=START_S, step_s=3600, quantity="count")
    write_city(City("Town", stream), tmp_path)
    demand = estimate_demand(read_city(tmp_path), settings=FEW, trust_all=True)
    (file,) = (tmp_path / "cache").glob("*trips-*.npz")
    written = file.stat().st_mtime_ns
    trip_cache._kept.clear()
    again = estimate_demand(read_city(tmp_path), settings=FEW)
    assert same(again.sets, demand.sets) and file.stat().st_mtime_ns == written


def test_the_order_of_the_roads_is_part_of_it(tmp_path: Path) -> None:
    """The fingerprint of a network goes without it, but trips go by the numbers of the roads."""
    stream = make_stream(np.ones((3, 12)), network(), start_s=START_S, step_s=3600, quantity="count")
    write_city(City("Town", stream), tmp_path)
    read_city(tmp_path)
    turned = network().with_roads(network().edges.take(np.arange(len(network().edges))[::-1]))
    assert turned.fingerprint == network().fingerprint
    for _ in ("from memory", "from the folder"):
        cached_trips(network(), FEW, folder=tmp_path)
        graph, sets = cached_trips(turned, FEW, folder=tmp_path)
        assert same(sets, sampled(graph))
        trip_cache._kept.clear()


def test_detours_are_found_once_and_the_last_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    old = network()
    sets = cached_trips(old, FEW)[1]
    roads = np.stack([old.node_ids[old.senders], old.node_ids[old.receivers]], axis=1).tolist()
    first, second = (old.close([(a, b)]) for a, b in roads[:2])

    def found(new: RoadNetwork, *, seed: int = 0, turns: NDArray[np.int64] | None = None) -> Detours:
        return cached_detours(old, new, sets, FEW, seed=seed, forbidden_turns=turns)

    made = found(first)
    right = find_detours(old, first, sets, FEW, seed=0)
    assert same(made.routes, right.routes) and np.array_equal(made.closed, right.closed)
    assert sum(map(len, made.rows)) > 0
    turned = first.with_roads(first.edges.take(np.arange(len(first.edges))[::-1]))
    others = [found(second), found(first, seed=1), found(turned), found(first, turns=a_turn(old))]
    assert not any(other is made for other in others)
    assert found(first) is made
    monkeypatch.setattr(trip_cache, "MAX_DETOURED", 1)
    found(second)
    assert found(first) is not made
