"""What trips are drawn: where they begin and end, what a turn is, and that each set has drivers of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frigate.city.network import Edges, RoadNetwork
from frigate.demand.calibration import route_set
from frigate.demand.estimate import sample_routes
from frigate.demand.rerouting import find_detours
from frigate.demand.route_search import SearchSettings, search_routes
from frigate.demand.settings import DemandSettings, num_searches, route_seed
from frigate.roads.line_graph import LineGraph, line_graph
from tests.support.grids import grid_network

SIDE = 6


@pytest.fixture(scope="module")
def graph() -> LineGraph:
    """A tenth of the roads are five times as fast as the others."""
    graph = line_graph(grid_network(SIDE))
    fast = np.arange(graph.num_roads) % 10 == 0
    speed = np.where(fast, 25.0, 5.0)
    return replace(graph, time_s=graph.length_m / speed)


@pytest.mark.parametrize("compiled", [False, True])
def test_no_trip_ends_on_the_road_that_it_begins_on(graph: LineGraph, compiled: bool) -> None:
    """Not even where most drivers want to go to the same few roads."""
    for search in (SearchSettings(shortness=4.0), SearchSettings(fast_ends=4.0)):
        routes = search_routes(graph, search, searches=40, seed=1, compiled=compiled)
        assert len(routes) == 40 * search.trips_per_search
        assert (routes.origin != routes.destination).all()
        assert np.diff(routes.start).min() > 1
    assert (np.unique(routes.origin) % 10 == 0).all()  # the fast ones


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_ends_are_drawn_by_speed_to_a_power_by_hand(graph: LineGraph, power: float) -> None:
    """All origins and half of the destinations."""
    fast = np.arange(graph.num_roads) % 10 == 0
    weight = np.where(fast, 5.0**power, 1.0)
    expected = weight[fast].sum() / weight.sum()
    routes = search_routes(graph, SearchSettings(fast_ends=power), searches=1500, seed=2)
    assert fast[routes.origin].mean() == pytest.approx(expected, abs=0.04)
    uniform = fast.mean()
    ends = fast[routes.destination].mean()
    assert ends == pytest.approx((expected + uniform) / 2, abs=0.04)


def test_angles_are_those_on_the_ground() -> None:
    """In the north a degree of longitude is short: these two roads meet at a right angle at 60 degrees."""
    lon, lat = [0.0, 0.002, 0.0], [60.0, 60.001, 60.002]
    edges = Edges.of([0, 1], [1, 2], [150.0, 150.0])
    graph = line_graph(RoadNetwork(np.arange(3), np.array(lon), np.array(lat), edges))
    assert graph.turn_angle.tolist() == pytest.approx([1.0], abs=1e-3)


def test_each_set_has_its_own_trips_by_its_own_search() -> None:
    graph = line_graph(grid_network(SIDE))
    searches = (SearchSettings(trips_per_search=2), SearchSettings(turn_s=80.0, trips_per_search=2))
    sets = sample_routes(graph, DemandSettings(searches=searches, sets=3), seed=5)
    for k, routes in enumerate(sets):
        alone = search_routes(graph, searches[k % 2], searches=num_searches(graph), seed=route_seed(5, k))
        np.testing.assert_array_equal(routes.roads, alone.roads)
    assert not np.array_equal(sets[0].origin, sets[2].origin)


def test_drivers_of_every_set_keep_their_ways_where_a_new_road_helps_nobody() -> None:
    """All of them are routed again: each with the travel times that were once drawn for it."""
    network = grid_network(SIDE)
    graph = line_graph(network)
    settings = DemandSettings(searches=(SearchSettings(noise=0.8, trips_per_search=3),), sets=3)
    sets = tuple(route_set(graph, routes) for routes in sample_routes(graph, settings, seed=5))
    ids = network.node_ids
    detour = network.add(roads=[(ids[0].item(), ids[-1].item())], length_m=[1e6])
    ways = find_detours(network, detour, sets, settings, seed=5)
    for trips, rows, again in zip(sets, ways.rows, ways.routes, strict=True):
        assert len(rows) == len(trips.routes)
        np.testing.assert_array_equal(again.routes.roads, trips.routes.roads)
