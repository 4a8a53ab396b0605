"""Calibration, hourly flows, shares and detours against a second, literal writing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from frigate.calendar import BINS, WEEK_PARTS
from frigate.city.network import RoadNetwork
from frigate.demand import sensor_shares
from frigate.demand.calibration import route_set
from frigate.demand.estimate import Demand, calibrate, sample_routes
from frigate.demand.rerouting import find_detours, reroute, sensor_shares_on_detours
from frigate.demand.route_search import Routes, SearchSettings, search_routes
from frigate.demand.sensor_shares import SensorShares
from frigate.demand.settings import ClosureResponse, DemandSettings, num_searches
from frigate.demand.tuning import FOLDS, hidden_error
from frigate.draws import Draw, generator, seed_of
from frigate.roads.line_graph import line_graph
from tests.support import second_writing_of_demand as literal
from tests.support.grids import grid_network

SIDE = 5
FEW_SENSORS = 3  # of each node's shares: with all, hardly any is left out
SETTINGS = DemandSettings(
    searches=tuple(SearchSettings(turn_s=turn_s, noise=0.5, trips_per_search=5) for turn_s in (5.0, 20.0, 40.0)),
    sets=5,
    iterations=7,
    hold=0.2,
    closures=ClosureResponse(0.9, 0.6),
    detour_sets=5,
)


@pytest.fixture(scope="module")
def network() -> RoadNetwork:
    return grid_network(SIDE)


@pytest.fixture(scope="module")
def counts() -> NDArray[np.float64]:
    """[K,N] usual counts of every other crossing in one half of the town, with a tide of its own at each."""
    rng = np.random.default_rng(4)
    N = SIDE * SIDE
    tide = 1 + 0.8 * np.sin(2 * np.pi * (np.arange(BINS)[:, None] / 24 + rng.random(N)))
    hourly = rng.gamma(2, 10, N) * tide * np.where(np.arange(BINS) < 24, 1.0, 0.5)[:, None]
    sensors = (np.arange(N) % 2 == 0) & (np.arange(N) < 17)
    return np.where(sensors, hourly, np.nan)


@pytest.fixture(scope="module")
def demand(network: RoadNetwork, counts: NDArray[np.float64]) -> Demand:
    """With few shares kept at a node."""
    graph = line_graph(network)
    sets = tuple(route_set(graph, routes) for routes in sample_routes(graph, SETTINGS, seed=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensor_shares, "MAX_SENSORS", FEW_SENSORS)
        return calibrate(network, graph, sets, counts, SETTINGS, step_s=3600, seed=2, medians=counts)


def roads_of(demand: Demand, network: RoadNetwork) -> literal.Roads:
    graph = demand.graph
    return literal.Roads(graph.senders.tolist(), graph.receivers.tolist(), network.num_nodes)


def trips_of(routes: Routes) -> list[list[int]]:
    return [routes.roads[a:b].tolist() for a, b in zip(routes.start[:-1], routes.start[1:], strict=True)]


@pytest.fixture(scope="module")
def expected(demand: Demand, network: RoadNetwork, counts: NDArray[np.float64]) -> literal.Estimate:
    return literal.estimated(
        roads_of(demand, network),
        [trips_of(trips.routes) for trips in demand.sets],
        {v: counts[:, v].tolist() for v in np.flatnonzero(np.isfinite(counts[0])).tolist()},
        iterations=SETTINGS.iterations,
        hold=SETTINGS.hold,
        most_sensors=FEW_SENSORS,
    )


def assert_same(found: object, wanted: object) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-3, atol=1e-4)


def test_trips_and_flows(demand: Demand, expected: literal.Estimate) -> None:
    for found, wanted in zip(demand.numbers, expected.numbers, strict=True):
        assert_same(found, wanted)
    start = np.array([numbers.max() for numbers in demand.numbers])
    assert np.ptp(start) > 0.1  # sets differ
    some = [np.asarray(trips.through_node[:, np.flatnonzero(demand.sensors)].sum(1)) == 0 for trips in demand.sets]
    assert all(each.any() and not each.all() for each in some)  # and some trips pass no sensor
    assert_same(demand.level, expected.level)
    assert_same(demand.node_spread, expected.spread)
    assert_same(demand.node_flow, expected.node_flow)
    assert_same(demand.road_flow, expected.road_flow)
    assert_same(demand.road_spread, expected.road_spread)


def shares_by_node(found: SensorShares) -> list[dict[int, float]]:
    pairs = zip(found.sensor.tolist(), found.share.tolist(), strict=True)
    return [{u: share for u, share in zip(*pair, strict=True) if share > 0} for pair in pairs]


def assert_same_shares(found: SensorShares, wanted: literal.Shares) -> None:
    for has, should in zip(shares_by_node(found), wanted, strict=True):
        assert has == pytest.approx(should, rel=1e-3)
    np.testing.assert_allclose(found.share.sum(1) + found.rest, 1, atol=1e-5)


def test_shares_are_the_largest(
    demand: Demand, expected: literal.Estimate, network: RoadNetwork, counts: NDArray[np.float64]
) -> None:
    assert_same_shares(demand.sensor_shares, expected.shares)
    trips = [trips_of(each.routes) for each in demand.sets]
    sensors = set(np.flatnonzero(demand.sensors).tolist())
    every = literal.sensor_shares(roads_of(demand, network), trips, expected.numbers, sensors, SIDE * SIDE)
    assert sum(len(shares) > FEW_SENSORS for shares in every) > 5


def test_parts_of_the_week(
    demand: Demand, expected: literal.Estimate, network: RoadNetwork, counts: NDArray[np.float64]
) -> None:
    """At a sensor its own, where known; elsewhere those of the sensors that vehicles pass."""
    week = np.random.default_rng(6).gamma(9, 1 / 9, (WEEK_PARTS, SIDE * SIDE))
    unknown = 4
    week[5, unknown] = np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensor_shares, "MAX_SENSORS", FEW_SENSORS)
        made = calibrate(
            network, demand.graph, demand.sets, counts, SETTINGS, step_s=3600, seed=2, medians=counts, week=week
        )
    sensors = np.flatnonzero(demand.sensors).tolist()
    mean = {u: literal.week_mean(counts[:, u].tolist()) for u in sensors}
    for part in (0, 5, 20, WEEK_PARTS - 1):
        own = {u: 1.0 if (part, u) == (5, unknown) else float(week[part, u]) for u in sensors}
        city = sum(own[u] * mean[u] for u in sensors) / sum(mean.values())
        factor = literal.factors(own, expected.shares, city)
        elsewhere = [literal.change_at(shares, factor, city) for shares in expected.shares]
        assert_same(made.week[part], [own.get(v, change) for v, change in enumerate(elsewhere)])


def test_detours(demand: Demand, network: RoadNetwork, expected: literal.Estimate) -> None:
    a, b = network.node_ids[[12, 13]].tolist()
    shut = network.close([(a, b), (b, a)])
    ways = find_detours(network, shut, demand.sets, SETTINGS, seed=demand.seed)
    before = [trips_of(trips.routes) for trips in demand.sets]
    after = [list(trips) for trips in before]
    for trips, rows, other in zip(after, ways.rows, ways.routes, strict=True):
        for row, trip in zip(rows.tolist(), trips_of(other.routes), strict=True):
            trips[row] = trip
    roads = roads_of(demand, network)
    answer = {"fewer": SETTINGS.closures.fewer, "more": SETTINGS.closures.more}
    for quiet in (1.0, 0.01):  # also where hardly anybody passes some of the crossings
        factor = np.where(np.arange(network.num_nodes) % 3 == 0, quiet, 1.0).astype(np.float32)
        level = (demand.level * factor).tolist()
        wanted = literal.changes(roads, before, after, expected.numbers, level, **answer)
        (found,) = reroute([replace(demand, level_factor=factor)], ways)
        assert_same(found.node_change, wanted)
    assert min(wanted) < 0.9 and max(wanted) > 1.1
    sensors = set(np.flatnonzero(demand.sensors).tolist())
    shares = literal.sensor_shares(roads, after, expected.numbers, sensors, network.num_nodes)
    assert_same_shares(sensor_shares_on_detours(demand, ways), shares)
    of_road = demand.sets[0].through_road.T @ demand.numbers[0]
    assert found.road_change[ways.closed].max() == 0 < of_road[ways.closed].min()


def test_the_error_of_a_search_at_hidden_sensors(network: RoadNetwork, counts: NDArray[np.float64]) -> None:
    """Each sensor is hidden once, while the trips are calibrated to the others."""
    graph = line_graph(network)
    seed = 3
    search = SETTINGS.searches[0]
    found = search_routes(graph, search, searches=num_searches(graph), seed=seed_of(seed, Draw.TRIED_TRIPS))
    roads = literal.Roads(graph.senders.tolist(), graph.receivers.tolist(), network.num_nodes)
    trips = trips_of(found)
    passed = [roads.passed(trip) for trip in trips]
    sensors = np.flatnonzero(np.isfinite(counts[0]))
    mean = {v: literal.week_mean(counts[:, v].tolist()) for v in sensors.tolist()}
    by_key = sensors[np.argsort(graph.node_key[sensors])]
    order = generator(seed, Draw.TRIED_FOLDS).permutation(by_key).tolist()
    error = 0.0
    for fold in range(FOLDS):
        hidden = order[fold::FOLDS]
        visible = {v: level for v, level in mean.items() if v not in hidden}
        flow = literal.flow_at(roads, trips, literal.calibrated(passed, visible, SETTINGS.iterations, SETTINGS.hold))
        error += sum(abs(flow[v] - mean[v]) for v in hidden)
    assert hidden_error(graph, counts, search, SETTINGS, seed=seed) == pytest.approx(error / len(mean), rel=1e-4)
