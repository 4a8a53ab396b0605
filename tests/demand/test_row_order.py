"""The order of rows in the tables of nodes and roads does not matter: draws go by ids."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import frigate as fg
from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.config import change, preset
from frigate.demand import tuning
from frigate.demand.estimate import Demand
from frigate.demand.levels import INPUTS, SCALES, LevelSettings
from frigate.demand.route_search import SearchSettings, search_again, search_routes
from frigate.demand.settings import DemandSettings
from frigate.demand.trip_model import estimate_demand
from frigate.draws import keys_of
from frigate.forecasting.result import Forecast
from frigate.roads.line_graph import LineGraph, line_graph
from frigate.training.train import train
from tests.support.forecast_runs import small_city

SEARCH = SearchSettings(turn_s=20.0, noise=0.3, fast_ends=1.0, trips_per_search=10)
CLOSED = [(6, 7), (7, 6), (12, 7)]


def shuffled(city: City) -> City:
    """The same city with the rows of both tables in another order."""
    rng = np.random.default_rng(7)
    stream = city.stream
    network = city.network
    nodes = rng.permutation(network.num_nodes)
    roads = rng.permutation(network.num_edges)
    row = np.argsort(nodes)  # new row of each node
    edges = network.edges.take(roads)
    edges = replace(edges, senders=row[edges.senders], receivers=row[edges.receivers])
    other = RoadNetwork(network.node_ids[nodes], network.lon[nodes], network.lat[nodes], edges)
    values = stream.values[:, nodes]
    observed = stream.observed[:, nodes]
    return replace(city, stream=replace(stream, values=values, observed=observed, networks=(other,)))


@pytest.fixture(scope="module")
def cities() -> tuple[City, City]:
    city = small_city()
    fast = np.arange(city.network.num_edges) % 3 == 0
    edges = replace(city.network.edges, speed_kph=np.where(fast, 90.0, 30.0))
    city = replace(city, stream=replace(city.stream, networks=(city.network.with_roads(edges),)))
    return city, shuffled(city)


def trips_by_id(graph: LineGraph, network: RoadNetwork, routes: Any) -> list[list[tuple[int, int]]]:
    """The end nodes of each trip's roads."""
    ends = np.stack([network.node_ids[graph.senders], network.node_ids[graph.receivers]], axis=1)
    some = (routes.roads[a:b] for a, b in zip(routes.start[:-1], routes.start[1:], strict=True))
    return [[(int(a), int(b)) for a, b in ends[roads]] for roads in some]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("fast_ends", [0.0, 1.0])
def test_the_same_trips_are_drawn(cities: tuple[City, City], compiled: bool, fast_ends: float) -> None:
    search = replace(SEARCH, fast_ends=fast_ends)
    found = []
    for city in cities:
        graph = line_graph(city.network)
        routes = search_routes(graph, search, searches=20, seed=3, compiled=compiled)
        open_roads = city.network.close(CLOSED)
        closed = ~np.isin(keys(graph), keys(line_graph(open_roads)))
        again = search_again(line_graph(city.network, closed=closed), search, routes, seed=3, compiled=compiled)
        found.append([trips_by_id(graph, city.network, each) for each in (routes, again)])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def keys(graph: LineGraph) -> NDArray[np.uint64]:
    return graph.road_key


def flows(city: City, demand: Demand) -> NDArray[np.floating]:
    return demand.node_flow[:, np.argsort(city.network.node_ids)]


def test_flows_and_detours_are_the_same(cities: tuple[City, City]) -> None:
    made, moved = [], []
    for city in cities:
        ids = city.network.node_ids
        network = city.network
        demand = estimate_demand(city, city.stream.sensors & (ids % 2 == 0), settings=DemandSettings(sets=4))
        made.append(flows(city, demand))
        run = trained(city)
        moved.append(by_id(forecast(run, city, network.close(CLOSED))))
    np.testing.assert_allclose(made[0], made[1], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-3, atol=1e-3)


def test_levels_are_the_same(cities: tuple[City, City]) -> None:
    """Each sensor's level is compared with what trips calibrated without it say: its fold goes by its id."""
    scales = (math.log(0.3),) * len(SCALES) + (math.log(0.5),) * INPUTS
    settings = DemandSettings(sets=2, levels=LevelSettings(0.1, 1.0, scales))
    sensors = [np.asarray(city.network.node_ids, np.int64) % 3 > 0 for city in cities]
    made = [
        flows(city, estimate_demand(city, some, settings=settings)) for city, some in zip(cities, sensors, strict=True)
    ]
    np.testing.assert_allclose(made[0], made[1], rtol=1e-3, atol=1e-3)
    trips = estimate_demand(cities[0], sensors[0], settings=replace(settings, levels=None))
    assert np.abs(made[0] - flows(cities[0], trips)).max() > 0.1


def trained(city: City) -> fg.Run:
    """Demand alone, of the same sensors in both."""
    settings = change(preset("default"), {"train": {"epochs": 0}, "task": {"past": 4, "horizon": 3}})
    return train(city, seen=list(range(0, 21, 2)), settings=settings, device="cpu")


def forecast(run: fg.Run, city: City, network: RoadNetwork | None = None) -> Forecast:
    return fg.forecast(run, network, city.stream)


def by_id(made: Forecast) -> NDArray[np.floating]:
    return made.values[:, np.argsort(made.node_ids)]


def test_forecasts_are_the_same_with_searches_chosen_for_the_city(
    cities: tuple[City, City], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "TRIED", 6)
    monkeypatch.setattr(tuning, "TRIED_IN_LARGE", 6)
    monkeypatch.setattr(tuning, "MIN_SENSORS", 8)
    runs = [trained(city) for city in cities]
    chosen = [run.scaling.demand for run in runs]
    assert chosen[0] == chosen[1] != DemandSettings()
    one, other = (by_id(forecast(run, city)) for run, city in zip(runs, cities, strict=True))
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
    assert one.std() > 1


def test_a_run_forecasts_the_same_on_reordered_tables(cities: tuple[City, City]) -> None:
    run = trained(cities[0])
    one, other = (by_id(forecast(run, city)) for city in cities)
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def test_keys_stand_for_ids_as_text() -> None:
    ids = np.array(["a", "ab", "41", "", "é"])
    assert len(set(keys_of(ids).tolist())) == len(ids)
    assert keys_of(ids.astype("U99")).tolist() == keys_of(ids).tolist()
    assert keys_of(np.array([41]))[0] == keys_of(ids)[2]
    assert len(set(keys_of(np.arange(200_000)).tolist())) == 200_000
