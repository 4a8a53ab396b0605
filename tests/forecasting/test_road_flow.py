"""Flows on roads follow those at their ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frigate.calendar import wall_clock
from frigate.city.city import City
from frigate.demand.estimate import Demand
from frigate.demand.rerouting import Rerouted
from frigate.demand.settings import DemandSettings
from frigate.demand.trip_model import estimate_demand
from frigate.forecasting.road_flow import closed_roads, road_flows
from frigate.simulate.demo_city import demo_city
from tests.support.grids import grid_network

MONDAY_0800_S = 4 * 86_400 + 8 * 3600  # 5 January 1970


@pytest.fixture(scope="module")
def city() -> City:
    return demo_city(seed=3, intersections=100, days=1, step_s=1800, closures=0)


@pytest.fixture(scope="module")
def demand(city: City) -> Demand:
    return estimate_demand(city, settings=DemandSettings(sets=2))


def test_without_demand_a_road_has_the_mean_of_its_ends() -> None:
    network = grid_network(3)
    values = np.arange(9.0)[None]
    expected = (network.senders + network.receivers) / 2
    np.testing.assert_allclose(road_flows(values, [network], network)[0], expected)
    a = network.senders[2]
    b = network.receivers[2]
    shut = network.close([(network.node_ids[a], network.node_ids[b])])
    closed = closed_roads(network, shut)
    assert np.flatnonzero(closed).tolist() == [2]
    both = road_flows(np.tile(values, (3, 1)), [network, shut, network], network)  # open, closed, open again
    np.testing.assert_allclose(both, [expected, np.where(closed, 0, expected), expected])
    values[0, 4] = np.nan
    lost = (network.senders == 4) | (network.receivers == 4)
    np.testing.assert_array_equal(np.isnan(road_flows(values, [network], network)[0]), lost)


def test_roads_move_with_the_forecast_of_their_ends(city: City, demand: Demand) -> None:
    network = city.network
    demand = replace(demand, step_s=3600)
    clock = wall_clock(np.array([MONDAY_0800_S]))
    usual = demand.node_flow[[8]]
    same = road_flows(usual, [network], network, demand=demand, clock=clock)
    bound = np.minimum(usual[0, network.senders], usual[0, network.receivers])
    np.testing.assert_allclose(same[0], np.minimum(demand.road_flow[8], bound), rtol=1e-5)
    more = road_flows(2 * usual, [network], network, demand=demand, clock=clock)
    busy = demand.road_flow[8] > np.median(demand.road_flow[8])
    assert (more[0, busy] / same[0, busy]).min() > 1.3
    assert (more[0] <= 2 * same[0] + 1e-6).all()
    some = np.ones(network.num_edges, np.float32)
    some[5], some[6] = 0, 0.5
    nodes = np.ones(network.num_nodes, np.float32)
    rerouted = Rerouted(nodes, some, 0.0, 0 * nodes, 0 * some)
    shut = road_flows(usual, [network], network, demand=demand, rerouted=lambda _: rerouted, clock=clock)
    assert shut[0, 5] == 0
    assert shut[0, 6] == pytest.approx(min(0.5 * demand.road_flow[8, 6], bound[6]), rel=1e-5)
    np.testing.assert_allclose(np.delete(shut[0], [5, 6]), np.delete(same[0], [5, 6]))


def test_between_two_hours_roads_have_some_of_both(city: City, demand: Demand) -> None:
    middle = (demand.node_flow[8] + demand.node_flow[9]) / 2
    at = wall_clock(np.array([MONDAY_0800_S + 1800]))
    network = city.network
    demand = replace(demand, step_s=3600)
    made = road_flows(100 * middle[None], [network], network, demand=demand, clock=at)
    least = 4 * (demand.road_flow[8] + demand.road_flow[9])  # eight times, at most
    np.testing.assert_allclose(made[0], np.where(least > 0, least, 0), rtol=1e-4)


def test_flows_on_roads_by_hand(city: City, demand: Demand) -> None:
    """Also at nodes where hardly anybody drives, nobody, or many times as many as usual."""
    network = city.network
    demand = replace(demand, step_s=3600)
    rng = np.random.default_rng(0)
    values = demand.node_flow[8] * rng.choice([0.0, 0.1, 1.0, 3.0, 100.0], network.num_nodes)
    found = road_flows(values[None], [network], network, demand=demand, clock=wall_clock(np.array([MONDAY_0800_S])))
    little = 0.05 * demand.node_flow.mean()
    change = [
        min(max((x + little) / (usual + little), 1 / 8), 8)
        for x, usual in zip(values, demand.node_flow[8], strict=True)
    ]
    expected = [
        min(flow * (change[a] + change[b]) / 2, values[a], values[b])
        for flow, a, b in zip(demand.road_flow[8], network.senders, network.receivers, strict=True)
    ]
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)
    less = found[0] < np.minimum(values[network.senders], values[network.receivers])
    assert 0.2 < less.mean() < 0.9
