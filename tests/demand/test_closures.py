"""How drivers answer closed roads, and what a closed or a new road does to a place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from frigate.calendar import BINS
from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.demand import trip_model
from frigate.demand.closures import FEW_SETS, MANY_NETWORKS, detour_sets, fit_response
from frigate.demand.count_profiles import usual_counts, usual_medians
from frigate.demand.estimate import Demand
from frigate.demand.rerouting import Detours, Rerouted, find_detours, reroute
from frigate.demand.settings import ClosureResponse, DemandSettings
from frigate.demand.tables import DemandTables
from frigate.demand.trip_model import TripModel, estimate_demand
from frigate.errors import SettingsError
from tests.support.errors import raises
from tests.support.grids import grid_network

SIDE = 8
MONDAY_S = 1_704_067_200  # 2024-01-01T00:00Z
PRIOR = ClosureResponse()
AS_TRIPS_SAY = DemandSettings(sets=2, detour_sets=2, closures=ClosureResponse(1.0, 1.0))


def with_closures(
    answer: ClosureResponse, *, days: int = 28, noise: float = 0.05, seed: int = 0
) -> tuple[RoadNetworkStream, dict[str, NDArray[np.float64]]]:
    """Hourly counts at every crossing of a grid; every tenth hour another road is closed, and drivers answer so.

    Returned are the stream and what the trips would say of each network.
    """
    rng = np.random.default_rng(seed)
    usual = grid_network(SIDE)
    N = usual.num_nodes
    ids = usual.node_ids.tolist()
    ends = list(zip(usual.senders.tolist(), usual.receivers.tolist(), strict=True))
    networks = [usual] + [usual.close([(ids[a], ids[b])]) for a, b in ends[::7]]
    said = {usual.fingerprint: np.ones(N)}
    for network in networks[1:]:
        ratio = np.exp(rng.normal(0, 0.8, N))
        ratio[rng.random(N) < 0.5] = 1
        said[network.fingerprint] = ratio
    hours = 24 * days
    network_of = np.where(np.arange(hours) % 10 == 0, 1 + rng.integers(0, len(networks) - 1, hours), 0)
    level = rng.gamma(3, 30, N)
    busy = np.exp(rng.normal(0, 0.2, hours))  # a day is busier than another everywhere
    change = np.stack([answer.answer(said[network.fingerprint]) for network in networks])[network_of]
    values = level * busy[:, None] * change * np.exp(rng.normal(0, noise, (hours, N)))
    return make_stream(values, networks, start_s=MONDAY_S, step_s=3600, network_of=network_of), said


def fitted(stream: RoadNetworkStream, said: dict[str, NDArray[np.float64]], period: tuple[int, int]) -> ClosureResponse:
    every = np.ones(stream.num_nodes, bool)
    return fit_response(stream, period, stream.networks[0], every, lambda network: said[network.fingerprint], PRIOR)


@pytest.mark.parametrize("answer", [ClosureResponse(0.4, 0.2), ClosureResponse(1.0, 0.0), ClosureResponse(0.0, 1.0)])
def test_the_answer_is_learned_from_the_record(answer: ClosureResponse) -> None:
    stream, said = with_closures(answer)
    found = fitted(stream, said, (0, stream.num_snapshots))
    assert abs(found.fewer - answer.fewer) <= 0.11
    assert abs(found.more - answer.more) <= 0.11


def test_the_usual_answer_stays_where_the_record_says_nothing_clear() -> None:
    stream, said = with_closures(ClosureResponse(0.7, 0.6), noise=1.5)
    period = (0, 5 * 24)
    assert fitted(stream, said, period) == PRIOR
    alone = replace(stream, network_of=np.zeros_like(stream.network_of))
    assert fitted(alone, said, (0, stream.num_snapshots)) == PRIOR


def test_only_the_given_period_is_learned_from() -> None:
    """Later closures belong to the test."""
    stream, said = with_closures(ClosureResponse(0.4, 0.2))
    later = stream.values.copy()
    later[14 * 24 :] = 1e6
    assert fitted(stream, said, (0, 14 * 24)) == fitted(replace(stream, values=later), said, (0, 14 * 24))


def test_the_estimate_at_a_sensor_does_not_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sensor knows what passes it: trips calibrated to its counts would seem better than they are elsewhere."""
    stream, _ = with_closures(PRIOR, days=3)
    every = np.ones(stream.num_nodes, bool)
    said: list[NDArray[np.floating]] = []

    def noted(*args: Any) -> ClosureResponse:
        changes, prior = args[-2:]
        said.append(changes(stream.networks[1]))
        return prior

    monkeypatch.setattr(trip_model, "fit_response", noted)
    place = 3 * SIDE + 3
    louder = np.where(np.arange(stream.num_nodes) == place, 30, 1) * stream.values
    for record in (stream, replace(stream, values=louder.astype(np.float32))):
        trips = TripModel.of(
            stream.networks[0],
            AS_TRIPS_SAY,
            step_s=3600,
            usual_counts=usual_counts(record, every),
            usual_medians=usual_medians(record, every),
            seed=0,
        )
        trips.with_fitted_response(record, every, None)
    before, after = said
    assert before[place] == after[place] != 1
    assert (before != after).sum() > 10


def test_few_route_sets_are_rerouted_where_the_record_has_many_networks() -> None:
    stream, _ = with_closures(PRIOR, days=3)
    assert len(stream.networks) < MANY_NETWORKS
    assert detour_sets(stream, (0, stream.num_snapshots), 16) == 16
    usual = stream.networks[0]
    ends = list(zip(usual.senders.tolist(), usual.receivers.tolist(), strict=True))
    ids = usual.node_ids
    many = tuple(usual.close([(ids[a].item(), ids[b].item())]) for a, b in ends[: MANY_NETWORKS + 1])
    changing = replace(stream, networks=many, network_of=np.arange(stream.num_snapshots) % len(many))
    assert detour_sets(changing, (0, stream.num_snapshots), 16) == FEW_SETS
    assert detour_sets(changing, (0, MANY_NETWORKS), 16) == 16
    assert detour_sets(changing, (0, stream.num_snapshots), 2) == 2


@pytest.mark.parametrize("wrong", [{"fewer": -0.1}, {"more": 2.5}, {"fewer": float("nan")}])
def test_an_answer_is_a_number_from_0_to_2(wrong: dict[str, float]) -> None:
    with raises(SettingsError, next(iter(wrong))):
        ClosureResponse(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"sets": 2.5}, {"hold": "0.1"}, {"searches": ()}, {"power": 1.5}, {"median_gap": float("nan")}]
)
def test_settings_are_of_their_kind_and_in_their_range(wrong: dict[str, Any]) -> None:
    with raises(SettingsError, next(iter(wrong))):
        DemandSettings(**wrong)


def test_settings_of_old_runs_have_drivers_who_answer_as_the_trips_say() -> None:
    settings = DemandSettings(closures=ClosureResponse(0.5, 0.1), detour_sets=4)
    kept = settings.to_json()
    assert DemandSettings.from_json(kept) == settings
    old = {name: value for name, value in kept.items() if name not in ("closures", "detour_sets")}
    assert DemandSettings.from_json(old).closures == ClosureResponse(1.0, 1.0)


# What a closed road does


def hourly_city(seed: int = 0, days: int = 7) -> City:
    """Counts of a grid in which all trips go along the rows, many of them in the middle."""
    network = grid_network(SIDE)
    row = np.arange(SIDE * SIDE) // SIDE
    rng = np.random.default_rng(seed)
    values = rng.poisson(np.where(np.isin(row, [3, 4]), 120.0, 20.0), (24 * days, SIDE * SIDE)).astype(float)
    return City("Rows", make_stream(values, network, start_s=MONDAY_S, step_s=3600))


@pytest.fixture(scope="module")
def demand() -> Demand:
    city = hourly_city()
    sensors = np.arange(SIDE * SIDE) % 3 != 1
    return estimate_demand(city, sensors, settings=AS_TRIPS_SAY)


def shut_row(network: RoadNetwork) -> RoadNetwork:
    """The road in the middle of the busiest row is closed."""
    a, b = network.node_ids[[3 * SIDE + 3, 3 * SIDE + 4]].tolist()
    return network.close([(a, b), (b, a)])


def detours(demand: Demand, network: RoadNetwork) -> Detours:
    return find_detours(demand.network, network, demand.sets, demand.settings, seed=demand.seed)


def with_answer(demand: Demand, answer: ClosureResponse) -> Demand:
    return replace(demand, settings=replace(demand.settings, closures=answer))


def test_drivers_answer_as_far_as_the_exponents_say(demand: Demand) -> None:
    ways = detours(demand, shut_row(demand.network))
    (full,) = reroute([demand], ways)
    (none,) = reroute([with_answer(demand, ClosureResponse(0.0, 0.0))], ways)
    (half,) = reroute([with_answer(demand, ClosureResponse(0.5, 0.25))], ways)
    assert (full.node_change > 1.1).any()
    assert (full.node_change < 0.9).any()
    np.testing.assert_allclose(none.node_change, 1)
    fewer = full.node_change < 1
    np.testing.assert_allclose(half.node_change[fewer], full.node_change[fewer] ** 0.5, rtol=1e-5)
    np.testing.assert_allclose(half.node_change[~fewer], full.node_change[~fewer] ** 0.25, rtol=1e-5)
    open_roads = ~ways.closed
    fewer = full.road_change < 1
    np.testing.assert_allclose(
        half.road_change[open_roads & fewer], full.road_change[open_roads & fewer] ** 0.5, rtol=1e-5
    )
    assert (none.road_change[ways.closed] == 0).all()


def test_several_demands_are_rerouted_as_each_alone(demand: Demand) -> None:
    city = hourly_city()
    other = estimate_demand(city, np.arange(SIDE * SIDE) % 4 != 1, settings=AS_TRIPS_SAY)
    ways = detours(demand, shut_row(demand.network))
    both = reroute([demand, other], ways)
    for one, together in zip((demand, other), both, strict=True):
        (alone,) = reroute([one], ways)
        np.testing.assert_allclose(together.node_change, alone.node_change, rtol=1e-4)
        assert together.lost == pytest.approx(alone.lost, abs=1e-6)


def test_only_the_first_sets_are_rerouted_where_few_are_wanted(demand: Demand) -> None:
    few = replace(demand, settings=replace(demand.settings, detour_sets=1))
    ways = detours(few, shut_row(demand.network))
    assert len(ways.routes) == 1
    (found,) = reroute([few], ways)
    (first,) = reroute([replace(few, sets=demand.sets[:1], numbers=demand.numbers[:1])], ways)
    np.testing.assert_array_equal(found.node_change, first.node_change)


def test_diverted_vehicles_are_added_in_a_quiet_street(demand: Demand) -> None:
    """A ratio would multiply what little passes there, and forecast a fraction of those who come."""
    ways = detours(demand, shut_row(demand.network))
    moved = np.mean(
        [
            other.through_node.T @ numbers[rows] - trips.through_node[rows].T @ numbers[rows]
            for trips, numbers, rows, other in zip(demand.sets, demand.numbers, ways.rows, ways.routes, strict=True)
        ],
        axis=0,
    )
    place = int(np.argmax(np.where(demand.sensors, 0, moved)))
    level = demand.level * demand.level_factor
    assert moved[place] > 0.2 * level.mean()
    factor = demand.level_factor.copy()
    factor[place] *= 1e-3 * level.mean() / level[place]  # says the map: hardly anybody passes
    (found,) = reroute([replace(demand, level_factor=factor)], ways)
    quiet_level = demand.level[place] * factor[place]
    assert quiet_level * found.node_change[place] == pytest.approx(moved[place], rel=0.1)
    (busy,) = reroute([demand], ways)
    others = np.arange(len(level)) != place
    np.testing.assert_allclose(found.node_change[others], busy.node_change[others], rtol=0.02)


# Roads that open during the record


@pytest.fixture(scope="module")
def grown() -> tuple[City, int]:
    """A crossing that gets its roads after two thirds of the record, and counts from then on."""
    city = hourly_city(days=9)
    stream = city.stream
    full = stream.networks[0]
    node = 3 * SIDE + 3
    before = full.close_nodes(full.node_ids[[node]].tolist())
    bare = before.with_roads(before.edges)  # a map that does not know of these roads
    opened = np.arange(stream.num_snapshots) >= 6 * 24
    observed = stream.observed & (opened[:, None] | (np.arange(stream.num_nodes) != node))
    changing = replace(stream, networks=(bare, full), network_of=opened.astype(np.int64), observed=observed)
    return replace(city, stream=changing), node


@pytest.mark.parametrize("sensor", [True, False], ids=["with a sensor", "without"])
def test_a_crossing_that_gets_roads_later_has_the_traffic_that_they_bring(
    grown: tuple[City, int], sensor: bool
) -> None:
    city, node = grown
    sensors = np.arange(SIDE * SIDE) % 3 != 1
    sensors[node] = sensor
    demand = estimate_demand(city, sensors, settings=AS_TRIPS_SAY)
    usual, full = city.stream.networks
    assert demand.network.fingerprint == usual.fingerprint
    ways = find_detours(usual, full, demand.sets, demand.settings, seed=demand.seed)
    (found,) = reroute([demand], ways)
    tables = DemandTables.of([demand], "cpu", step_s=3600)
    forecast = tables.usual[0, :, node].mean().item() * found.node_change[node]
    truth = city.stream.values[6 * 24 :, node].mean()
    assert found.node_change[node] == 1 if sensor else found.node_change[node] != 1
    assert truth / (1.2 if sensor else 3) < forecast < truth * (1.2 if sensor else 3)
    (as_it_was,) = reroute([demand], find_detours(usual, usual, demand.sets, demand.settings, seed=demand.seed))
    assert isinstance(as_it_was, Rerouted)
    if not sensor:
        assert tables.usual[0, :, node].mean().item() < 0.01 * truth


# Readings of a closed road


def test_readings_of_a_closed_node_are_not_its_usual_day() -> None:
    """A crossing closed for a week counts the few who may still pass."""
    city = hourly_city(days=21)
    stream = city.stream
    node = 3 * SIDE + 3
    closed = np.zeros(stream.num_snapshots, np.int64)
    closed[7 * 24 : 14 * 24] = 1
    values = stream.values.copy()
    values[closed == 1, node] = 3
    record = replace(
        stream,
        values=values,
        networks=(stream.networks[0], stream.networks[0].close_nodes(stream.node_ids[[node]].tolist())),
        network_of=closed,
    )
    every = np.ones(stream.num_nodes, bool)
    without = replace(stream, observed=stream.observed & ((closed == 0)[:, None] | (np.arange(64) != node)))
    for table in (usual_counts, usual_medians):
        made = table(record, every)
        assert made.shape[0] == BINS
        np.testing.assert_array_equal(made[:, node], table(without, every)[:, node])
        np.testing.assert_array_equal(made[:, node + 2], table(stream, every)[:, node + 2])
    always = replace(record, network_of=np.ones_like(closed))  # closed all along: that is its usual day
    np.testing.assert_array_equal(usual_counts(always, every), usual_counts(replace(stream, values=values), every))
