"""Demand: trips on the network, calibrated to sensors; what follows a closed road; what the last hour changes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from frigate.calendar import BINS, hourly_bins, wall_clock
from frigate.city.city import City
from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.demand import route_search, tuning
from frigate.demand.calibration import SensorView, first_numbers, route_set
from frigate.demand.count_profiles import fill_empty_hours, usual_counts, usual_medians, week_mean
from frigate.demand.estimate import Demand
from frigate.demand.flows import find_road, road_columns, road_features_geojson, trips_through
from frigate.demand.rerouting import (
    Detours,
    find_detours,
    newly_cut_off,
    reroute,
    sensor_shares_on_detours,
)
from frigate.demand.route_search import Routes, SearchSettings, road_cost_s, road_factors, search_again, search_routes
from frigate.demand.sensor_shares import SensorShares, propagate
from frigate.demand.settings import DemandSettings, num_searches
from frigate.demand.trip_model import estimate_demand
from frigate.demand.tuning import choose_settings, hidden_error, searches_to_try
from frigate.draws import keys_of
from frigate.errors import CityError, SettingsError
from frigate.roads.line_graph import LineGraph, line_graph
from frigate.roads.on_roads import on_roads
from tests.support.errors import raises

SIDE = 7
MONDAY_S = 1_704_067_200  # 2024-01-01T00:00Z, a Monday


def grid(side: int = SIDE) -> RoadNetwork:
    """A grid of two-way streets, nodes numbered row by row, 111 m apart."""
    at = np.arange(side * side).reshape(side, side)
    a = np.concatenate([at[:, :-1].ravel(), at[:-1].ravel()])
    b = np.concatenate([at[:, 1:].ravel(), at[1:].ravel()])
    senders = np.concatenate([a, b])
    receivers = np.concatenate([b, a])
    lon = 0.001 * (at.ravel() % side)
    lat = 0.001 * (at.ravel() // side)
    edges = Edges.of(senders, receivers, np.full(len(senders), 111.0))
    return RoadNetwork(at.ravel(), lon.astype(float), lat.astype(float), edges)


def road(graph: LineGraph, a: int, b: int) -> int:
    (row,) = np.flatnonzero((graph.senders == a) & (graph.receivers == b))
    return int(row)


def driven(graph: LineGraph, days: int = 7, *, seed: int = 5) -> tuple[RoadNetworkStream, NDArray[np.float64]]:
    """Hourly counts that real trips made, and the mean flow of each node."""
    trips = route_set(graph, search_routes(graph, SearchSettings(turn_s=30.0, noise=0.2), searches=60, seed=seed))
    rng = np.random.default_rng(seed)
    numbers = rng.gamma(0.5, 1.0, len(trips.routes))
    flow = trips.through_node.T @ numbers
    hour = np.arange(24 * days) % 24
    tide = 0.3 + np.exp(-((hour - 8) ** 2) / 8) + np.exp(-((hour - 17) ** 2) / 8)
    values = rng.poisson(flow * tide[:, None]).astype(np.float32)
    stream = make_stream(values, grid(), start_s=MONDAY_S, step_s=3600, timezone="UTC", quantity="count")
    return stream, flow * tide.mean()


@pytest.fixture(scope="module")
def graph() -> LineGraph:
    return line_graph(grid())


@pytest.fixture(scope="module")
def stream(graph: LineGraph) -> RoadNetworkStream:
    return driven(graph)[0]


def third(num_nodes: int) -> NDArray[np.bool_]:
    sensors = np.zeros(num_nodes, bool)
    sensors[np.random.default_rng(1).permutation(num_nodes)[: num_nodes // 3]] = True
    return sensors


@pytest.fixture(scope="module")
def demand(stream: RoadNetworkStream) -> Demand:
    return estimate_demand(City("Grid", stream), third(stream.num_nodes), settings=DemandSettings(sets=2))


def trip(routes: Routes, row: int) -> list[int]:
    return routes.roads[routes.start[row] : routes.start[row + 1]].tolist()


def test_a_turn_is_forbidden_where_the_map_says_so() -> None:
    free = line_graph(grid())
    banned = line_graph(grid(), np.array([[0, 1, 2]]))
    straight = road(free, 0, 1), road(free, 1, 2)
    turns = [
        set(g.turn_into[g.turn_start[straight[0]] : g.turn_start[straight[0] + 1]].tolist()) for g in (free, banned)
    ]
    assert turns[0] - turns[1] == {straight[1]}
    assert len(free.turn_into) - len(banned.turn_into) == 1


def turns_out_of(graph: LineGraph, a: int, b: int) -> dict[int, float]:
    """The nodes that the turns out of the road from a to b lead to, and the angle of each."""
    some = slice(*graph.turn_start[[road(graph, a, b), road(graph, a, b) + 1]])
    return dict(zip(graph.receivers[graph.turn_into[some]].tolist(), graph.turn_angle[some].tolist(), strict=True))


def test_angles_of_turns(graph: LineGraph) -> None:
    assert turns_out_of(graph, 0, 1) == {2: pytest.approx(0, abs=1e-3), 1 + SIDE: pytest.approx(1, abs=1e-3)}


def test_a_u_turn_is_allowed_at_a_dead_end_only(graph: LineGraph) -> None:
    """Also at one that a closure or a forbidden turn makes."""
    assert 0 not in turns_out_of(graph, 0, 1)
    closed = np.isin(np.arange(graph.num_roads), [road(graph, 1, 2), road(graph, 1, 1 + SIDE)])
    assert turns_out_of(line_graph(grid(), closed=closed), 0, 1) == {0: pytest.approx(2, abs=1e-3)}
    banned = np.array([[0, 1, 2], [0, 1, 1 + SIDE]])
    assert list(turns_out_of(line_graph(grid(), banned), 0, 1)) == [0]
    # The same rule as on a city on its roads.
    network = on_roads(grid())
    ends = {
        (int(graph.senders[a]), int(graph.receivers[a]), int(graph.receivers[b]))
        for a in range(graph.num_roads)
        for b in graph.turn_into[graph.turn_start[a] : graph.turn_start[a + 1]].tolist()
    }
    names = [tuple(map(int, str(name).split(">"))) for name in network.node_ids]
    assert ends == {
        (*names[a], names[b][1]) for a, b in zip(network.senders.tolist(), network.receivers.tolist(), strict=True)
    }


def test_numba_and_scipy_find_the_same_trips(graph: LineGraph) -> None:
    settings = SearchSettings(turn_s=15.0, noise=0.5, shortness=2.0, trips_per_search=9)
    one, other = (search_routes(graph, settings, searches=12, seed=3, compiled=c) for c in (True, False))
    for name in ("origin", "destination", "search", "start", "roads"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert len(one) == 12 * 9


def test_trips_of_a_large_network_stay_near_their_origin(graph: LineGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SearchSettings(turn_s=15.0, noise=0.5, fast_ends=1.0, trips_per_search=10)
    everywhere = search_routes(graph, settings, searches=12, seed=3)
    monkeypatch.setattr(route_search, "MAX_REACHED", 20)
    one, other = (search_routes(graph, settings, searches=12, seed=3, compiled=c) for c in (True, False))
    for name in ("origin", "destination", "search", "start", "roads"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert len(one) == len(everywhere) == 12 * 10  # an end that is too far away has become a nearer one
    for search in range(12):
        ends = np.unique(np.concatenate([trip(one, row) for row in np.flatnonzero(one.search == search).tolist()]))
        assert len(ends) <= 20
    assert len(np.unique(everywhere.roads[: everywhere.start[10]])) > 20
    monkeypatch.setattr(route_search, "MAX_REACHED", graph.num_roads)
    np.testing.assert_array_equal(search_routes(graph, settings, searches=12, seed=3).roads, everywhere.roads)


def test_trips_follow_roads_and_are_the_fastest(graph: LineGraph) -> None:
    settings = SearchSettings(turn_s=25.0, noise=0.4)
    routes = search_routes(graph, settings, searches=5, seed=0)
    for row in range(0, len(routes), 7):
        path = trip(routes, row)
        assert path[0] == routes.origin[row] and path[-1] == routes.destination[row]
        assert len(path) > 1 and len(set(path)) == len(path)
        assert (graph.receivers[path[:-1]] == graph.senders[path[1:]]).all()
    # Without a cost for turning and without noise a trip has as few roads as the grid allows, unless it begins or ends
    # on a road that leads the wrong way.
    shortest = []
    plain = search_routes(graph, SearchSettings(turn_s=0.0, noise=0.0), searches=5, seed=0)
    for row in range(len(plain)):
        a = graph.receivers[plain.origin[row]]
        b = graph.senders[plain.destination[row]]
        blocks = abs(int(a) % SIDE - int(b) % SIDE) + abs(int(a) // SIDE - int(b) // SIDE)
        assert len(trip(plain, row)) >= blocks + 2
        shortest.append(len(trip(plain, row)) == blocks + 2)
    assert np.mean(shortest) > 0.5


def test_turning_costs_so_trips_turn_less(graph: LineGraph) -> None:
    def turns(turn_s: float) -> float:
        routes = search_routes(graph, SearchSettings(turn_s=turn_s, noise=0.5), searches=20, seed=1)
        x = graph.receivers - graph.senders
        return float(np.mean([np.mean(np.diff(x[trip(routes, row)]) != 0) for row in range(len(routes))]))

    assert turns(60.0) < 0.8 * turns(0.0)


def test_short_trips_and_the_longest(graph: LineGraph) -> None:
    def mean_roads(**changes: float) -> float:
        routes = search_routes(graph, replace(SearchSettings(), **changes), searches=20, seed=1)  # type: ignore[arg-type]
        return float(np.diff(routes.start).mean())

    assert mean_roads(shortness=4.0) < 0.7 * mean_roads(shortness=1.0)
    assert mean_roads(max_trip_s=60.0) < mean_roads()


def test_road_factors_have_the_spread_they_are_asked_for() -> None:
    factors = np.log(road_factors(3, 4, keys_of(np.arange(200_000)), 0.6))
    assert abs(factors.mean()) < 0.01
    assert abs(factors.std() - 0.6) < 0.01
    nine = keys_of(np.arange(9))
    assert (road_factors(3, 5, nine, 0.6) != road_factors(3, 4, nine, 0.6)).all()


def test_a_trip_passes_the_nodes_between_its_roads(graph: LineGraph) -> None:
    trips = route_set(graph, search_routes(graph, SearchSettings(), searches=2, seed=0))
    for row in range(len(trips.routes)):
        path = trip(trips.routes, row)
        expected = np.bincount(graph.receivers[path[:-1]], minlength=graph.num_nodes)
        np.testing.assert_array_equal(trips.through_node[[row]].toarray()[0], expected)
        np.testing.assert_array_equal(np.flatnonzero(trips.through_road[[row]].toarray()[0]), sorted(path))


def test_calibration_raises_the_likelihood_and_meets_counts_that_trips_can_make(graph: LineGraph) -> None:
    trips = route_set(graph, search_routes(graph, SearchSettings(), searches=40, seed=0))
    view = SensorView.of(trips.through_node, third(graph.num_nodes))
    counts = view.by_sensor @ np.random.default_rng(0).gamma(1.0, 1.0, (len(trips.routes), 1))
    numbers = first_numbers(view, counts)
    np.testing.assert_allclose((view.by_sensor @ numbers).sum(), counts.sum(), rtol=1e-5)
    fitted = []
    for _ in range(6):
        flow = view.by_sensor @ numbers
        fitted.append(float((counts * np.log(flow) - flow).sum()))
        numbers = view.calibrate(numbers, counts, iterations=10, hold=0.0)
        assert (numbers >= 0).all()
    assert (np.diff(fitted) > -1e-3 * abs(fitted[0])).all() and fitted[-1] > fitted[0]
    np.testing.assert_allclose(view.by_sensor @ numbers, counts, rtol=0.05)


def test_bins_are_local_kinds_of_day_and_hours() -> None:
    times_s = MONDAY_S + 86400 * np.array([0, 5, 7]) - np.array([0, 1, 0])
    assert hourly_bins(wall_clock(times_s)).tolist() == [0, 23, 0]
    assert hourly_bins(wall_clock(np.array([MONDAY_S + 5 * 86400]))).tolist() == [24]
    values = np.zeros((3, SIDE * SIDE), np.float32)
    tokyo = make_stream(values, grid(), start_s=MONDAY_S, step_s=3600, timezone="Asia/Tokyo", quantity="count")
    assert hourly_bins(tokyo.wall_clock).tolist() == [9, 10, 11]


def test_usual_counts_by_hand_with_gaps(stream: RoadNetworkStream) -> None:
    sensors = third(stream.num_nodes)
    hourly = usual_counts(stream, sensors)
    bins = hourly_bins(stream.wall_clock)
    node = int(np.flatnonzero(sensors)[0])
    np.testing.assert_allclose(hourly[8, node], stream.values[bins == 8, node].mean(), rtol=1e-6)
    expected = (5 * hourly[:24, node].mean() + 2 * hourly[24:, node].mean()) / 7
    np.testing.assert_allclose(week_mean(hourly)[node], expected, rtol=1e-6)
    assert np.isnan(hourly[:, ~sensors]).all()
    observed = stream.observed.copy()
    observed[48:, node] = False  # weekdays only
    gappy = usual_counts(replace(stream, observed=observed), sensors)
    assert np.isfinite(gappy[:24, node]).all() and np.isnan(gappy[24:, node]).all()
    observed[:, node] = False
    assert np.isnan(usual_counts(replace(stream, observed=observed), sensors)[:, node]).all()


def test_empty_hours_are_filled_with_the_profile_by_hand() -> None:
    hourly = np.full((BINS, 4), np.nan)
    hourly[:, 0], hourly[:, 1] = 10.0, 30.0
    hourly[7, :2] = 20.0, 60.0  # the rush hour of a weekday
    hourly[:24, 2] = 4.0  # nothing at weekends
    hourly[7, 2] = np.nan
    filled = fill_empty_hours(hourly)
    level = np.array([10.0, 30.0]) * (163 + 5 * 2) / 168
    np.testing.assert_allclose(filled[7, 2], 4 * (20 + 60) / level.sum())
    np.testing.assert_allclose(filled[30, 2], 4 * (10 + 30) / level.sum())
    known = np.isfinite(hourly)
    np.testing.assert_array_equal(filled[known], hourly[known])
    assert np.isfinite(filled[:, :3]).all() and np.isnan(filled[:, 3]).all()
    # An hour that no node knows is taken to be an average one.
    hourly[30] = np.nan
    np.testing.assert_allclose(fill_empty_hours(hourly)[30, 2], 4.0)


def test_searches_are_compared_without_knowing_the_sensor_they_are_judged_at(
    stream: RoadNetworkStream, graph: LineGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor through the empty hours of the other sensors, which are filled in."""
    sensors = third(stream.num_nodes)
    hourly = usual_counts(stream, sensors)
    hourly[8:12, np.flatnonzero(sensors)[::2]] = np.nan
    known_to: list[NDArray[np.floating]] = []

    def noted(view: SensorView, counts: NDArray[np.floating]) -> NDArray[np.floating]:
        known_to.append(counts)
        return first_numbers(view, counts)

    monkeypatch.setattr(tuning, "first_numbers", noted)
    other = hourly.copy()
    other[8, np.flatnonzero(sensors)[1]] *= 1000
    for each in (hourly, other):
        hidden_error(graph, each, SearchSettings(), DemandSettings(), seed=0)
    unmoved = [np.array_equal(*pair) for pair in zip(known_to[:3], known_to[3:], strict=True)]
    assert sum(unmoved) == 1  # the fold that hides the sensor


def test_demand_knows_nodes_without_a_sensor_better_than_a_constant(
    graph: LineGraph, stream: RoadNetworkStream, demand: Demand
) -> None:
    truth = driven(graph)[1]
    unseen = ~demand.sensors
    flow = np.repeat([5.0, 2.0], 24) @ demand.node_flow / 168
    constant = np.abs(np.median(truth[~unseen]) - truth[unseen]).mean()
    assert np.abs(flow - truth)[unseen].mean() < 0.5 * constant
    assert demand.fit < 0.25
    assert demand.node_flow.shape == (BINS, graph.num_nodes) and demand.road_flow.shape == (BINS, graph.num_roads)
    assert (demand.node_spread[demand.sensors].mean()) < demand.node_spread[unseen].mean()


def test_readings_of_other_nodes_have_no_influence(stream: RoadNetworkStream, demand: Demand) -> None:
    values = stream.values.copy()
    values[:, ~demand.sensors] = 9e6
    values[100:, demand.sensors] = 9e6  # after the period
    cities = (City("Grid", each) for each in (replace(stream, values=values), stream))
    few = DemandSettings(sets=2)
    again, same = (estimate_demand(city, sensors=demand.sensors, period=(0, 100), settings=few) for city in cities)
    for name in ("node_flow", "usual_counts", "usual_medians"):
        np.testing.assert_array_equal(getattr(again, name), getattr(same, name))


def test_a_gauge_has_no_demand(stream: RoadNetworkStream) -> None:
    with raises(CityError, "speed"):
        estimate_demand(City("Grid", replace(stream, quantity="speed")))


def test_a_city_without_a_reading_has_no_demand(stream: RoadNetworkStream) -> None:
    with raises(CityError, "Silent", "reading"):
        estimate_demand(City("Silent", replace(stream, observed=np.zeros_like(stream.observed))))


@pytest.mark.parametrize("sensors", [np.ones(3, bool), np.array([0, 2]), np.ones((49, 1), bool), np.ones(49)])
def test_sensors_are_a_bool_for_each_node(sensors: NDArray[Any], stream: RoadNetworkStream) -> None:
    with raises(SettingsError, "sensors", str(sensors.dtype), "49"):
        estimate_demand(City("Grid", stream), sensors)


def test_by_default_all_sensors_are_used_and_the_searches_chosen(
    stream: RoadNetworkStream, graph: LineGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TRIED", 4), ("TRIED_IN_LARGE", 4), ("MIN_SENSORS", 12)):
        monkeypatch.setattr(tuning, name, value)
    some = replace(stream, observed=stream.observed & third(stream.num_nodes))
    turns = np.array([[0, 1, 2]])
    found = estimate_demand(City("Grid", some, forbidden_turns=turns), period=(0, 200), seed=3)
    np.testing.assert_array_equal(found.sensors, third(stream.num_nodes))
    chosen = choose_settings(some, some.sensors, period=(0, 200), forbidden_turns=turns, seed=3)
    assert found.settings == chosen != DemandSettings() and found.seed == 3
    assert found.graph.digest == line_graph(grid(), turns).digest != graph.digest


def test_in_a_very_large_network_searches_are_compared_by_a_quarter_of_a_set(
    stream: RoadNetworkStream, graph: LineGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensors = third(stream.num_nodes)
    settings = DemandSettings()
    asked = []

    def search(*args: Any, searches: int, seed: int) -> Routes:
        asked.append(searches)
        return search_routes(*args, searches=searches, seed=seed)

    monkeypatch.setattr(tuning, "search_routes", search)
    hourly = usual_counts(stream, sensors)
    for largest in (tuning.VERY_LARGE, graph.num_nodes - 1):
        monkeypatch.setattr(tuning, "VERY_LARGE", largest)
        hidden_error(graph, hourly, SearchSettings(), settings, seed=0)
    assert asked == [num_searches(graph), num_searches(graph) // 4]


def test_the_searches_are_those_with_the_least_error_at_hidden_sensors(
    stream: RoadNetworkStream, graph: LineGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "TRIED", 8)
    monkeypatch.setattr(tuning, "TRIED_IN_LARGE", 8)
    monkeypatch.setattr(tuning, "MIN_SENSORS", 12)
    sensors = third(stream.num_nodes)
    start = DemandSettings(sets=3)
    chosen = choose_settings(stream, sensors, start=start)
    assert len(set(chosen.searches)) == 3 and replace(chosen, searches=start.searches) == start
    hourly = usual_counts(stream, sensors)
    errors = {s: hidden_error(graph, hourly, s, start, seed=0) for s in searches_to_try(8)}
    assert list(chosen.searches) == sorted(errors, key=errors.__getitem__)[:3]
    assert DemandSettings.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    former = {"below_mean": 0.3, "below_share": 0.1}
    former |= {name: value for name, value in chosen.to_json().items() if not name.startswith("median_gap")}
    assert DemandSettings.from_json(former) == replace(chosen, median_gap=0.3, median_gap_share=0.1)
    few = np.zeros(stream.num_nodes, bool)
    few[:5] = True
    assert choose_settings(stream, few) == DemandSettings()


def test_drivers_who_mind_distance_and_trips_that_end_on_fast_roads(graph: LineGraph) -> None:
    fast = np.arange(graph.num_roads) % 10 == 0
    graph = replace(graph, time_s=np.where(fast, 0.2, 1.0) * graph.time_s)
    by_distance = road_cost_s(graph, SearchSettings(speed_weight=0.0, crossing_s=0.0))
    np.testing.assert_allclose(by_distance, graph.length_m * 3.6 / 50)
    np.testing.assert_allclose(road_cost_s(graph, SearchSettings(crossing_s=7.0)), graph.time_s + 7)

    def ends_on_fast(power: float) -> tuple[float, float]:
        routes = search_routes(graph, SearchSettings(fast_ends=power), searches=60, seed=2)
        return float(fast[routes.origin].mean()), float(fast[routes.destination].mean())

    assert max(ends_on_fast(0.0)) < 0.2  # a tenth of the roads
    origins, destinations = ends_on_fast(2.0)  # 25 times as likely an end as any other
    assert origins > 0.5 and destinations > 0.3


def test_the_prior_holds_trip_numbers_back(graph: LineGraph) -> None:
    trips = route_set(graph, search_routes(graph, SearchSettings(), searches=30, seed=0))
    view = SensorView.of(trips.through_node, third(graph.num_nodes))
    counts = np.random.default_rng(0).gamma(2.0, 5.0, (view.at_sensor.shape[1], 1))
    start = first_numbers(view, counts)

    def moved(hold: float) -> float:
        return float(np.abs(view.calibrate(start, counts, iterations=40, hold=hold) - start).sum())

    assert moved(0.0) > moved(0.1) > moved(10.0) > 0


def test_usual_medians_by_hand(stream: RoadNetworkStream) -> None:
    sensors = third(stream.num_nodes)
    node = int(np.flatnonzero(sensors)[0])
    observed = stream.observed.copy()
    observed[:30, node] = False
    medians = usual_medians(replace(stream, observed=observed), sensors, (0, 150))
    at = np.flatnonzero((hourly_bins(stream.wall_clock)[:150] == 9) & observed[:150, node])
    assert medians[9, node] == np.median(stream.values[at, node])
    assert np.isnan(medians[:, ~sensors]).all()


def test_nodes_lean_on_the_sensors_that_their_trips_pass(graph: LineGraph, demand: Demand) -> None:
    sensor_shares = demand.sensor_shares
    N = graph.num_nodes
    np.testing.assert_allclose(sensor_shares.share.sum(1) + sensor_shares.rest, 1, atol=1e-5)
    assert demand.sensors[sensor_shares.sensor[sensor_shares.share > 0]].all()
    by_hand = np.zeros((N, N))  # what share of node v's vehicles is counted at sensor u, each vehicle once
    for trips, numbers in zip(demand.sets, demand.numbers, strict=True):
        through = trips.through_node.toarray()
        flow = trips.through_node.T @ numbers
        seen = through * demand.sensors
        weight = numbers / np.maximum(seen.sum(1), 1)
        by_hand += (through.T * weight) @ seen / flow[:, None] / len(demand.sets)
    shares = np.zeros((N, N))
    np.add.at(shares, (np.arange(N)[:, None], sensor_shares.sensor), sensor_shares.share)
    np.testing.assert_allclose(shares, by_hand, atol=0.01)  # small shares are left out


def test_a_change_at_the_sensors_is_a_change_everywhere(demand: Demand) -> None:
    sensor_shares = demand.sensor_shares
    ratio = torch.ones(3, len(demand.sensors))
    ratio[1], ratio[2, :24] = 2.0, 0.5
    known = torch.from_numpy(demand.sensors).expand(3, -1).clone()
    told = {name: torch.from_numpy(getattr(sensor_shares, name)) for name in ("sensor", "share", "rest")}
    change, _ = propagate(ratio, known, **told, everywhere=torch.tensor([[1.0], [2.0], [1.0]]))
    np.testing.assert_allclose(change[0], 1, atol=1e-5)
    np.testing.assert_allclose(change[1], 2, atol=1e-5)
    assert (change[2, :24][demand.sensors[:24]] < 0.75).all()  # follows its own sensors
    assert change[2, :14].mean() < change[2, -14:].mean() <= 1.1
    known[2] = False  # and nobody read them: nothing is known
    silent, _ = propagate(ratio, known, **told, everywhere=torch.tensor([[1.0], [2.0], [1.0]]))
    np.testing.assert_allclose(silent[2], 1, atol=1e-5)


def closed_network(graph: LineGraph, closed: NDArray[np.bool_]) -> RoadNetwork:
    ends = zip(graph.senders[closed].tolist(), graph.receivers[closed].tolist(), strict=True)
    return grid().close(list(ends))


def test_closing_a_road_moves_its_trips_and_no_others(graph: LineGraph, demand: Demand) -> None:
    middle = road(graph, 3 * SIDE + 2, 3 * SIDE + 3)
    closed = np.zeros(graph.num_roads, bool)
    closed[middle] = True
    (found,) = reroute([demand], detours(demand, closed_network(graph, closed)))
    assert found.road_change[middle] == 0 and found.lost == 0
    assert found.node_change.max() > 1.02 and 0 < found.node_change.min() < 0.98
    (as_it_was,) = reroute([demand], detours(demand, grid()))
    np.testing.assert_allclose(as_it_was.node_change, 1, atol=1e-5)
    # A trip that did not use the road is searched again and found to be the same.
    settings = replace(SearchSettings(), turn_s=20.0)
    routes = search_routes(graph, settings, searches=10, seed=4)
    again = search_again(line_graph(grid(), closed=closed), settings, routes, seed=4)
    kept = 0
    for row in range(len(routes)):
        if middle in trip(routes, row):
            assert middle not in trip(again, row)
        elif middle not in (routes.origin[row], routes.destination[row]):
            assert trip(again, row) == trip(routes, row)
            kept += 1
    assert kept > 200


def test_the_change_is_that_of_the_middle_half_of_the_sets(graph: LineGraph, stream: RoadNetworkStream) -> None:
    demand = estimate_demand(City("Grid", stream), third(stream.num_nodes), settings=DemandSettings(sets=4))
    closed = np.arange(graph.num_roads) == road(graph, 3 * SIDE + 2, 3 * SIDE + 3)
    ways = detours(demand, closed_network(graph, closed))
    alone = []
    for k in range(len(demand.sets)):
        one = replace(demand, sets=demand.sets[k : k + 1], numbers=demand.numbers[k : k + 1])
        of_one = replace(ways, rows=ways.rows[k : k + 1], routes=ways.routes[k : k + 1])
        alone.append(reroute([one], of_one)[0].node_change)
    logs = np.sort(np.log(alone), axis=0)
    assert len(logs) == 4 and (logs[1] != logs[2]).any()
    np.testing.assert_allclose(reroute([demand], ways)[0].node_change, np.exp((logs[1] + logs[2]) / 2), rtol=1e-5)


def detours(demand: Demand, network: RoadNetwork) -> Detours:
    return find_detours(grid(), network, demand.sets, demand.settings, seed=demand.seed)


def test_a_new_road_attracts_trips_and_takes_them_from_others(graph: LineGraph, demand: Demand) -> None:
    ends = [(0, SIDE * SIDE - 1), (SIDE * SIDE - 1, 0)]  # from corner to corner, as by a tunnel
    across = grid().add(roads=ends, length_m=[50.0, 50.0])
    (found,) = reroute([demand], detours(demand, across))
    assert found.node_change[0] > 1.1 and found.node_change[-1] > 1.1
    assert found.node_change[SIDE + 1 : -SIDE - 1].mean() < 0.99
    (back,) = reroute([demand], detours(demand, across.close(ends)))
    np.testing.assert_allclose(back.node_change, 1, atol=1e-5)


def test_a_road_is_named_by_its_ends_and_in_a_city_on_roads_by_its_id() -> None:
    network = grid()
    a, b = network.node_ids[[network.senders[7], network.receivers[7]]].tolist()
    assert find_road(network, (a, b)) == find_road(network, (str(a), str(b))) == (7, False)
    line = on_roads(network)
    road = line.node_ids[5]
    assert find_road(line, road) == find_road(line, tuple(road.split(">"))) == (5, True)
    turn = line.node_ids[[line.senders[9], line.receivers[9]]].tolist()
    assert find_road(line, tuple(turn)) == (9, False)
    for where, nowhere in ((network, (a, a)), (line, (a, a)), (line, (road, road)), (network, a)):
        with raises(CityError, str(nowhere[0] if isinstance(nowhere, tuple) else nowhere)):
            find_road(where, nowhere)


def test_nobody_passes_a_node_that_cannot_be_reached(graph: LineGraph, demand: Demand) -> None:
    node = 3 * SIDE + 3
    for closed in (graph.receivers == node, graph.senders == node):
        network = closed_network(graph, closed)
        (found,) = reroute([demand], detours(demand, network))
        assert np.flatnonzero(found.node_change == 0).tolist() == [node]
        assert np.flatnonzero(newly_cut_off(grid(), network)).tolist() == [node]
    assert found.lost > 0  # those who were going to leave it
    half = (graph.senders // SIDE == 2) & (graph.receivers // SIDE == 3)
    half |= (graph.senders // SIDE == 3) & (graph.receivers // SIDE == 2)
    apart = closed_network(graph, half)
    assert np.flatnonzero(newly_cut_off(grid(), apart)).tolist() == list(range(3 * SIDE))
    ways = detours(demand, apart)
    gone = [
        numbers[rows[np.diff(found.routes.start) == 0]].sum()
        for numbers, rows, found in zip(demand.numbers, ways.rows, ways.routes, strict=True)
    ]
    share = sum(gone) / sum(numbers.sum() for numbers in demand.numbers)
    assert reroute([demand], ways)[0].lost == pytest.approx(share) and 0.2 < share < 0.8


def test_detours_are_counted_by_other_sensors(graph: LineGraph, demand: Demand) -> None:
    as_it_was = sensor_shares_on_detours(demand, detours(demand, grid()))
    np.testing.assert_allclose(as_it_was.share, demand.sensor_shares.share, atol=1e-5)
    # A town cut in two: what a sensor counts on one side says nothing of the other.
    row = np.arange(graph.num_nodes) // SIDE
    apart = closed_network(graph, (row[graph.senders] < 3) != (row[graph.receivers] < 3))

    def across(sensor_shares: SensorShares) -> float:
        other_side = (row[sensor_shares.sensor] < 3) != (row < 3)[:, None]
        return float(sensor_shares.share[other_side].sum())

    cut = sensor_shares_on_detours(demand, detours(demand, apart))
    assert across(demand.sensor_shares) > 1 and across(cut) == 0
    np.testing.assert_allclose(cut.share.sum(1) + cut.rest, 1, atol=1e-5)
    assert cut.share.sum() > 0.5 * demand.sensor_shares.share.sum()  # of the trips that stay on their side


def test_flows_as_a_table_and_a_map(stream: RoadNetworkStream, demand: Demand) -> None:
    network = stream.network
    table = road_columns(demand)
    assert {len(column) for column in table.values()} == {BINS * network.num_edges}
    row = 30 * network.num_edges + 5  # weekend, 6 o'clock, road 5
    assert (table["kind_of_day"][row], table["hour"][row]) == ("weekend", 6)
    assert table["vehicles_per_hour"][row] == demand.road_flow[30, 5]
    assert (table["source"][row], table["target"][row]) == (network.senders[5], network.receivers[5])
    features = road_features_geojson(replace(demand, step_s=1800))["features"]
    assert len(features) == network.num_edges
    assert features[5]["properties"]["weekend_06"] == pytest.approx(2 * float(demand.road_flow[30, 5]), abs=0.01)


def test_the_trips_through_a_road_add_up_to_its_flow(
    stream: RoadNetworkStream, graph: LineGraph, demand: Demand
) -> None:
    e = road(graph, 3 * SIDE + 2, 3 * SIDE + 3)
    through = trips_through(demand, (3 * SIDE + 2, 3 * SIDE + 3))
    movements = through.movements
    week = np.repeat([5.0, 2.0], 24) / 168 * 24
    flows = [float((trips.through_road.T @ demand.trips(k))[e] @ week) for k, trips in enumerate(demand.sets)]
    assert sum(movement.vehicles_per_day for movement in movements) == pytest.approx(np.mean(flows), rel=1e-4)
    sizes = [movement.vehicles_per_day for movement in movements]
    assert sizes == sorted(sizes, reverse=True) and len(movements) > 3
    assert through.row == e
    assert through.vehicles_per_day == pytest.approx(sum(sizes))
    np.testing.assert_allclose(week @ through.road_flow[:, e], np.mean(flows), rtol=1e-4)
    for daily, ends in ((through.starting, "origin"), (through.ending, "destination")):
        a, b = getattr(movements[0], ends)
        assert daily[road(graph, a, b)] >= sizes[0] * 0.999
        assert daily.sum() == pytest.approx(sum(sizes))
    # On the trips' first roads are at least those that start there; nowhere are more than on the road itself.
    assert (week @ through.road_flow >= 0.999 * np.maximum(through.starting, through.ending)).all()
    assert (week @ through.road_flow <= 1.001 * np.mean(flows)).all()
    with raises(CityError, "0 to 48"):
        trips_through(demand, (0, 48))
