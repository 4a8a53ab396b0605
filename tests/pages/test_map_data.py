"""What the map is sent of the network."""

from __future__ import annotations

import numpy as np
import pytest

from frigate.city.city import City
from frigate.city.stream import make_stream
from frigate.pages.map_data import network_container
from frigate.pages.wire import decode
from frigate.roads.on_roads import on_roads
from frigate.simulate.demo_city import demo_city
from tests.support.grids import grid_network


@pytest.fixture(scope="module")
def city() -> City:
    return demo_city(seed=3, intersections=100, days=1, step_s=1800, closures=0)


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
    first = arrays["line_start"][:-1]
    last = arrays["line_start"][1:] - 1
    place = np.stack([network.lon, network.lat], axis=1)
    np.testing.assert_allclose(arrays["line_lonlat"][first], place[network.senders], atol=1e-6)
    np.testing.assert_allclose(arrays["line_lonlat"][last], place[network.receivers], atol=1e-6)
    assert (last > first + 1).any()  # with its bends


def test_a_network_without_roads_or_names_is_sent() -> None:
    network = grid_network(2)
    stream = make_stream(np.zeros((1, 4)), network, start_s=0, step_s=300)
    bare = network.with_roads(network.edges.take(np.zeros(0, np.int64)))
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
    first = lonlat[start[:-1]]
    last = lonlat[start[1:] - 1]
    known = np.arange(line.num_nodes) != 3
    np.testing.assert_allclose(first[known], place[city.network.senders][known], atol=1e-6)
    np.testing.assert_allclose(last[known], place[city.network.receivers][known], atol=1e-6)
    np.testing.assert_allclose(first[3], [line.lon[3], line.lat[3]])
    assert start[4] - start[3] == 1
