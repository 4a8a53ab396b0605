"""Static road features: against slow literal counts, with attributes missing, and scaled."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from frigate import roads
from frigate.errors import FrigateError
from frigate.network import Edges, RoadNetwork, clean_edges
from frigate.roads import FEATURE_WIDTH, FEATURES, FeatureScaling, fit_feature_scaling, road_features
from tests.conftest import shared_data


def random_network(seed: int, num_nodes: int, **attributes: object) -> RoadNetwork:
    """Random one-way roads with few distinct lengths, so that many shortest paths are equally short."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, num_nodes, (2, 3 * num_nodes))
    edges, _ = clean_edges(Edges.of(ends[0], ends[1], rng.integers(1, 5, 3 * num_nodes) * 100))
    edges = Edges.of(edges.senders, edges.receivers, edges.length_m, **attributes)
    return RoadNetwork(np.arange(num_nodes), rng.uniform(6, 7, num_nodes), rng.uniform(49, 50, num_nodes), edges)


def column(features: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    return features[:, FEATURES.index(name)]


def passing_by_hand(network: RoadNetwork, cost: NDArray[np.float64], cutoff: float) -> NDArray[np.float64]:
    """Walk every shortest path of every pair, one by one, and share one point among them at the nodes between."""
    passing = np.zeros(network.num_nodes)
    roads_from: dict[int, list[tuple[int, float]]] = {v: [] for v in range(network.num_nodes)}
    for a, b, c in zip(network.senders.tolist(), network.receivers.tolist(), cost.tolist(), strict=True):
        roads_from[a].append((b, c))
    shortest = np.full((network.num_nodes, network.num_nodes), np.inf)
    np.fill_diagonal(shortest, 0)
    shortest[network.senders, network.receivers] = cost
    for k in range(network.num_nodes):
        shortest = np.minimum(shortest, shortest[:, k : k + 1] + shortest[k : k + 1])

    def paths(here: int, end: int) -> list[list[int]]:
        if here == end:
            return [[end]]
        on = [b for b, c in roads_from[here] if c + shortest[b, end] == shortest[here, end]]
        return [[here, *rest] for b in on for rest in paths(b, end)]

    for s in range(network.num_nodes):
        for t in range(network.num_nodes):
            if s != t and shortest[s, t] <= cutoff and np.isfinite(shortest[s, t]):
                ways = paths(s, t)
                for way in ways:
                    passing[way[1:-1]] += 1 / len(ways)
    return passing


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 14), st.sampled_from([100, 300, 500, 900]))
def test_betweenness_against_a_walk_along_every_path(seed: int, num_nodes: int, cutoff: int) -> None:
    network = random_network(seed, num_nodes)
    cost = network.length_m
    whole = passing_by_hand(network, cost, np.inf)
    np.testing.assert_allclose(roads.whole_betweenness(network, cost), whole, rtol=1e-9)
    local = passing_by_hand(network, cost, cutoff)
    np.testing.assert_allclose(roads.local_betweenness(network, cost, cutoff=cutoff), local, rtol=1e-9)
    np.testing.assert_allclose(roads.local_betweenness(network, cost, cutoff=1e9), whole, rtol=1e-9)


def test_betweenness_of_large_networks_is_estimated_the_same_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = random_network(1, 300)
    exact = roads.whole_betweenness(network, network.length_m)
    monkeypatch.setattr(roads, "EXACT_NODES", 299)
    estimate = roads.whole_betweenness(network, network.length_m)
    assert (estimate == roads.whole_betweenness(network, network.length_m)).all()
    assert (estimate != exact).any()
    assert np.corrcoef(estimate, exact)[0, 1] > 0.95


def line_of_three(**attributes: object) -> RoadNetwork:
    """0 <-> 1 <-> 2, 400 m and 1,000 m, and a node 3 without roads."""
    edges = Edges.of([0, 1, 1, 2], [1, 0, 2, 1], [400, 400, 1000, 1000], **attributes)
    return RoadNetwork(np.arange(4), np.linspace(6, 6.1, 4), np.full(4, 49.0), edges)


def test_features_by_hand() -> None:
    network = line_of_three(
        road_class=["Primary", "primary", "residential", "no such class"],
        lanes=[2, 1, np.nan, 3],
        speed_kph=[50, 50, np.nan, 30],
    )
    features = road_features(network)
    assert features.shape == (4, len(FEATURES))
    assert column(features, "in_degree").tolist() == [1, 2, 1, 0]
    assert column(features, "out_degree").tolist() == [1, 2, 1, 0]
    np.testing.assert_allclose(column(features, "log_mean_length"), np.log([400, 700, 1000, np.nan]), rtol=1e-6)
    np.testing.assert_array_equal(column(features, "class_max"), [4, 4, 1, np.nan])
    np.testing.assert_array_equal(column(features, "class_mean"), [4, 3, 1, np.nan])
    np.testing.assert_allclose(column(features, "class_share_4"), [1, 2 / 3, 0, np.nan], rtol=1e-6)
    np.testing.assert_array_equal(column(features, "lanes_max"), [2, 3, 3, np.nan])
    np.testing.assert_array_equal(column(features, "lanes_sum"), [3, 6, 3, np.nan])
    np.testing.assert_array_equal(column(features, "speed_max_kph"), [50, 50, 30, np.nan])
    np.testing.assert_allclose(column(features, "speed_mean_kph"), [50, 130 / 3, 30, np.nan], rtol=1e-6)
    # Only 0 -> 2 and 2 -> 0 pass a node, and they are 1,400 m long: beyond the local cut-off by length.
    assert column(features, "between_local_length").tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(column(features, "between_length"), [0, np.log1p(400), 0, 0], rtol=1e-4)


def test_travel_time_takes_speed_then_class_then_fifty() -> None:
    network = line_of_three(road_class=["residential", "residential", "", "?"], speed_kph=[72, np.nan, np.nan, 0])
    np.testing.assert_allclose(roads.travel_time_s(network), [20, 36, 72, 72])


def test_local_betweenness_by_time_sees_speed() -> None:
    slow, fast = line_of_three(speed_kph=[36.0] * 4), line_of_three(speed_kph=[90.0] * 4)  # 140 s and 56 s
    assert column(road_features(slow), "between_local_time")[1] == 0
    np.testing.assert_allclose(column(road_features(fast), "between_local_time")[1], np.log1p(2), rtol=1e-4)


@pytest.mark.parametrize(
    "ranked",
    [
        ["service", "residential", "tertiary", "secondary", "primary", "trunk", "motorway"],
        ["other", "Residential", "COLLECTOR", "arterial", "highway", "freeway"],
        ["living street", "tertiary", "secondary", "motorway_link", "motorway"],
        ["primary_link", "primary"],
        ["service", "unclassified", "collector", "ramp", "freeway"],
    ],
)
def test_classes_rank_as_roads_do(ranked: list[str]) -> None:
    levels = roads.class_levels(np.array(ranked))
    assert (np.diff(levels) > 0).all()
    assert levels.max() < roads.LEVELS


def test_unknown_classes_are_unknown() -> None:
    assert np.isnan(roads.class_levels(np.array(["", "boulevard of dreams", "_link"]))).all()
    assert roads.class_levels(np.array(["service_link", "tertiary_link"])).tolist() == [0, 1]
    assert len(roads.class_levels(np.array([], np.str_))) == 0


def test_absent_attributes_absent_nodes_and_no_roads() -> None:
    network = random_network(4, 30).remove_nodes([5])
    features = road_features(network)
    for group in roads.GROUPS:
        assert np.isnan(features[:, [name.startswith(group) for name in FEATURES]]).all()
    assert np.isnan(features[5]).all()
    assert np.isfinite(column(features, "between_time")[network.present]).all()
    scaled = fit_feature_scaling(features, np.flatnonzero(network.present)).apply(features)
    assert np.isfinite(scaled).all()
    assert (scaled[:, -len(roads.GROUPS) :] == 0).all()
    assert (scaled[5] == 0).all()
    bare = RoadNetwork(np.arange(3), np.zeros(3), np.arange(3.0), Edges.none())
    assert column(road_features(bare), "between_length").tolist() == [0, 0, 0]
    assert column(road_features(bare), "in_degree").tolist() == [0, 0, 0]


def test_features_follow_their_nodes_and_the_closed_road() -> None:
    count = random_network(6, 40).num_edges
    words = np.random.default_rng(0).choice(["primary", "residential", "what"], count)
    network = random_network(6, 40, road_class=words)
    order = np.random.default_rng(1).permutation(40)
    new_row, e = np.argsort(order), network.edges
    shuffled = RoadNetwork(
        network.node_ids[order],
        network.lon[order],
        network.lat[order],
        Edges.of(new_row[e.senders], new_row[e.receivers], e.length_m, road_class=e.road_class),
    )
    features = road_features(network)
    np.testing.assert_array_equal(road_features(shuffled), features[order])
    closed = network.close([(int(e.senders[0]), int(e.receivers[0]))])
    without = RoadNetwork(network.node_ids, network.lon, network.lat, e.take(np.arange(count) > 0))
    np.testing.assert_array_equal(road_features(closed), road_features(without))
    assert (column(road_features(closed), "in_degree") != column(features, "in_degree")).any()


def test_scaling_standardises_the_fitted_rows_and_ignores_the_others() -> None:
    features = np.random.default_rng(0).normal(7, 3, (200, len(FEATURES))).astype(np.float32)
    features[::3, FEATURES.index("lanes_max")] = np.nan
    features[:, FEATURES.index("in_degree")] = 4
    rows = np.arange(100)
    scaling = fit_feature_scaling(features, rows)
    poisoned = features.copy()
    poisoned[100:] = 1e6
    assert (fit_feature_scaling(poisoned, rows).mean == scaling.mean).all()
    assert (fit_feature_scaling(features, np.arange(200) < 100).spread == scaling.spread).all()
    scaled = scaling.apply(features)
    assert scaled.dtype == np.float32
    assert scaled.shape == (200, FEATURE_WIDTH)
    some = scaled[rows, FEATURES.index("speed_max_kph")]
    assert abs(some.mean()) < 1e-5
    assert abs(some.std() - 1) < 1e-5
    assert (scaled[:, FEATURES.index("in_degree")] == 0).all()
    assert (scaled[::3, FEATURES.index("lanes_max")] == 0).all()
    assert np.abs(scaling.apply(poisoned)).max() == roads.CLIP


def test_what_was_never_known_in_training_stays_unknown() -> None:
    count = random_network(2, 20).num_edges
    plain = road_features(random_network(2, 20))
    laned = road_features(random_network(2, 20, lanes=np.arange(count) % 3 + 1))
    everyone = np.arange(20)
    scaling = fit_feature_scaling(plain, everyone)
    np.testing.assert_array_equal(scaling.apply(laned), scaling.apply(plain))
    assert "lanes: unknown in training" in scaling.notice(laned)
    assert scaling.notice(plain) == ""
    with_lanes = fit_feature_scaling(laned, everyone)
    assert "lanes: known in training, unknown here" in with_lanes.notice(plain)
    indicator = len(FEATURES) + roads.GROUPS.index("lanes")
    assert with_lanes.apply(laned)[:, indicator].max() == 1
    assert with_lanes.apply(plain)[:, indicator].max() == 0


def test_scaling_survives_json() -> None:
    features = road_features(random_network(2, 20))
    scaling = fit_feature_scaling(features, np.arange(20))
    again = FeatureScaling.from_json(json.loads(json.dumps(scaling.to_json(), allow_nan=False)))
    np.testing.assert_array_equal(again.mean, scaling.mean)
    np.testing.assert_array_equal(again.apply(features), scaling.apply(features))


@pytest.mark.parametrize("package", ["networkit", "numba"])
def test_missing_package_says_where_to_compute(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # what Python itself does for a module that cannot be imported
    roads._compiled_passing.cache_clear()
    with pytest.raises(FrigateError, match=f"{package} is not installed.*frigate check CITY"):
        road_features(line_of_three())


@pytest.mark.shared
def test_san_francisco() -> None:
    import polars as pl

    folder = shared_data("sf-taxi-core")
    nodes, table = pl.read_parquet(folder / "nodes.parquet"), pl.read_parquet(folder / "edges.parquet")
    words = table["road_class"].to_numpy().astype(np.str_)
    edges, _ = clean_edges(Edges.of(table["src"], table["dst"], table["length_m"], road_class=words))
    network = RoadNetwork(nodes["node_id"].to_numpy(), nodes["lon"].to_numpy(), nodes["lat"].to_numpy(), edges)
    features = road_features(network)
    assert np.isfinite(column(features, "class_mean")).all()
    assert np.isnan(column(features, "lanes_max")).all()
    busy = np.load(folder / "counts.npz")["counts"][:2000].mean(axis=0)
    assert np.corrcoef(column(features, "between_time"), np.log1p(busy))[0, 1] > 0.5
