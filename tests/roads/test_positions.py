"""Anchors, the Lipschitz embedding (Lemmas 1 and 2, Definition 4) and the sensors nearest by road."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial import Delaunay

from frigate.city.network import Edges, NodeId, RoadNetwork, clean_edges
from frigate.errors import CityError, SettingsError
from frigate.roads import nearest_sensors as near
from frigate.roads import positions as fp
from frigate.roads.positions import Anchors, choose_anchors, distances_m, locate_anchors
from tests.support.errors import raises
from tests.support.grids import grid_network
from tests.support.shared_data import shared_data


def random_network(seed: int, num_nodes: int, *, extra: float = 1.0) -> RoadNetwork:
    """A one-way ring through all nodes, and random one-way roads. In whole metres, so that sums are exact."""
    rng = np.random.default_rng(seed)
    ring = rng.permutation(num_nodes)
    more = rng.integers(0, num_nodes, (2, int(extra * num_nodes)))
    senders = np.concatenate([ring, more[0]])
    receivers = np.concatenate([np.roll(ring, 1), more[1]])
    edges, _ = clean_edges(Edges.of(senders, receivers, rng.integers(1, 500, len(senders))))
    lon = rng.uniform(6, 7, num_nodes)
    lat = rng.uniform(49, 50, num_nodes)
    return RoadNetwork(np.arange(num_nodes) + 100, lon, lat, edges)


def street_network(seed: int, num_nodes: int) -> RoadNetwork:
    """Streets between neighbouring corners, a fifth of them one-way."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 2000, (num_nodes, 2))
    triangles = Delaunay(corners).simplices
    ends = np.unique(
        np.sort(np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [0, 2]]])), axis=0
    )
    length = np.ceil(np.linalg.norm(corners[ends[:, 0]] - corners[ends[:, 1]], axis=1))
    back = rng.random(len(ends)) < 0.8
    edges = Edges.of(
        np.concatenate([ends[:, 0], ends[back, 1]]),
        np.concatenate([ends[:, 1], ends[back, 0]]),
        np.concatenate([length, length[back]]),
    )
    return RoadNetwork(np.arange(num_nodes), corners[:, 0] / 1e5, corners[:, 1] / 1e5, edges)


def two_way_streets(num_nodes: int, streets: list[tuple[int, int]], length_m: float | list[float] = 1.0) -> RoadNetwork:
    ends = np.array(streets, np.int64).reshape(-1, 2)
    length = np.broadcast_to(np.asarray(length_m, np.float64), len(ends))
    edges = Edges.of(
        np.concatenate([ends[:, 0], ends[:, 1]]),
        np.concatenate([ends[:, 1], ends[:, 0]]),
        np.concatenate([length, length]),
    )
    return RoadNetwork(np.arange(num_nodes), np.linspace(6, 6.1, num_nodes), np.full(num_nodes, 49.0), edges)


def one_way_by_hand(network: RoadNetwork) -> NDArray[np.float64]:
    """Floyd and Warshall, as a second opinion on every shortest path [N, N]."""
    sp = np.full((network.num_nodes, network.num_nodes), np.inf)
    np.fill_diagonal(sp, 0)
    for a, b, metres in zip(network.senders, network.receivers, network.length_m, strict=True):
        sp[a, b] = min(sp[a, b], metres)
    for k in range(network.num_nodes):
        sp = np.minimum(sp, sp[:, k : k + 1] + sp[k : k + 1])
    return sp


def permuted(network: RoadNetwork, order: NDArray[np.int64]) -> RoadNetwork:
    """The same network with row i now holding what was row order[i]."""
    new_row = np.argsort(order)
    edges = replace(network.edges, senders=new_row[network.senders], receivers=new_row[network.receivers])
    return RoadNetwork(network.node_ids[order], network.lon[order], network.lat[order], edges, network.present[order])


def single(*node_ids: int, network: RoadNetwork) -> Anchors:
    rows = network.rows_of(node_ids)
    lon = network.lon[rows].tolist()
    lat = network.lat[rows].tolist()
    return Anchors("random", 0, tuple((i,) for i in node_ids), tuple((x,) for x in lon), tuple((y,) for y in lat))


graphs = st.builds(random_network, st.integers(0, 10_000), st.integers(2, 24))


@settings(max_examples=40)
@given(graphs)
def test_lemma_1_two_way_distance_is_a_metric(network: RoadNetwork) -> None:
    d = fp.two_way_m(network, np.arange(network.num_nodes))
    apart = ~np.eye(network.num_nodes, dtype=bool)
    assert np.isfinite(d).all()
    assert (np.diag(d) == 0).all()
    assert (d[apart] > 0).all()
    assert (d == d.T).all()
    assert (d[:, None, :] <= d[:, :, None] + d[None, :, :]).all()  # d(u,w) <= d(u,v) + d(v,w), exact in half metres


def test_lemma_1_needs_both_ways() -> None:
    network = random_network(3, 12)
    one_way = one_way_by_hand(network)
    assert (one_way != one_way.T).any()  # sp alone is no metric here


def test_lemma_2_positions_tell_isomorphic_neighbourhoods_apart() -> None:
    # A ring: v1 is two roads from each anchor, v2 five roads the other way round. All have two neighbours.
    v1, p, q, a1, a2, v2, *rest = range(14)
    x = rest[:4]
    y = rest[4:]
    ring = [v1, p, a1, *x, v2, *y, a2, q]
    network = two_way_streets(14, list(zip(ring, ring[1:] + ring[:1], strict=True)))
    assert (np.bincount(network.senders) == 2).all()
    raw = distances_m(network, single(a1, a2, network=network))
    assert raw[v1].tolist() == [2, 2]
    assert raw[v2].tolist() == [5, 5]


@settings(max_examples=30)
@given(graphs, st.sampled_from(["random", "farthest", "bourgain", "full"]), st.integers(0, 99))
def test_coordinates_against_every_shortest_path(network: RoadNetwork, choice: str, seed: int) -> None:
    anchors = choose_anchors(network, count=6, choice=choice, seed=seed)
    sp = one_way_by_hand(network)
    raw = distances_m(network, anchors)
    for k, members in enumerate(anchors.sets):
        rows = network.rows_of(members)
        assert (raw[:, k] == (sp[rows].min(axis=0) + sp[:, rows].min(axis=1)) / 2).all()


@settings(max_examples=30)
@given(graphs, st.integers(1, 40), st.sampled_from(["bourgain", "random"]))
def test_expansion_is_at_most_one_exactly(network: RoadNetwork, count: int, choice: str) -> None:
    raw = distances_m(network, choose_anchors(network, count=count, choice=choice))
    measured = fp.distortion(network, raw, pairs=10_000)
    assert measured.pairs == network.num_nodes * (network.num_nodes - 1) // 2
    assert measured.expansion <= 1


def test_distortion_of_the_full_embedding_is_of_order_log_n() -> None:
    """At most 8 log2 n on 50 networks of up to 200 nodes. The constant is ours: the theorem gives none."""
    worst = 0.0
    for seed in range(50):
        num_nodes = int(np.random.default_rng(seed).integers(20, 201))
        network = street_network(seed, num_nodes) if seed % 2 else random_network(seed, num_nodes, extra=2.0)
        anchors = choose_anchors(network, choice="full", seed=seed)
        assert len(anchors) == math.ceil(math.log2(num_nodes)) ** 2
        measured = fp.distortion(network, distances_m(network, anchors), pairs=20_000)
        assert measured.pairs > 0.95 * num_nodes * (num_nodes - 1) / 2  # a corner may be cut off by one-way streets
        worst = max(worst, measured.distortion / math.log2(num_nodes))
    assert 0 < worst <= 8


def test_the_nearest_member_each_way_is_not_the_distance_to_the_set() -> None:
    """What two searches a set cost where nearly every road is one-way: Bourgain's own coordinate is min d_X."""
    for seed in range(4):
        network = random_network(seed, 100, extra=0.5)
        anchors = choose_anchors(network, choice="full", seed=seed)
        d_x = fp.two_way_m(network, np.arange(100))
        exact = np.stack([d_x[network.rows_of(members)].min(axis=0) for members in anchors.sets], axis=1)
        ours = distances_m(network, anchors)
        assert (ours <= exact).all()
        assert (
            fp.distortion(network, ours, pairs=5000).distortion > fp.distortion(network, exact, pairs=5000).distortion
        )


def test_distortion_by_hand() -> None:
    network = two_way_streets(4, [(0, 1), (1, 2), (2, 3)])
    raw = distances_m(network, single(0, 2, network=network))  # 0: [0,2]  1: [1,1]  2: [2,0]  3: [3,1]
    measured = fp.distortion(network, raw)
    # 0-1 2/2=1; 0-2 4/2/2=1; 0-3 4/2/3=2/3; 1-2 1; 1-3 2/2/2=1/2; 2-3 1
    assert measured == fp.Distortion(expansion=1.0, contraction=2.0, distortion=2.0, pairs=6)


def test_distortion_over_a_sample_is_bounded_by_that_over_all_pairs() -> None:
    network = random_network(5, 120)
    raw = distances_m(network, choose_anchors(network, count=8))
    every = fp.distortion(network, raw, pairs=10_000)
    some = fp.distortion(network, raw, pairs=300)
    assert 0 < some.pairs <= 300 < every.pairs
    assert some.expansion <= every.expansion
    assert some.contraction <= every.contraction


def test_distortion_where_nothing_can_be_measured() -> None:
    network = two_way_streets(4, [(0, 1), (2, 3)])
    nothing = fp.distortion(network, np.full((4, 2), np.inf))
    assert nothing.pairs == 0
    assert math.isnan(nothing.distortion)
    same = fp.distortion(network, distances_m(network, single(0, network=network)))
    assert (same.pairs, same.distortion) == (1, 1.0)  # 2 and 3 have no coordinate in common
    twins = two_way_streets(3, [(0, 1), (1, 2)])
    assert fp.distortion(twins, distances_m(twins, single(1, network=twins))).contraction == math.inf


def test_unreachable_nodes_and_a_deleted_anchor_have_position_zero() -> None:
    network = two_way_streets(6, [(0, 1), (1, 2), (3, 4)], 100.0)  # two towns and an isolated node 5
    anchors = single(0, 3, 5, network=network)
    raw = distances_m(network, anchors)
    assert np.isinf(raw[[3, 4, 5], 0]).all()
    assert raw[5].tolist() == [math.inf, math.inf, 0]
    scale = fp.position_scale_m(raw)
    placed = fp.positions(raw, scale)
    assert placed.dtype == np.float32
    assert (placed[np.isinf(raw)] == 0).all()
    assert placed[0, 0] == 1
    without = network.remove_nodes([0])
    lost = distances_m(without, anchors)
    assert np.isinf(lost[:, 0]).all()
    assert np.isinf(lost[0]).all()
    assert (lost[3:, 1] == raw[3:, 1]).all()
    one_way = two_way_streets(2, [(0, 1)]).close([(1, 0)])
    assert np.isinf(distances_m(one_way, single(0, network=one_way))[1, 0])  # there and never back


def test_positions_fall_with_distance_and_halve_at_the_scale() -> None:
    raw = np.array([[0.0], [50.0], [100.0], [1e9], [np.inf]])
    placed = fp.positions(raw, 100.0)[:, 0]
    assert (np.diff(placed) < 0).all()
    assert placed[2] == 0.5
    assert fp.position_scale_m(raw[[1, 2, 2, 4]]) == 100.0
    assert fp.position_scale_m(np.full((3, 2), np.inf)) == 1.0


@pytest.mark.parametrize("choice", ["random", "farthest", "bourgain", "full"])
def test_choice_is_seeded_by_id_and_survives_json(choice: str) -> None:
    network = random_network(11, 60).remove_nodes([100, 117])
    anchors = choose_anchors(network, count=10, choice=choice, seed=4)
    assert anchors == choose_anchors(network, count=10, choice=choice, seed=4)
    assert anchors != choose_anchors(network, count=10, choice=choice, seed=5)
    assert anchors == Anchors.from_json(json.loads(json.dumps(anchors.to_json())))
    order = np.random.default_rng(0).permutation(network.num_nodes)
    shuffled = permuted(network, order)
    assert anchors == choose_anchors(shuffled, count=10, choice=choice, seed=4)
    assert (distances_m(shuffled, anchors) == distances_m(network, anchors)[order]).all()
    assert not {100, 117} & {node for members in anchors.sets for node in members}
    if choice != "full":
        assert len(anchors) == 10
    if choice in ("bourgain", "full"):
        assert {len(members) for members in anchors.sets} == {1, 2, 4, 8, 16, 32}
    else:
        assert len(set(anchors.sets)) == 10


@pytest.mark.parametrize("choice", ["random", "farthest", "bourgain"])
def test_width_does_not_depend_on_the_network(choice: str) -> None:
    tiny = two_way_streets(3, [(0, 1)])
    assert len(choose_anchors(tiny, count=16, choice=choice)) == 16
    assert len(choose_anchors(two_way_streets(1, []), count=16, choice=choice)) == 16


def test_choice_refuses_what_makes_no_sense() -> None:
    network = two_way_streets(2, [(0, 1)])
    with raises(SettingsError, "nearest", "random, farthest"):
        choose_anchors(network, choice="nearest")
    with raises(SettingsError, "0"):
        choose_anchors(network, count=0)
    with raises(CityError, "node"):
        choose_anchors(network.remove_nodes([0, 1]))


def test_farthest_spreads_more_than_random_and_shuns_unreachable_nodes() -> None:
    side = 12
    along = [(i, i + 1) for i in range(side * side) if (i + 1) % side]
    across = [(i, i + side) for i in range(side * side - side)]
    island = side * side  # no roads at all
    dead_end = side * side + 1  # a way in and no way out
    network = two_way_streets(side * side + 2, [*along, *across, (0, dead_end)], 100.0)
    network = network.close([(dead_end, 0)])

    def closest_pair(choice: str, seed: int) -> float:
        anchors = choose_anchors(network, count=8, choice=choice, seed=seed)
        d = fp.two_way_m(network, network.rows_of(members[0] for members in anchors.sets))
        d = d[:, network.rows_of(members[0] for members in anchors.sets)]
        return float(d[~np.eye(8, dtype=bool)].min())

    for seed in range(5):
        assert closest_pair("farthest", seed) > closest_pair("random", seed)
        far = choose_anchors(network, count=8, choice="farthest", seed=seed)
        assert not {(island,), (dead_end,)} & set(far.sets)


def test_anchors_are_kept_on_the_same_and_on_an_edited_network() -> None:
    network = random_network(2, 40)
    anchors = choose_anchors(network, count=8, seed=1)
    assert locate_anchors(network, anchors) == (anchors, "")
    edited = network.remove_nodes([anchors.sets[0][0]])
    located, notice = locate_anchors(edited, anchors)
    assert notice == ""
    raw = distances_m(edited, located)
    assert np.isinf(raw[:, 0]).all()
    assert (raw[:, 1:] == distances_m(edited, anchors)[:, 1:]).all()


def test_an_anchor_with_the_same_id_elsewhere_is_not_the_anchor() -> None:
    network = random_network(2, 40)
    anchors = choose_anchors(network, count=8, seed=1)
    lon = network.lon.copy()
    row = network.row_of(anchors.sets[3][0])
    lon[row] += 0.0003  # some 20 m
    assert locate_anchors(replace(network, lon=lon), anchors) == (anchors, "")
    lon[row] += 0.01  # some 700 m
    located, notice = locate_anchors(replace(network, lon=lon), anchors)
    assert notice == ""
    assert located.sets[3] == ()
    assert np.isinf(distances_m(network, located)[:, 3]).all()
    assert np.isfinite(distances_m(network, located)[:, :3]).all()
    assert located == Anchors.from_json(json.loads(json.dumps(located.to_json())))


@pytest.mark.parametrize("choice", ["random", "farthest", "bourgain", "full"])
def test_new_anchors_on_a_network_that_lacks_them(choice: str) -> None:
    anchors = choose_anchors(random_network(2, 40), count=8, choice=choice, seed=1)
    other = random_network(3, 90)  # the same ids in other places
    located, notice = locate_anchors(other, anchors)
    assert notice.startswith(f"0 of the model's {len(anchors)} anchors")
    assert choice in notice
    assert len(located) == len(anchors)
    assert (located.choice, located.seed) == (choice, 1)
    assert np.isfinite(distances_m(other, located)).all()
    if choice != "full":
        assert located == choose_anchors(other, count=8, choice=choice, seed=1)
    renamed = replace(other, node_ids=np.array([f"n{i}" for i in range(90)]))
    assert locate_anchors(renamed, anchors)[1] == notice


def test_half_of_the_anchors_is_enough() -> None:
    network = random_network(2, 40)
    anchors = choose_anchors(network, count=8, seed=1)
    ids = [members[0] for members in anchors.sets]
    assert locate_anchors(unknown_to(network, ids[:4]), anchors)[1] == ""
    assert locate_anchors(unknown_to(network, ids[:5]), anchors)[1].startswith("3 of the model's 8")


def test_deleted_anchors_are_not_replaced() -> None:
    # As in the paper: a deleted anchor is infinitely far, however many are. Otherwise the snapshots of one stream would
    # have different anchors, and so would training and a forecast.
    network = random_network(2, 40)
    anchors = choose_anchors(network, count=8, seed=1)
    gone = network.remove_nodes([members[0] for members in anchors.sets[:7]])
    assert locate_anchors(gone, anchors) == (anchors, "")
    assert np.isinf(distances_m(gone, anchors)[:, :7]).all()


def unknown_to(network: RoadNetwork, ids: list[NodeId]) -> RoadNetwork:
    """The network under a node table in which these nodes have other ids."""
    node_ids = network.node_ids.copy()
    rows = network.rows_of(ids)
    node_ids[rows] = node_ids[rows] + 1_000_000
    return replace(network, node_ids=node_ids)


def nearest_by_hand(
    network: RoadNetwork, sensors: NDArray[np.bool_], count: int, cutoff_m: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    sp = one_way_by_hand(network)
    metres_of = np.minimum(sp, sp.T)
    index = np.full((network.num_nodes, count), -1)
    metres = np.full((network.num_nodes, count), np.inf, np.float32)
    for v in range(network.num_nodes):
        there = [s for s in np.flatnonzero(sensors) if s != v and metres_of[v, s] <= cutoff_m]
        there.sort(key=lambda s: (metres_of[v, s], network.lon[s], network.lat[s]))
        for m, s in enumerate(there[:count]):
            index[v, m], metres[v, m] = s, metres_of[v, s]
    return index, metres


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(1, 6), st.sampled_from([200.0, 700.0, 1e6]))
def test_nearest_sensors_by_hand_and_permuted(seed: int, num_nodes: int, count: int, cutoff_m: float) -> None:
    network = random_network(seed, num_nodes)
    network = network.with_roads(replace(network.edges, length_m=np.ceil(network.length_m / 100) * 100))  # ties
    rng = np.random.default_rng(seed)
    sensors = rng.random(num_nodes) < 0.6
    index, metres = near.nearest_sensors(network, sensors, count=count, cutoff_m=cutoff_m)
    expected = nearest_by_hand(network, sensors, count, cutoff_m)
    assert (index == expected[0]).all()
    assert (metres == expected[1]).all()
    order = rng.permutation(num_nodes)
    shuffled, same = near.nearest_sensors(permuted(network, order), sensors[order], count=count, cutoff_m=cutoff_m)
    assert (np.where(shuffled < 0, -1, order[shuffled]) == index[order]).all()
    assert (same == metres[order]).all()


def test_nearest_sensors_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(8, 60)
    sensors = np.arange(60) % 3 > 0
    whole = near.nearest_sensors(network, sensors, count=5, cutoff_m=1500)
    monkeypatch.setattr(near, "CHUNK_CELLS", 7 * 60)
    monkeypatch.setattr(near, "SEARCHED_TOGETHER", 3)
    chunks = near.nearest_sensors(network, sensors, count=5, cutoff_m=1500)
    assert (whole[0] == chunks[0]).all()
    assert (whole[0] == nearest_by_hand(network, sensors, 5, 1500)[0]).all()


def test_nearest_sensors_leave_out_absent_ones() -> None:
    network = two_way_streets(4, [(0, 1), (1, 2), (2, 3)]).remove_nodes([1])
    index, metres = near.nearest_sensors(network, np.array([True, True, True, False]), count=2, cutoff_m=10)
    assert index.tolist() == [[-1, -1], [-1, -1], [-1, -1], [2, -1]]
    assert np.isfinite(metres).sum() == 1
    none, _ = near.nearest_sensors(network, np.zeros(4, bool), count=2, cutoff_m=10)
    assert (none == -1).all()


def test_hops_ignore_direction_and_length() -> None:
    network = two_way_streets(7, [(0, 1), (1, 2), (2, 3), (0, 4)], [900.0, 1.0, 1.0, 5.0])
    network = network.close([(0, 1), (2, 1)])  # 1 -> 0 and 1 -> 2 are left
    sensors = np.arange(7) == 0
    assert near.hops_to(network, sensors).tolist() == [0, 1, 2, 3, 1, -1, -1]
    assert near.hops_to(network, np.zeros(7, bool)).tolist() == [-1] * 7
    assert near.hops_to(network.remove_nodes([0]), sensors).tolist() == [-1] * 7


@pytest.mark.shared
@pytest.mark.parametrize("choice", ["random", "bourgain"])
def test_sixteen_anchors_on_a_large_network(choice: str) -> None:
    import polars as pl

    folder = shared_data("bayarea-osm-network")
    nodes = pl.read_parquet(folder / "nodes.parquet")
    table = pl.read_parquet(folder / "edges.parquet")
    edges, left_out = clean_edges(Edges.of(table["src"], table["dst"], table["length_m"]))
    assert left_out.self_loops.sum() == 117
    network = RoadNetwork(nodes["node_id"].to_numpy(), nodes["lon"].to_numpy(), nodes["lat"].to_numpy(), edges)
    raw = distances_m(network, choose_anchors(network, choice=choice))
    assert raw.shape == (30_826, 16)
    assert np.isfinite(raw).all()  # strongly connected
    measured = fp.distortion(network, raw)
    assert measured.pairs == 2000
    assert 0 < measured.expansion <= 1 + 1e-9


def test_an_area_without_sensors_differs_from_scattered_sensors() -> None:
    network = grid_network(24)
    east = (network.lon - network.lon.min()) / np.ptp(network.lon)
    for share in (0.1, 0.3, 0.9):
        sensors = np.random.default_rng(1).random(576) < share
        assert near.uncovered_share(network, sensors, np.random.default_rng(0)) < 0.02
        covered = sensors & (east < 0.6)
        bare = float((east > 0.75).mean()) / float((~covered).mean())  # within a street or two of a sensor is covered
        found = near.uncovered_share(network, covered, np.random.default_rng(0))
        assert 0.4 * bare < found <= float((east >= 0.6).mean()) / float((~covered).mean())
    for every in (False, True):
        assert near.uncovered_share(network, np.full(576, every), np.random.default_rng(0)) == 0
    islands = two_way_streets(40, [(k, k + 1) for k in range(0, 40, 2)])
    for seed in range(5):  # no road leads to most nodes
        assert near.uncovered_share(islands, np.arange(40) < 6, np.random.default_rng(seed)) == 0


def test_sensors_around_a_node_are_those_nearest_by_road() -> None:
    network = grid_network(9)
    sensors = np.arange(81) % 3 == 0
    away_m = fp.two_way_m(network, np.array([40]))[0]
    around = near.sensors_around(network, sensors, 40, 0.4)
    assert around.sum() == round(0.4 * 27) and not (around & ~sensors).any()
    assert away_m[around].max() < away_m[sensors & ~around].min()
