"""What the map is sent: the network as it is, and flows on roads that follow those at their ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frigate.data.city import City
from frigate.data.stream import make_stream
from frigate.demand.estimate import Demand, estimate_demand
from frigate.demand.rerouting import Rerouted
from frigate.demand.settings import DemandSettings
from frigate.serve.map_data import closed_roads, network_container, road_flows
from frigate.serve.wire import decode
from frigate.simulate.demo_city import demo_city
from frigate.sources.line_graph import on_roads
from tests.support.grids import grid_network

MONDAY_0800_S = 4 * 86_400 + 8 * 3600  # 5 January 1970


@pytest.fixture(scope="module")
def city() -> City:
    return demo_city(seed=3, intersections=100, days=1, step_s=1800, closures=0)


@pytest.fixture(scope="module")
def demand(city: City) -> Demand:
    return estimate_demand(city, settings=DemandSettings(sets=2))


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


def test_the_nodes_of_a_city_on_roads_are_sent_as_lines(city: City) -> None:
    line = on_roads(city)
    line.lines[3] = b""
    stream = make_stream(np.zeros((1, line.num_nodes)), line, start_s=0, step_s=300)
    made = network_container(line, stream, np.ones(line.num_nodes, bool), name="", horizon=1, has_demand=False)
    start, lonlat = (decode(made)[1][f"node_line_{name}"] for name in ("start", "lonlat"))
    assert len(start) == line.num_nodes + 1 == city.network.num_edges + 1
    place = np.stack([city.network.lon, city.network.lat], axis=1)
    first, last = lonlat[start[:-1]], lonlat[start[1:] - 1]
    known = np.arange(line.num_nodes) != 3
    np.testing.assert_allclose(first[known], place[city.network.senders][known], atol=1e-6)
    np.testing.assert_allclose(last[known], place[city.network.receivers][known], atol=1e-6)
    np.testing.assert_allclose(first[3], [line.lon[3], line.lat[3]])
    assert start[4] - start[3] == 1


def test_without_demand_a_road_has_the_mean_of_its_ends() -> None:
    network = grid_network(3)
    values = np.arange(9.0)[None]
    expected = (network.senders + network.receivers) / 2
    np.testing.assert_allclose(road_flows(values, network)[0], expected)
    a, b = network.senders[2], network.receivers[2]
    closed = closed_roads(network, network.close([(network.node_ids[a], network.node_ids[b])]))
    assert np.flatnonzero(closed).tolist() == [2]
    np.testing.assert_allclose(road_flows(values, network, closed=closed)[0], np.where(closed, 0, expected))
    values[0, 4] = np.nan
    lost = (network.senders == 4) | (network.receivers == 4)
    np.testing.assert_array_equal(np.isnan(road_flows(values, network)[0]), lost)


def test_roads_move_with_the_forecast_of_their_ends(city: City, demand: Demand) -> None:
    network, half = city.network, {"local_s": np.array([MONDAY_0800_S]), "step_s": 3600}
    usual = demand.node_flow[[8]]
    same = road_flows(usual, network, demand=demand, **half)
    bound = np.minimum(usual[0, network.senders], usual[0, network.receivers])
    np.testing.assert_allclose(same[0], np.minimum(demand.road_flow[8], bound), rtol=1e-5)
    more = road_flows(2 * usual, network, demand=demand, **half)
    busy = demand.road_flow[8] > np.median(demand.road_flow[8])
    assert (more[0] / same[0])[busy].min() > 1.3
    assert (more[0] <= 2 * same[0] + 1e-6).all()
    some = np.ones(network.num_edges, np.float32)
    some[5], some[6] = 0, 0.5
    rerouted = Rerouted(np.ones(network.num_nodes, np.float32), some, 0.0)
    shut = road_flows(usual, network, demand=demand, rerouted=rerouted, **half)
    assert shut[0, 5] == 0
    assert shut[0, 6] == pytest.approx(min(0.5 * demand.road_flow[8, 6], bound[6]), rel=1e-5)
    np.testing.assert_allclose(np.delete(shut[0], [5, 6]), np.delete(same[0], [5, 6]))


def test_between_two_hours_roads_have_some_of_both(city: City, demand: Demand) -> None:
    middle = (demand.node_flow[8] + demand.node_flow[9]) / 2
    at = {"local_s": np.array([MONDAY_0800_S + 1800]), "step_s": 3600}
    made = road_flows(100 * middle[None], city.network, demand=demand, **at)
    least = 4 * (demand.road_flow[8] + demand.road_flow[9])  # eight times, at most
    np.testing.assert_allclose(made[0], np.where(least > 0, least, 0), rtol=1e-4)
