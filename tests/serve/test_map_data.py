"""What the map is sent: the network as it is, and flows on roads that follow those at their ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frigate.data.city import City
from frigate.data.stream import make_stream
from frigate.demand.estimate import Demand, DemandSettings, estimate_demand
from frigate.serve.map_data import network_container, road_flows
from frigate.serve.wire import decode
from frigate.simulate.demo_city import demo_city
from tests.support.grids import grid_network

MONDAY_0800_S = 4 * 86_400 + 8 * 3600  # 5 January 1970


@pytest.fixture(scope="module")
def city() -> City:
    return demo_city(seed=3, intersections=100, days=1, step_s=1800, closures=0)


@pytest.fixture(scope="module")
def demand(city: City) -> Demand:
    return estimate_demand(city.stream, city.stream.sensors, settings=DemandSettings(sets=2))


def container(city: City) -> bytes:
    sensors = np.arange(city.network.num_nodes) % 3 == 0
    return network_container(city.network, city.stream, sensors, name="A", horizon=4, has_demand=True, basemap="x")


def test_the_network_is_sent_as_it_is(city: City) -> None:
    meta, arrays = decode(container(city))
    network = city.network
    assert meta["node_ids"] == network.node_ids.tolist()
    assert (meta["name"], meta["horizon"], meta["step_seconds"], meta["basemap"]) == ("A", 4, 1800, "x")
    assert meta["street_names"][0] == ""
    assert [meta["street_names"][k] for k in arrays["street"]] == network.edges.name.tolist()
    np.testing.assert_array_equal(arrays["source"], network.senders)
    np.testing.assert_array_equal(arrays["target"], network.receivers)
    np.testing.assert_array_equal(np.flatnonzero(arrays["sensor"]), np.arange(0, network.num_nodes, 3))
    first, last = arrays["line_start"][:-1], arrays["line_start"][1:] - 1
    place = np.stack([network.lon, network.lat], axis=1)
    np.testing.assert_allclose(arrays["line_lonlat"][first], place[network.senders], atol=1e-6)
    np.testing.assert_allclose(arrays["line_lonlat"][last], place[network.receivers], atol=1e-6)
    assert (last > first + 1).any()  # with its bends


def test_the_version_follows_the_network(city: City) -> None:
    version = decode(container(city))[0]["version"]
    assert version == decode(container(city))[0]["version"]
    moved = replace(city.network, lon=city.network.lon + 1e-5)
    other = City(city.name, replace(city.stream, topologies=(moved,)))
    assert version != decode(container(other))[0]["version"]


def test_a_network_without_roads_or_names_is_sent() -> None:
    network = grid_network(2)
    stream = make_stream(np.zeros((1, 4)), network, start_s=0, step_s=300)
    bare = replace(network, edges=network.edges.take(np.zeros(0, np.int64)))
    meta, arrays = decode(network_container(bare, stream, np.ones(4, bool), name="", horizon=1, has_demand=False))
    assert meta["street_names"] == [""]
    assert arrays["line_lonlat"].shape == (0, 2)
    assert arrays["line_start"].tolist() == [0]


def test_without_demand_a_road_has_the_mean_of_its_ends() -> None:
    network = grid_network(3)
    values = np.arange(9.0)[None]
    expected = (network.senders + network.receivers) / 2
    np.testing.assert_allclose(road_flows(values, network)[0], expected)
    values[0, 4] = np.nan
    lost = (network.senders == 4) | (network.receivers == 4)
    np.testing.assert_array_equal(np.isnan(road_flows(values, network)[0]), lost)


def test_roads_move_with_the_forecast_of_their_ends(city: City, demand: Demand) -> None:
    at = np.array([MONDAY_0800_S])
    usual = demand.node_flow[[8]]
    same = road_flows(usual, city.network, demand=demand, local_s=at)
    np.testing.assert_allclose(same[0], demand.road_flow[8], rtol=1e-5)
    more = road_flows(2 * usual, city.network, demand=demand, local_s=at)
    busy = demand.road_flow[8] > np.median(demand.road_flow[8])
    assert (more[0] / same[0])[busy].min() > 1.3
    assert (more[0] <= 2 * same[0] + 1e-6).all()
    closed = np.ones(city.network.num_edges, np.float32)
    closed[5] = 0
    shut = road_flows(usual, city.network, demand=demand, local_s=at, road_change=closed)
    assert shut[0, 5] == 0
    np.testing.assert_allclose(np.delete(shut[0], 5), np.delete(same[0], 5))
