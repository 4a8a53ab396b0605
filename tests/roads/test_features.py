"""Static road features: against slow literal counts, with attributes missing, and scaled."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from frigate.city.network import Edges, RoadNetwork, clean_edges
from frigate.errors import FrigateError
from frigate.nn.batch import Batch
from frigate.nn.topology import Topology
from frigate.roads import betweenness
from frigate.roads import features as roads
from frigate.roads.betweenness import local_betweenness, whole_betweenness
from frigate.roads.features import (
    FEATURE_WIDTH,
    FEATURES,
    FeatureScaling,
    features_and_notice,
    fit_feature_scaling,
    road_features,
)
from frigate.training.run import Run
from tests.support.errors import raises
from tests.support.forecast_runs import S, forecast, small_city, small_run
from tests.support.shared_data import shared_data


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


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 14), st.sampled_from([100, 300, 500, 900]))
def test_betweenness_against_a_walk_along_every_path(seed: int, num_nodes: int, cutoff: int) -> None:
    network = random_network(seed, num_nodes)
    cost = network.length_m
    whole = passing_by_hand(network, cost, np.inf)
    np.testing.assert_allclose(whole_betweenness(network, cost).count, whole, rtol=1e-9)
    local = passing_by_hand(network, cost, cutoff)
    np.testing.assert_allclose(local_betweenness(network, cost, cutoff=cutoff), local, rtol=1e-9)
    np.testing.assert_allclose(local_betweenness(network, cost, cutoff=1e9), whole, rtol=1e-9)


def test_more_paths_than_a_number_holds() -> None:
    """A chain of diamonds, one way: 2^1100 paths from end to end, and half of what passes takes either side."""
    n = 1100
    hub = 3 * np.arange(n)
    senders = np.concatenate([hub, hub, hub + 1, hub + 2])
    receivers = np.concatenate([hub + 1, hub + 2, hub + 3, hub + 3])
    edges = Edges.of(senders, receivers, np.full(4 * n, 50.0))
    network = RoadNetwork(np.arange(3 * n + 1), np.linspace(6, 7, 3 * n + 1), np.zeros(3 * n + 1), edges)
    passing = whole_betweenness(network, network.length_m).count
    np.testing.assert_allclose(passing[:-1:3], hub * (3 * n - hub), rtol=1e-9)
    side = (hub + 1) * (3 * n - 2 - hub) / 2
    np.testing.assert_allclose([passing[1::3], passing[2::3]], [side, side], rtol=1e-9)


# Estimated betweenness


def crooked_grid(side: int, *, seed: int = 0) -> RoadNetwork:
    """Streets of uneven length, some missing, some one-way."""
    rng = np.random.default_rng(seed)
    row = np.arange(side**2)
    east = row[row % side < side - 1]
    north = row[: -side or None]
    one = np.concatenate([east, north])
    other = np.concatenate([east + 1, north + side])
    kept = rng.random(len(one)) > 0.15
    one = one[kept]
    other = other[kept]
    metres = rng.uniform(50, 250, int(kept.sum()))
    both = rng.random(len(one)) > 0.2
    edges = Edges.of(np.append(one, other[both]), np.append(other, one[both]), np.append(metres, metres[both]))
    at = np.linspace(0, 0.002 * side, side)
    return RoadNetwork(row, 6 + at[row % side], 49 + at[row // side], edges)


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.sampled_from([betweenness.SAMPLES // 4, betweenness.SAMPLES // 8]))
def test_an_estimate_from_every_node_is_exact(seed: int, num_nodes: int) -> None:
    """Forward and backward, on one-way roads: each stretch of the curve is one node, or half of one."""
    network = random_network(seed, num_nodes)
    estimate = whole_betweenness(network, network.length_m, exact_nodes=0)
    np.testing.assert_allclose(estimate.count, whole_betweenness(network, network.length_m).count, rtol=1e-9, atol=1e-9)
    assert estimate.samples is not None
    np.testing.assert_allclose(estimate.samples[0], estimate.samples[1], rtol=1e-9, atol=1e-9)


def test_an_estimate_is_close_and_says_how_close(monkeypatch: pytest.MonkeyPatch) -> None:
    network = crooked_grid(45)
    monkeypatch.setattr(roads, "whole_betweenness", partial(whole_betweenness, exact_nodes=1000))
    features, notice = features_and_notice(network)
    exact = whole_betweenness(network, np.rint(network.length_m * 100))
    assert exact.samples is None
    by_length = np.log1p(100 * exact.count / exact.count.mean())
    off = float(np.sqrt(((column(features, "between_length") - by_length) ** 2).mean()) / by_length.std())
    assert 0 < off < 0.06
    match = re.fullmatch(
        r"betweenness is estimated from 512 searches \(.*\): off by about (.*)% of its spread.*", notice
    )
    assert match is not None
    assert 0.5 < float(match[1]) / 100 / off < 2
    assert features_and_notice(crooked_grid(20))[1] == ""


def test_an_estimate_depends_on_places_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the order of nodes and roads, on threads, or on a road closed in another part of the network."""
    left = crooked_grid(20)
    right = crooked_grid(20, seed=1)
    a = left.edges
    b = right.edges
    whole = RoadNetwork(
        np.arange(800),
        np.concatenate([left.lon, right.lon + 1]),
        np.concatenate([left.lat, right.lat]),
        Edges.of(
            *(
                np.append(x, y)
                for x, y in ((a.senders, b.senders + 400), (a.receivers, b.receivers + 400), (a.length_m, b.length_m))
            )
        ),
    )

    def estimate(network: RoadNetwork) -> NDArray[np.float64]:
        return whole_betweenness(network, np.rint(network.length_m * 100), exact_nodes=0).count

    found = estimate(whole)
    monkeypatch.setattr(betweenness, "threads", lambda: 1)
    np.testing.assert_array_equal(estimate(whole), found)
    rng = np.random.default_rng(5)
    order = rng.permutation(800)
    roads_order = rng.permutation(whole.num_edges)
    new_row = np.argsort(order)
    e = whole.edges.take(roads_order)
    moved = Edges.of(new_row[e.senders], new_row[e.receivers], e.length_m)
    shuffled = RoadNetwork(whole.node_ids[order], whole.lon[order], whole.lat[order], moved)
    np.testing.assert_array_equal(estimate(shuffled), found[order])
    closed = estimate(whole.close([(int(whole.senders[0]), int(whole.receivers[0]))]))
    np.testing.assert_array_equal(closed[400:], found[400:])
    assert (closed[:400] != found[:400]).any()


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
    slow = line_of_three(speed_kph=[36.0] * 4)  # 140 s
    fast = line_of_three(speed_kph=[90.0] * 4)  # 56 s
    assert column(road_features(slow), "between_local_time")[1] == 0
    np.testing.assert_allclose(column(road_features(fast), "between_local_time")[1], np.log1p(2), rtol=1e-4)


@pytest.mark.parametrize(
    "ranked",
    [
        ["service", "residential", "tertiary", "secondary", "primary", "trunk", "motorway"],
        ["other", "Residential", "COLLECTOR", "arterial", "highway", "freeway"],
        ["living street", "tertiary", "secondary", "motorway_link", "motorway"],
        ["primary_link", "primary"],
        ["PRIVATE_ROAD", "Local Street", "collector-road", "MAJOR_ROAD", "Expressway"],
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
    new_row = np.argsort(order)
    e = network.edges
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


def two_way_by_hand(network: RoadNetwork) -> NDArray[np.float64]:
    """Mean road distance of both directions between all nodes [N,N]."""
    shortest = np.full((network.num_nodes, network.num_nodes), np.inf)
    np.fill_diagonal(shortest, 0)
    shortest[network.senders, network.receivers] = network.length_m
    for k in range(network.num_nodes):
        shortest = np.minimum(shortest, shortest[:, k : k + 1] + shortest[k : k + 1])
    return np.asarray((shortest + shortest.T) / 2)


def seen_by_the_model(run: Run, **options: Any) -> Batch:
    """What reached the model when a forecast was made."""
    seen: list[Batch] = []
    hook = run.model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        forecast(run, device="cpu", **options)
    finally:
        hook.remove()
    return seen[-1]


@pytest.mark.parametrize("name", ["paper", "default"])
def test_a_closure_moves_what_the_model_sees_of_the_map(name: str) -> None:
    """Positions are those of the roads that are open: in a what-if, and from a recorded closure on.

    Features are those of the map, with the roads that are closed.
    """
    run = small_run(name)
    stream = small_city().stream
    network = small_city().network
    shut = [(6, 7), (7, 6), (7, 12)]
    closed = network.close(shut)

    def check(topology: Topology, open_roads: RoadNetwork) -> None:
        if run.scaling.anchors is not None:
            anchors = [open_roads.row_of(node) for (node,) in run.scaling.anchors.sets]
            metres = two_way_by_hand(open_roads)[:, anchors]
            at = run.scaling.position_scale_m / (run.scaling.position_scale_m + metres)
            np.testing.assert_allclose(topology.positions.numpy(), at, rtol=1e-5)
        if run.scaling.roads is not None:
            features = run.scaling.roads.apply(road_features(network))
            np.testing.assert_allclose(topology.road_features.numpy(), features, rtol=1e-5, atol=1e-5)

    (before,) = seen_by_the_model(run).topologies
    check(before, network)
    for options in ({"network": closed}, {"close": shut}):
        (after,) = seen_by_the_model(run, **options).topologies
        check(after, closed)
        assert (name == "default") == torch.equal(after.positions, before.positions)
        assert len(after.senders) < len(before.senders)
        for table in ("road_features", "near_distance_m"):
            assert torch.equal(getattr(after, table), getattr(before, table))
    # Recorded: closed in the last two of the four snapshots that the model reads.
    recorded = replace(stream, networks=(network, closed), network_of=(np.arange(S) >= S - 2).astype(np.int64))
    batch = seen_by_the_model(run, stream=recorded)
    then = [batch.topologies[i] for i in batch.topology_of[0].tolist()]
    for topology, open_roads in zip(then, [network, network, closed, closed], strict=True):
        check(topology, open_roads)
    reopened = forecast(run, closed.reopen(shut), device="cpu")
    np.testing.assert_allclose(reopened.values, forecast(run, device="cpu").values, rtol=1e-5, atol=1e-5)


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


def test_attributes_unknown_in_training_stay_unknown() -> None:
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


def test_missing_package_says_where_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # what Python itself does for a module that cannot be imported
    betweenness._compiled.cache_clear()
    with raises(FrigateError, "numba", "frigate check CITY"):
        road_features(line_of_three())


@pytest.mark.shared
def test_san_francisco() -> None:
    import polars as pl

    folder = shared_data("sf-taxi-core")
    nodes = pl.read_parquet(folder / "nodes.parquet")
    table = pl.read_parquet(folder / "edges.parquet")
    words = table["road_class"].to_numpy().astype(np.str_)
    edges, _ = clean_edges(Edges.of(table["src"], table["dst"], table["length_m"], road_class=words))
    network = RoadNetwork(nodes["node_id"].to_numpy(), nodes["lon"].to_numpy(), nodes["lat"].to_numpy(), edges)
    features = road_features(network)
    assert np.isfinite(column(features, "class_mean")).all()
    assert np.isnan(column(features, "lanes_max")).all()
    busy = np.load(folder / "counts.npz")["counts"][:2000].mean(axis=0)
    assert np.corrcoef(column(features, "between_time"), np.log1p(busy))[0, 1] > 0.5
