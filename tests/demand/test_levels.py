"""How busy a place is according to the sensors around it, beside what the trips say."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.demand import levels, trip_model
from frigate.demand.count_profiles import usual_counts, usual_medians, week_mean
from frigate.demand.levels import (
    INPUTS,
    SCALES,
    Estimates,
    LevelSettings,
    Places,
    estimate_levels,
    fit_levels,
    places_of,
)
from frigate.demand.settings import DemandSettings
from frigate.demand.trip_model import TripModel, estimate_demand
from frigate.draws import keys_of
from frigate.errors import SettingsError
from frigate.roads.feature_cache import features_of
from frigate.roads.features import road_features
from frigate.roads.on_roads import on_roads
from frigate.simulate.demo_city import demo_city
from tests.support.errors import raises
from tests.support.grids import grid_network

Floats = NDArray[np.floating]


def streets(side: int = 12) -> RoadNetwork:
    """A grid whose streets from west to east have names, every third an avenue."""
    network = grid_network(side)
    row = np.minimum(network.senders, network.receivers) // side
    along = network.senders // side == network.receivers // side
    names = [f"{'Avenue' if k % 3 == 0 else 'Rue'} {k}" if east else "" for k, east in zip(row, along, strict=True)]
    return network.with_roads(replace(network.edges, name=np.array(names, np.str_)))


NETWORK = streets()
N = NETWORK.num_nodes
KEYS = keys_of(NETWORK.node_ids)
PLACES = places_of(NETWORK, road_features(NETWORK))
SEEN = np.random.default_rng(1).permutation(N)[:90]
UNSEEN = np.setdiff1d(np.arange(N), SEEN)


def estimates(level: Floats, spread: float = 0.3) -> Estimates:
    return Estimates(np.asarray(level, np.float64), np.full(N, spread))


def by_street(*, noise: float = 0.05) -> Floats:
    """Each street has a level of its own, avenues a higher one."""
    rng = np.random.default_rng(2)
    street = np.arange(N) // 12
    return (rng.gamma(4, 5, 12) * np.where(np.arange(12) % 3 == 0, 4, 1))[street] * np.exp(rng.normal(0, noise, N))


def fitted(truth: Floats, trips: Estimates, rows: NDArray[np.int64] = SEEN) -> LevelSettings | None:
    return fit_levels(PLACES, rows, truth[rows], trips, KEYS)


def made(
    settings: LevelSettings, truth: Floats, held_out: Estimates, trips: Estimates, rows: NDArray[np.int64] = SEEN
) -> Floats:
    return estimate_levels(settings, PLACES, rows, truth[rows], held_out=held_out, trips=trips, keys=KEYS)


def error(level: Floats, truth: Floats, nodes: NDArray[np.int64] = UNSEEN) -> float:
    return float(np.abs(level - truth)[nodes].mean())


def test_the_level_of_a_street_is_known_from_its_other_sensors() -> None:
    """Trips that know nothing: the street tells."""
    truth = by_street()
    trips = estimates(np.full(N, truth[SEEN].mean()))
    settings = fitted(truth, trips)
    assert settings is not None and settings.trust == 1
    assert error(made(settings, truth, trips, trips), truth) < 0.25 * error(trips.level, truth)
    street, word = (settings.scales[SCALES.index(name)] for name in ("street", "word"))
    assert max(street, word) > settings.scales[SCALES.index("noise")]


@pytest.mark.parametrize("trust", levels.TRUSTS[1:])
def test_trips_that_know_nothing_are_put_right_as_far_as_may_be(trust: float, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = by_street()
    monkeypatch.setattr(levels, "TRUSTS", (0.0, trust))
    settings = fitted(truth, estimates(np.full(N, truth[SEEN].mean())))
    assert settings is not None and settings.trust == trust


def test_trips_that_are_right_are_left_alone() -> None:
    """Their errors have nothing to do with the map."""
    truth = np.random.default_rng(3).gamma(1, 20, N)
    trips = estimates(truth * np.exp(np.random.default_rng(4).normal(0, 0.05, N)))
    assert fitted(truth, trips) is None


def test_trips_that_are_off_by_a_power_are_put_right() -> None:
    truth = np.random.default_rng(3).gamma(2, 20, N)
    trips = estimates(3 * truth**0.6)
    settings = fitted(truth, trips)
    assert settings is not None
    assert error(made(settings, truth, trips, trips), truth) < 0.3 * error(trips.level, truth)


def test_trust_is_measured_without_the_sensors_own_readings() -> None:
    """Trips that meet every sensor they were calibrated to, and are useless elsewhere, must not look good."""
    truth = by_street()
    useless = estimates(np.full(N, 20.0))
    fooled = estimates(np.where(np.isin(np.arange(N), SEEN), truth, 20.0))
    settings = fitted(truth, useless)
    assert settings is not None and settings.trust == 1
    assert fitted(truth, fooled) is None  # what would happen without holding out
    assert error(made(settings, truth, useless, fooled), truth) < 0.3 * error(fooled.level, truth)


def test_against_a_literal_writing() -> None:
    """The kernel, the estimate and the leave-one-out error, number by number."""
    truth = by_street()
    rows = SEEN[:8]
    trips = estimates(np.random.default_rng(5).gamma(2, 10, N))
    rng = np.random.default_rng(6)
    settings = LevelSettings(0.2, 0.75, tuple(rng.normal(-1, 0.3, len(SCALES) + INPUTS).tolist()))
    offset = 0.2 * truth[rows].mean()
    x = np.column_stack([np.log(trips.level + offset), trips.spread, PLACES.features.numpy()])
    alike, near, near_km, street, word, noise = np.exp(settings.scales[: len(SCALES)])
    weights = np.exp(settings.scales[len(SCALES) :])
    at = [
        {name for e, name in enumerate(NETWORK.edges.name) if v in (NETWORK.senders[e], NETWORK.receivers[e])} - {""}
        for v in range(N)
    ]

    def shared(a: set[str], b: set[str]) -> float:
        return len(a & b) / math.sqrt(len(a) * len(b)) if a and b else 0.0

    def kernel(v: int, u: int) -> float:
        square = float(((x[v] - x[u]) ** 2 * weights).sum())
        east = math.radians(NETWORK.lon[v] - NETWORK.lon[u]) * math.cos(math.radians(NETWORK.lat.mean()))
        km = 6371.0088 * math.hypot(east, math.radians(NETWORK.lat[v] - NETWORK.lat[u]))
        first = [{name.split()[0].lower() for name in at[w]} for w in (v, u)]
        return (
            alike / (1 + square / 4) ** 2
            + near * math.exp(-km / near_km)
            + street * shared(at[v], at[u])
            + word * shared(*first)
        )

    y = np.log(truth[rows] + offset)
    matrix = np.array([[kernel(a, b) for b in rows] for a in rows]) + (noise + levels.NOISE) * np.eye(len(rows))
    solved = np.linalg.solve(matrix, y - y.mean())
    process = np.array([sum(kernel(v, u) * s for u, s in zip(rows, solved, strict=True)) for v in range(N)]) + y.mean()
    expected = np.maximum(np.exp(0.25 * np.log(trips.level + offset) + 0.75 * process) - offset, 0)
    np.testing.assert_allclose(made(settings, truth, trips, trips, rows), expected, rtol=1e-4)

    inputs = levels._inputs(PLACES, trips, offset)
    scales = torch.tensor(settings.scales, dtype=torch.float64)
    found = levels._leave_one_out(scales, inputs, PLACES, rows, torch.from_numpy(y))
    for k in range(len(rows)):
        others = np.arange(len(rows)) != k
        part = np.linalg.solve(matrix[np.ix_(others, others)], (y - y.mean())[others])
        assert float(found[k]) == pytest.approx(float(matrix[k, others] @ part + y.mean()), rel=1e-4)


def test_a_city_on_roads_has_streets_of_its_own() -> None:
    """A road has its own name, not those of the roads it meets."""
    roads = on_roads(NETWORK)
    places = places_of(roads, road_features(roads))
    ids = [tuple(map(int, str(road).split(">"))) for road in roads.node_ids]
    along, across = (ids.index(pair) for pair in ((100, 101), (100, 112)))
    assert NETWORK.node_ids.min() == 100
    other = ids.index((102, 103))
    _, street, word = places.between(np.array([along]), np.array([other, across]))
    assert street.tolist() == [[pytest.approx(1), 0]] and word.tolist() == [[pytest.approx(1), 0]]


def test_nothing_depends_on_the_order_of_the_rows() -> None:
    truth = by_street()
    trips = estimates(np.full(N, 20.0))
    settings = fitted(truth, trips)
    again = fitted(truth, trips, SEEN[::-1])
    assert settings is not None and again is not None
    np.testing.assert_allclose(again.scales, settings.scales, rtol=1e-6)
    np.testing.assert_allclose(
        made(settings, truth, trips, trips, SEEN[::-1]), made(settings, truth, trips, trips), rtol=1e-9
    )


def test_an_estimate_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = by_street()
    trips = estimates(np.full(N, 20.0))
    settings = fitted(truth, trips)
    assert settings is not None
    whole = made(settings, truth, trips, trips)
    monkeypatch.setattr(levels, "MAX_CELLS", 1000)
    np.testing.assert_allclose(made(settings, truth, trips, trips), whole, rtol=1e-9)


def test_of_very_many_sensors_some_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = by_street()
    trips = estimates(np.full(N, 20.0))
    monkeypatch.setattr(levels, "FITTED_SENSORS", 60)
    monkeypatch.setattr(levels, "READ_SENSORS", 70)
    settings = fitted(truth, trips)
    assert settings is not None
    assert error(made(settings, truth, trips, trips), truth) < 0.35 * error(trips.level, truth)


@pytest.mark.parametrize("count", [0, 5, levels.MIN_SENSORS - 1])
def test_few_sensors_say_nothing_of_other_places(count: int) -> None:
    assert fitted(by_street(), estimates(np.full(N, 20.0)), SEEN[:count]) is None


def test_sensors_that_count_nothing_say_nothing() -> None:
    assert fitted(np.zeros(N), estimates(np.ones(N))) is None


@pytest.mark.parametrize(
    ("name", "value"), [("trust", 1.5), ("offset_share", -0.1), ("scales", (0.0,)), ("scales", (math.nan,) * 29)]
)
def test_bad_settings_are_refused(name: str, value: Any) -> None:
    good = {"offset_share": 0.1, "trust": 1.0, "scales": (0.0,) * (len(SCALES) + INPUTS)}
    with raises(SettingsError, name):
        LevelSettings(**{**good, name: value})


# In a demand


@pytest.fixture(scope="module")
def city() -> City:
    return demo_city(seed=4, intersections=160, days=3, step_s=1800, closures=0)


@pytest.fixture(scope="module")
def sensors(city: City) -> NDArray[np.bool_]:
    chosen = np.zeros(city.network.num_nodes, bool)
    chosen[np.random.default_rng(0).permutation(city.network.num_nodes)[:80]] = True
    return chosen


TRUSTED = LevelSettings(0.2, 1.0, tuple([math.log(0.3)] * (len(SCALES) + INPUTS)))


def test_a_demand_has_the_levels_and_its_own_counts(city: City, sensors: NDArray[np.bool_]) -> None:
    plain = estimate_demand(city, sensors, settings=DemandSettings(sets=2))
    found = estimate_demand(city, sensors, settings=DemandSettings(sets=2, levels=TRUSTED))
    np.testing.assert_array_equal(plain.level_factor, 1)
    np.testing.assert_array_equal(found.level, plain.level)
    passed = plain.level > 0
    expected = plain.node_flow[:, passed] * found.level_factor[passed]
    np.testing.assert_allclose(found.node_flow[:, passed], expected, rtol=1e-4)
    assert (np.abs(np.log(found.level_factor[passed & ~sensors])) > 0.05).mean() > 0.5
    measured = week_mean(found.usual_counts)
    np.testing.assert_allclose((found.level * found.level_factor)[sensors], measured[sensors], rtol=1e-3, atol=2e-3)
    ends = found.level_factor[found.network.senders] * found.level_factor[found.network.receivers]
    np.testing.assert_allclose(found.road_flow, plain.road_flow * np.sqrt(ends), rtol=1e-4)
    assert DemandSettings.from_json(json.loads(json.dumps(found.settings.to_json()))) == found.settings


def test_hidden_sensors_never_reach_the_levels(city: City, sensors: NDArray[np.bool_]) -> None:
    """Other counts at nodes that are not asked: the same demand, bit for bit."""
    stream = city.stream
    half = sensors & (np.arange(len(sensors)) % 2 == 0)
    settings = DemandSettings(sets=2, levels=TRUSTED)

    def found(city: City) -> TripModel:
        of = city.stream
        return TripModel.of(
            city.network,
            settings,
            step_s=of.step_s,
            usual_counts=usual_counts(of, sensors),
            usual_medians=usual_medians(of, half),
            seed=0,
            features=features_of([city.network], city)[0],
        )

    poisoned = replace(stream, values=np.where(half, stream.values, 7 * stream.values + 3).astype(np.float32))
    one, other = (found(each).demand(half) for each in (city, replace(city, stream=poisoned)))
    np.testing.assert_array_equal(one.node_flow, other.node_flow)
    np.testing.assert_array_equal(one.level_factor, other.level_factor)


def test_the_estimate_at_a_sensor_does_not_use_it(
    city: City, sensors: NDArray[np.bool_], monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out: list[Estimates] = []

    def noted(places: Places, rows: Any, counts: Any, held: Estimates, keys: Any) -> None:
        held_out.append(held)

    monkeypatch.setattr(trip_model, "fit_levels", noted)
    place = int(np.flatnonzero(sensors)[3])
    factor = np.where(np.arange(len(sensors)) == place, 30, 1)
    features = features_of([city.network], city)[0]
    for values in (city.stream.values, city.stream.values * factor):
        record = replace(city.stream, values=values.astype(np.float32))
        tables = usual_counts(record, sensors), usual_medians(record, sensors)
        trips = TripModel.of(
            city.network,
            DemandSettings(sets=2),
            step_s=record.step_s,
            usual_counts=tables[0],
            usual_medians=tables[1],
            seed=0,
            features=features,
        )
        trips.with_fitted_levels(sensors)
    before, after = held_out
    assert before.level[place] == after.level[place] > 0
    assert before.spread[place] == after.spread[place] > 0
    assert (before.level != after.level)[sensors].sum() > 20


def test_where_no_trip_passes_a_place_has_the_level_of_places_like_it(city: City, sensors: NDArray[np.bool_]) -> None:
    found = estimate_demand(city, sensors, settings=DemandSettings(sets=2))
    node = int(np.flatnonzero(~sensors)[0])
    level = found.level.copy()
    level[node] = 0
    flow = found.node_flow.copy()
    flow[:, node] = 0
    given = replace(found, level=level, node_flow=flow).with_levels(np.where(np.arange(len(level)) == node, 5.0, level))
    np.testing.assert_allclose(week_mean(given.node_flow)[node], 5.0, rtol=1e-3)
    assert given.node_flow[8, node] > given.node_flow[3, node]
