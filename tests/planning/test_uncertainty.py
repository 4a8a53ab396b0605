"""What counts tell: against the textbook formula of conditional Gaussians, and against what trips share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frigate.city.city import City
from frigate.demand.levels import Places, places_of
from frigate.demand.settings import DemandSettings
from frigate.demand.trip_cache import cached_trips
from frigate.planning.uncertainty import Knowledge, Traffic, Uncertainty, road_km
from frigate.roads.feature_cache import features_of
from frigate.roads.on_roads import on_roads
from frigate.simulate.demo_city import demo_city

ERROR = 0.01


@pytest.fixture(scope="module")
def town() -> City:
    return demo_city(seed=3, intersections=100, days=1, step_s=3600, closures=0)


@pytest.fixture(scope="module")
def places(town: City) -> Places:
    return places_of(town.network, features_of([town.network.map], town)[0])


@pytest.fixture(scope="module")
def traffic(town: City) -> Traffic:
    return Traffic.of_map(cached_trips(town.network, DemandSettings(sets=3), seed=0)[1])


@pytest.fixture(scope="module")
def uncertainty(traffic: Traffic, places: Places) -> Uncertainty:
    return Uncertainty.of(traffic, places)


def test_the_covariance_is_one(uncertainty: Uncertainty) -> None:
    rows = np.arange(100)
    whole = uncertainty.between(rows, rows).astype(np.float64)
    np.testing.assert_allclose(whole, whole.T, atol=1e-6)
    assert np.linalg.eigvalsh(whole).min() > 0.9 * uncertainty.own
    np.testing.assert_allclose(uncertainty.variance(rows), np.diag(whole), rtol=1e-6)


def test_places_that_share_trips_depend_on_each_other(uncertainty: Uncertainty, traffic: Traffic) -> None:
    shared = np.zeros((100, 100))
    for trips, numbers in zip(traffic.sets, traffic.numbers, strict=True):
        through = trips.through_node.toarray().astype(np.float64)
        shared += through.T @ (through * numbers[:, None])
    length = np.sqrt(np.maximum(np.diag(shared), 1e-9))
    rows = np.arange(100)
    trips_part = (
        uncertainty.between(rows, rows) - uncertainty.levels.between(rows, rows) - np.eye(100) * uncertainty.own
    )
    np.testing.assert_allclose(trips_part, uncertainty.trips_variance * shared / np.outer(length, length), atol=1e-4)


def test_counts_narrow_what_is_known_as_the_formula_says(uncertainty: Uncertainty) -> None:
    points = np.arange(5, 45)
    site = np.arange(0, 40, 2)
    known = Knowledge.none(uncertainty, points, site)
    chosen = [3, 11, 7]
    for each in chosen:
        known = known.after(each, ERROR)
    whole = uncertainty.between(points, points).astype(np.float64)
    at = site[chosen]
    told = whole[:, at] @ np.linalg.inv(whole[np.ix_(at, at)] + ERROR * np.eye(3)) @ whole[at]
    np.testing.assert_allclose(known.variance, np.diag(whole - told), rtol=1e-3)
    np.testing.assert_allclose(known.columns(np.array([4])), (whole - told)[:, [site[4]]], atol=1e-4)
    at_once = Knowledge.none(uncertainty, points, site).after_all(np.array(chosen), ERROR)
    np.testing.assert_allclose(at_once.variance, known.variance, rtol=1e-3)


def test_a_sensor_leaves_nothing_open_where_it_stands(uncertainty: Uncertainty) -> None:
    points = np.arange(20)
    known = Knowledge.none(uncertainty, points, points)
    exact, rough = known.after(4, 1e-6), known.after(4, 0.5)
    assert exact.variance[4] < 1e-3 * known.variance[4]
    assert exact.variance[4] < rough.variance[4] < known.variance[4]
    assert (rough.variance >= exact.variance - 1e-9).all() and (exact.variance <= known.variance).all()


def test_weights_follow_the_traffic_and_the_roads(town: City, traffic: Traffic) -> None:
    even, by_traffic, by_km = (traffic.weights(each, town.network) for each in ("even", "traffic", "vehicle-km"))
    for weights in (even, by_traffic, by_km):
        assert weights.mean() == pytest.approx(1)
    assert np.ptp(even) == 0
    assert (np.argsort(by_traffic) == np.argsort(traffic.levels + traffic.offset)).all()
    ratio = by_km / by_traffic
    np.testing.assert_allclose(ratio / ratio.mean(), road_km(town.network) / road_km(town.network).mean(), rtol=1e-6)


def test_what_only_the_map_says_counts_half(town: City, traffic: Traffic) -> None:
    busy = traffic.levels + traffic.offset
    for per_day, power in ((None, 0.5), (24.0, 1.0)):
        weights = replace(traffic, per_day=per_day).weights("traffic", town.network)
        np.testing.assert_allclose(weights, busy**power / (busy**power).mean())


def test_all_roads_are_shared_out_among_the_nodes(town: City) -> None:
    assert road_km(town.network).sum() == pytest.approx(town.network.length_m.sum() / 1000)
    roads = on_roads(town)
    km = road_km(roads)
    assert len(km) == town.network.num_edges and (km > 0).all()


def test_a_vehicle_that_passes_a_sensor_is_seen(traffic: Traffic) -> None:
    seen = np.zeros(100, bool)
    rows = np.flatnonzero(traffic.levels > 0)[:10]
    np.testing.assert_allclose(traffic.unseen_share(seen, rows), 1)
    seen[rows[0]] = True
    share = traffic.unseen_share(seen, rows)
    assert share[0] == 0 and (share[1:] > 0).any() and (share <= 1).all()
