"""The rooms of map matching against plain reckoning: candidates, routes, parameters."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from frigate.city.network import Edges, RoadNetwork, clean_edges
from frigate.coordinates import haversine_m
from frigate.errors import CityError
from frigate.reading.notices import Notices
from frigate.roads.geometry import Projection, write_line
from frigate.sources.traces import matching
from frigate.sources.traces.matching import INSIDE_M, MatchOptions, NearbyRoads, chunk_slices, join, make_table, match
from frigate.sources.traces.road_index import MAX_CANDIDATES, build_grid, find_candidates, readonly
from frigate.sources.traces.viterbi import MATCHED, OUTSIDE, Matches, Positions, look_up, straight_distance_m

RADIUS_M = 50.0


def scattered(seed: int, *, num_nodes: int = 60) -> RoadNetwork:
    """Nodes over some two kilometres with bent roads between near ones, not all reachable."""
    rng = np.random.default_rng(seed)
    lon = 6.1 + 0.03 * rng.random(num_nodes)
    lat = 49.6 + 0.02 * rng.random(num_nodes)
    far = haversine_m(lon[:, None], lat[:, None], lon[None], lat[None])
    near = np.argsort(far, axis=1)[:, 1:4]
    senders = np.repeat(np.arange(num_nodes), 3)
    receivers = near.ravel()
    geometry = np.full(len(senders), b"", np.object_)
    length_m = far[senders, receivers]
    for road in range(0, len(senders), 2):
        a = senders[road]
        b = receivers[road]
        bend = [(lon[a] + lon[b]) / 2 + 0.001, (lat[a] + lat[b]) / 2]
        line = np.array([[lon[a], lat[a]], bend, [lon[b], lat[b]]])
        geometry[road] = write_line(line)
        length_m[road] = haversine_m(line[:-1, 0], line[:-1, 1], line[1:, 0], line[1:, 1]).sum()
    edges, _ = clean_edges(Edges.of(senders, receivers, length_m, geometry=geometry))
    return RoadNetwork(np.arange(num_nodes), lon, lat, edges)


def roads_of(network: RoadNetwork, *, notices: Notices | None = None) -> NearbyRoads:
    projection = Projection.of(network)
    grid = build_grid(network, projection, radius_m=RADIUS_M, margin_m=INSIDE_M, notices=notices or Notices())
    return NearbyRoads(projection, grid, RADIUS_M)


def drive(network: RoadNetwork, seed: int, *, vehicles: int = 6, noise_m: float = 5.0) -> Positions:
    """Positions along random ways through a network, some of them a jump apart."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, float, float, int]] = []
    for vehicle in range(vehicles):
        node = int(rng.integers(network.num_nodes))
        time_us = 0
        for _ in range(40):
            out = np.flatnonzero(network.senders == node)
            node = (
                int(rng.integers(network.num_nodes)) if rng.random() < 0.05 else int(network.receivers[rng.choice(out)])
            )
            time_us += int(rng.integers(20, 90)) * 1_000_000
            off = rng.normal(0, noise_m / 111_000, 2)
            rows.append((vehicle, network.lon[node] + off[0], network.lat[node] + off[1], time_us))
    vehicle_, lon, lat, time = (np.array(column) for column in zip(*rows, strict=True))
    return Positions(
        readonly(vehicle_, np.int32),
        readonly(lon, np.float64),
        readonly(lat, np.float64),
        *[readonly(time, np.int64)] * 2,
    )


def to_line_m(line: NDArray[np.float64], x_m: float, y_m: float) -> float:
    """Distance to a line by trying many points of each piece."""
    share = np.linspace(0, 1, 301)[:, None]
    points = np.concatenate([a + share * (b - a) for a, b in pairwise(line)])
    return float(np.hypot(points[:, 0] - x_m, points[:, 1] - y_m).min())


@pytest.mark.parametrize("seed", range(3))
def test_candidates_are_the_roads_within_the_radius(seed: int) -> None:
    network = scattered(seed)
    roads = roads_of(network)
    rng = np.random.default_rng(seed)
    lines = []
    for road in range(network.num_edges):
        pieces = np.flatnonzero(roads.grid.piece_road == road)
        grid = roads.grid
        x = grid.piece_x_m[pieces]
        y = grid.piece_y_m[pieces]
        ends = [x[-1] + grid.piece_dx_m[pieces[-1]], y[-1] + grid.piece_dy_m[pieces[-1]]]
        lines.append(np.vstack([np.stack([x, y], axis=1), ends]))
    lon = rng.uniform(6.095, 6.135, 30)
    lat = rng.uniform(49.595, 49.625, 30)
    x_m, y_m = roads.projection.metres(lon, lat)
    found = find_candidates(roads.grid, x_m, y_m, RADIUS_M, INSIDE_M)
    assert (found.number > 0).any()
    for i in range(len(lon)):
        away = np.array([to_line_m(line, x_m[i], y_m[i]) for line in lines])
        sure = set(np.flatnonzero(away < RADIUS_M - 1))
        never = set(np.flatnonzero(away > RADIUS_M + 1))
        got = set(found.road[i, : found.number[i]].tolist())
        assert len(got) == found.number[i]
        if len(sure) <= MAX_CANDIDATES:
            assert sure <= got
        assert not got & never
        for road, metres in zip(found.road[i], found.distance_m[i, : found.number[i]], strict=False):
            assert metres == pytest.approx(away[road], abs=1.0)
        if abs(away.min() - INSIDE_M) > 1:
            assert found.inside[i] == (away.min() < INSIDE_M)


def test_a_road_is_read_along_its_course_whichever_way_its_line_runs() -> None:
    network = scattered(1)
    turned = network.with_roads(replace(network.edges, geometry=network.edges.geometry.copy()))
    for road, wkb in enumerate(network.edges.geometry):
        if wkb:
            line = np.frombuffer(wkb, "<f8", offset=9).reshape(-1, 2)
            turned.edges.geometry[road] = write_line(line[::-1])
    for one, other in zip(roads_of(network).grid, roads_of(turned).grid, strict=True):
        np.testing.assert_array_equal(one, other)


def test_geometry_that_is_no_line_or_another_roads_is_taken_as_straight_and_said() -> None:
    network = scattered(2)
    plain = network.with_roads(replace(network.edges, geometry=np.full(network.num_edges, b"", np.object_)))
    broken = plain.edges.geometry.copy()
    broken[0], broken[1] = b"\x01\x02", write_line(np.array([[7.0, 50.0], [7.1, 50.0]]))
    notices = Notices()
    found = roads_of(plain.with_roads(replace(plain.edges, geometry=broken)), notices=notices).grid
    for one, other in zip(found, roads_of(plain).grid, strict=True):
        np.testing.assert_array_equal(one, other)
    assert sorted(notices.counts.values()) == [1, 1]


@pytest.mark.parametrize("seed", range(3))
def test_the_table_holds_the_shortest_routes(seed: int) -> None:
    network = scattered(seed)
    roads = roads_of(network)
    table = make_table(roads, drive(network, seed), max_gap_s=240, workers=2)
    pairs = (network.senders, network.receivers)
    true_m = dijkstra(coo_array((network.length_m, pairs), shape=(network.num_nodes,) * 2).tocsr())
    held = np.flatnonzero(table.row_of >= 0)
    assert len(held) and (true_m[held] > table.radius_m).any()
    for source in held:
        for target in range(network.num_nodes):
            at = look_up(table, table.row_of[source], target)
            if true_m[source, target] > table.radius_m + 0.01:
                assert at < 0
            elif true_m[source, target] < table.radius_m - 0.01:
                assert table.metres[at] == pytest.approx(true_m[source, target], rel=1e-5)
                last = table.last_roads[at]
                if target != source:
                    assert network.receivers[last] == target
                    by = true_m[source, network.senders[last]] + network.length_m[last]
                    assert by == pytest.approx(true_m[source, target])


@pytest.mark.parametrize("routes", [0, 300])
def test_a_smaller_table_changes_nothing(monkeypatch: pytest.MonkeyPatch, routes: int) -> None:
    network = scattered(4)
    roads = roads_of(network)
    positions = drive(network, 4)
    whole, settings = match(roads, positions, MatchOptions())
    assert (whole.before >= 0).sum() > 100
    monkeypatch.setattr(matching, "TABLE_ROUTES", routes)
    monkeypatch.setattr(matching, "TABLE_RADIUS_M", 700.0)
    monkeypatch.setattr(matching, "ROUTES_AT_ONCE", 150)
    less, same = match(roads, positions, MatchOptions())
    assert settings == same
    assert_equal(whole, less)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    network = scattered(5)
    roads = roads_of(network)
    positions = drive(network, 5)
    whole, _ = match(roads, positions, MatchOptions(sigma_m=5, beta_m=20))
    parts = [slice(0, 40), slice(40, 160), slice(160, 240)]
    monkeypatch.setattr(matching, "chunk_slices", lambda vehicle, size: parts)
    said: list[tuple[int, int]] = []
    cut, _ = match(
        roads,
        positions,
        MatchOptions(sigma_m=5, beta_m=20, workers=2),
        on_progress=lambda done, total, words: said.append((done, total)),
    )
    assert_equal(whole, cut)
    assert said == [(40, 240), (160, 240), (240, 240)]


def test_chunks_are_whole_vehicles() -> None:
    vehicle = np.repeat(np.arange(9, dtype=np.int32), [5, 1, 1, 9, 2, 2, 2, 30, 1])
    slices = chunk_slices(vehicle, 4)
    assert [part.start for part in slices] == [0, *(part.stop for part in slices[:-1])]
    assert slices[-1].stop == len(vehicle)
    named = [set(vehicle[part].tolist()) for part in slices]
    assert sum(map(len, named)) == 9
    assert len(slices) > 3


def test_routes_are_no_faster_than_a_car_and_positions_far_away_are_outside() -> None:
    network = scattered(6)
    roads = roads_of(network)
    positions = drive(network, 6)
    found, _ = match(roads, positions, MatchOptions(sigma_m=5, beta_m=20))
    linked = np.flatnonzero(found.before >= 0)
    took_s = (positions.arrive_us[linked] - positions.depart_us[found.before[linked]]) / 1e6
    assert (found.route_m[linked] <= 70.0 * (took_s + 5) + 1).all()
    assert (found.route_m[linked] <= 1.5 * found.straight_m[linked] + 1001).all()
    away = positions._replace(lat=readonly(positions.lat + 1, np.float64))
    assert (match(roads, away, MatchOptions(sigma_m=5, beta_m=20))[0].state == OUTSIDE).all()


def test_straight_distance_is_the_networks() -> None:
    for a, b in (((6.1, 49.6), (6.2, 49.5)), ((179.9, 10.0), (-179.9, 10.1)), ((3.0, 4.0), (3.0, 4.0))):
        there = haversine_m(*(np.array(v) for v in (*a, *b)))
        assert straight_distance_m(*a, *b) == pytest.approx(float(there), rel=1e-12)


def test_sigma_is_estimated_from_the_noise() -> None:
    network = scattered(7)
    small, large = (match(roads_of(network), drive(network, 7, noise_m=noise), MatchOptions()) for noise in (3.0, 12.0))
    assert 1.0 <= small[1].sigma_m < large[1].sigma_m < 20
    assert (small[0].state == MATCHED).mean() > 0.95


def test_a_network_across_the_date_line_is_in_one_piece() -> None:
    network = RoadNetwork(
        np.arange(2), np.array([179.999, -179.999]), np.array([0.0, 0.0]), Edges.of([0, 1], [1, 0], [222.0, 222.0])
    )
    roads = roads_of(network)
    x_m, y_m = roads.projection.metres(np.array([180.0, -180.0]), np.array([0.0001, 0.0001]))
    assert find_candidates(roads.grid, x_m, y_m, RADIUS_M, INSIDE_M).number.tolist() == [2, 2]
    assert roads.grid.columns < 20


@pytest.mark.parametrize(("workers", "engine"), [(0, "local"), (1, "spark")])
def test_workers_and_engine_are_checked(workers: int, engine: str) -> None:
    with pytest.raises(CityError):
        MatchOptions(workers=workers, engine=engine)


def assert_equal(one: Matches, other: Matches) -> None:
    for a, b, name in zip(one, other, Matches._fields, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_joining_moves_the_links() -> None:
    network = scattered(8)
    found, _ = match(roads_of(network), drive(network, 8), MatchOptions(sigma_m=5, beta_m=20))
    twice = join([found, found])
    P = len(found.road)
    linked = found.before >= 0
    np.testing.assert_array_equal(twice.before[P:][linked], found.before[linked] + P)
    assert (twice.before[P:][~linked] == -1).all()
