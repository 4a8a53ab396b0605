"""The demo city: a town that hangs together, people who commute, closures that divert them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from frigate.city.network import RoadNetwork
from frigate.coordinates import haversine_m
from frigate.errors import SettingsError
from frigate.simulate.assignment import assign, assigned_roads, subtree_sums
from frigate.simulate.demo_city import Simulation, _demand, _per_hour, simulate, usual_weekday
from frigate.simulate.streets import RESIDENTIAL, TRUNK, build_town
from tests.support.errors import raises

SMALL = 160
DAY = 288  # steps


def strong_parts(network: RoadNetwork) -> int:
    N = network.num_nodes
    graph = csr_array((np.ones(network.num_edges), (network.senders, network.receivers)), shape=(N, N))
    return int(connected_components(graph, connection="strong")[0])


@pytest.fixture(scope="module")
def fortnight() -> Simulation:
    return simulate(seed=3, intersections=SMALL)


@pytest.fixture(scope="module")
def undisturbed() -> Simulation:
    return simulate(seed=3, intersections=SMALL, closures=0)


@pytest.mark.parametrize(("seed", "size"), [(0, 100), (1, 130), (2, 250), (3, 400)])
def test_every_town_is_one_piece_with_few_bridges(seed: int, size: int) -> None:
    town = build_town(np.random.default_rng(seed), intersections=size)
    net = town.network
    assert net.num_nodes == size
    assert strong_parts(net) == 1
    assert 2 <= len(town.bridges) <= 6
    bridges = [set(b) for b in town.bridges.tolist()]
    roads = [r for r in zip(net.senders.tolist(), net.receivers.tolist(), strict=True) if set(r) in bridges]
    ids = net.node_ids.tolist()
    cut = net.close((ids[a], ids[b]) for a, b in roads)
    assert strong_parts(cut) == 2  # the river parts the town: nothing but the bridges joins its banks


def test_streets_have_a_hierarchy_and_honest_lengths() -> None:
    net = build_town(np.random.default_rng(0), intersections=400).network
    e = net.edges
    assert {"trunk", "primary", "secondary", "tertiary", "residential"} == set(e.road_class.tolist())
    straight = haversine_m(net.lon[e.senders], net.lat[e.senders], net.lon[e.receivers], net.lat[e.receivers])
    assert (e.length_m > straight).all()
    assert (e.length_m < 1.2 * straight + 1).all()
    pairs = set(zip(e.senders.tolist(), e.receivers.tolist(), strict=True))
    assert len(pairs) == len(e)
    one_way = np.array([(b, a) not in pairs for a, b in zip(e.senders.tolist(), e.receivers.tolist(), strict=True)])
    assert 0.02 < one_way.mean() < 0.3
    assert set(e.road_class[one_way].tolist()) == {"residential"}
    assert (e.name[e.road_class == "trunk"] != "").all()
    for road in range(0, len(e), 97):  # the line that is drawn runs from end to end
        line = np.frombuffer(e.geometry[road][9:]).reshape(-1, 2)
        ends = [[net.lon[x], net.lat[x]] for x in (e.senders[road], e.receivers[road])]
        np.testing.assert_allclose(line[[0, -1]], ends, atol=1e-9)


def test_subtree_sums_equal_a_walk_up_every_tree() -> None:
    rng = np.random.default_rng(0)
    before = np.full((3, 40), -9999, np.int32)
    for z in range(3):
        shuffled = rng.permutation(40)
        for i in range(1, 40):
            before[z, shuffled[i]] = shuffled[rng.integers(max(0, i - 4), i)]
    load = rng.random((3, 40, 2))
    expected = np.zeros_like(load)
    for z in range(3):
        for n in range(40):
            v = n
            while v >= 0:
                expected[z, v] += load[z, n]
                v = before[z, v]
    np.testing.assert_allclose(subtree_sums(before, load), expected, rtol=1e-12)


def test_assignment_conserves_vehicles() -> None:
    town = build_town(np.random.default_rng(1), intersections=SMALL)
    roads = assigned_roads(np.random.default_rng(2), town)
    demand = _demand(np.random.default_rng(3), town, roads)
    per_hour = _per_hour(0, 7.6, residents=20_000.0)
    open_ = np.ones(len(roads.senders), bool)
    loading = assign(roads, demand, open_, per_hour)
    np.testing.assert_allclose(demand.to_root.sum((1, 2)) + demand.from_root.sum((1, 2)), 1)
    N = town.network.num_nodes
    starts = np.zeros(N)
    ends = np.zeros(N)
    for table, at_node, at_zone in ((demand.to_root, starts, ends), (demand.from_root, ends, starts)):
        trips = np.einsum("pzn,p->zn", table, per_hour)
        np.add(at_node, trips.sum(0), out=at_node)
        at_zone[demand.roots] += trips.sum(1)
    into = np.bincount(roads.receivers, loading.road_flow, N)
    out = np.bincount(roads.senders, loading.road_flow, N)
    passing = np.einsum("pzn,p->n", loading.passages, per_hour)
    np.testing.assert_allclose(into + starts, out + ends, rtol=1e-9)
    np.testing.assert_allclose(into + starts, passing, rtol=1e-9)
    assert (loading.elapsed_s > 0).all()
    assert loading.elapsed_s.max() < 1800


def test_congestion_drives_traffic_off_the_busiest_roads() -> None:
    town = build_town(np.random.default_rng(1), intersections=SMALL)
    roads = assigned_roads(np.random.default_rng(2), town)
    demand = _demand(np.random.default_rng(3), town, roads)
    open_ = np.ones(len(roads.senders), bool)
    few, many = (assign(roads, demand, open_, _per_hour(0, 7.6, residents=n)).road_flow / n for n in (1e3, 6e4))
    busiest = np.argsort(few / roads.capacity)[-20:]
    assert many[busiest].sum() < 0.95 * few[busiest].sum()


def test_same_seed_same_bits_other_seed_other_town() -> None:
    a, b, c = (simulate(seed=s, intersections=100, days=1, step_s=1800) for s in (5, 5, 6))
    np.testing.assert_array_equal(a.stream.values, b.stream.values)
    np.testing.assert_array_equal(a.stream.network_of, b.stream.network_of)
    assert [t.fingerprint for t in a.stream.networks] == [t.fingerprint for t in b.stream.networks]
    assert a.stream.network.fingerprint != c.stream.network.fingerprint
    assert (a.stream.values != c.stream.values).mean() > 0.2


def test_counts_are_whole_and_skewed(fortnight: Simulation) -> None:
    stream, values = fortnight.stream, fortnight.stream.values
    assert values.shape == (14 * DAY, SMALL)
    assert stream.local_time(stream.start_s) == "2024-03-04T00:00:00+01:00"
    assert (stream.quantity, stream.unit, stream.step_s) == ("count", "vehicles", 300)
    assert len(set(stream.utc_offset_s.tolist())) == 1
    assert stream.observed.all()
    assert (values >= 0).all()
    np.testing.assert_array_equal(values, np.round(values))
    by_node = values.mean(0)
    assert 4 < by_node.mean() < 40
    assert by_node.mean() > 1.8 * np.median(by_node)
    kind = fortnight.town.node_class
    assert by_node[kind == TRUNK].mean() > 5 * by_node[kind == RESIDENTIAL].mean()


def test_days_have_tides(undisturbed: Simulation) -> None:
    days = undisturbed.stream.values.reshape(14, DAY, SMALL)
    week = days[[0, 1, 2, 3, 4, 7, 8, 9, 10, 11]]
    rest = days[[5, 6, 12, 13]]

    def at(hour: float) -> slice:
        return slice(int(hour * 12), int((hour + 1.5) * 12))

    def share(x: NDArray[np.floating]) -> NDArray[np.floating]:
        return x.mean((0, 1)) / x.mean()

    night, morning, noon, evening = (week[:, at(h)].mean() for h in (2, 7, 10, 16.5))
    assert night < 0.05 * morning
    assert min(morning, evening) > 1.3 * noon
    assert rest[:, at(7)].mean() < 0.3 * morning
    assert rest.mean() < 0.8 * week.mean()
    # The tide turns: busy nodes differ between morning and evening far more than between two weeks' mornings.
    turned = np.abs(share(week[:, at(7)]) - share(week[:, at(16.5)])).mean()
    assert turned > 1.5 * np.abs(share(week[:5, at(7)]) - share(week[5:, at(7)])).mean()


def test_morning_flows_in_and_evening_flows_out() -> None:
    town = build_town(np.random.default_rng(1), intersections=SMALL)
    roads = assigned_roads(np.random.default_rng(2), town)
    demand = _demand(np.random.default_rng(3), town, roads)
    open_ = np.ones(len(roads.senders), bool)
    far = np.linalg.norm(town.xy_m, axis=1)
    radial = (far[roads.receivers] - far[roads.senders]) / roads.free_s  # positive: out of town
    rates = [_per_hour(0, h, residents=20_000.0) for h in (7.3, 17.3)]
    morning, evening = (assign(roads, demand, open_, rate).road_flow for rate in rates)
    assert (morning * radial).sum() < 0 < (evening * radial).sum()


def test_networks_follow_the_schedule(fortnight: Simulation) -> None:
    stream = fortnight.stream
    ids = stream.node_ids.tolist()
    assert len(fortnight.closures) == 3
    for s in range(0, stream.num_snapshots, 6):
        day, hour = divmod(s, DAY)
        shut = {
            road
            for c in fortnight.closures
            for road in c.roads
            if c.first_day <= day < c.first_day + c.num_days and c.from_h <= hour / 12 < c.to_h
        }
        closed = stream.networks[stream.network_of[s]].closed
        assert {(ids[a], ids[b]) for a, b in zip(closed.senders, closed.receivers, strict=True)} == shut
    assert all(strong_parts(t) == 1 for t in stream.networks)
    changed = stream.network_of != 0
    assert changed[: int(0.7 * len(changed))].any()
    assert changed[int(0.7 * len(changed)) : int(0.9 * len(changed))].any()
    assert changed[int(0.9 * len(changed)) :].any()


def test_a_closed_bridge_diverts_traffic_and_nothing_else_changes(
    fortnight: Simulation, undisturbed: Simulation
) -> None:
    bridge = fortnight.closures[0]
    assert bridge.reason == "bridge repair"
    calm = undisturbed.stream.values
    shut = fortnight.stream.values
    stream = fortnight.stream
    first = int(np.flatnonzero(stream.network_of)[0])
    np.testing.assert_array_equal(shut[:first], calm[:first])
    whole_days = [d for d in range(14) if not stream.network_of[d * DAY : (d + 1) * DAY].any()]
    for d in whole_days:
        np.testing.assert_array_equal(shut[d * DAY : (d + 1) * DAY], calm[d * DAY : (d + 1) * DAY])
    during = slice(bridge.first_day * DAY + 7 * 12, bridge.first_day * DAY + 19 * 12)
    ends = stream.network.rows_of(bridge.roads[0])
    ends_before, ends_shut = (x[during][:, ends].sum() for x in (calm, shut))
    assert ends_shut < 0.7 * ends_before
    others = [n for n in fortnight.town.bridges.ravel().tolist() if n not in ends]
    assert shut[during][:, others].sum() > 1.1 * calm[during][:, others].sum()


def test_a_usual_weekday_is_the_mean_of_the_simulated_ones(fortnight: Simulation, undisturbed: Simulation) -> None:
    network = undisturbed.stream.network
    bridge = fortnight.closures[0]
    hours = range(9, 18)
    versions = [network, network.close(bridge.roads)]
    usual, shut = usual_weekday(versions, seed=3, intersections=SMALL, hours=hours)
    days = undisturbed.stream.values.reshape(14, 24, 12, -1)[[d for d in range(14) if d % 7 < 5]]
    counted = 12 * days[:, hours].mean((0, 1, 2))
    np.testing.assert_allclose(
        usual.node.sum(), counted.sum(), rtol=0.06
    )  # some days are busier, and some have a match
    assert np.abs(usual.node - counted).sum() < 0.08 * counted.sum()
    # A vehicle at a node came by a road, or starts there; it leaves by a road, or ends there.
    for ends in (network.senders, network.receivers):
        assert (np.bincount(ends, usual.road, SMALL) < 1.03 * usual.node + 1).all()
    # On the closed bridge is nobody, and the other bridges have what it had: the river parts the town.
    over = {frozenset(ends) for ends in undisturbed.town.bridges.tolist()}
    roads = list(zip(network.senders.tolist(), network.receivers.tolist(), strict=True))
    bridges = np.array([frozenset(ends) in over for ends in roads])
    gone = np.array([tuple(network.node_ids[[a, b]].tolist()) in bridge.roads for a, b in roads])
    assert gone.sum() == 2 and (usual.road[gone] > 10).all() and (shut.road[gone] == 0).all()
    np.testing.assert_allclose(shut.road[bridges].sum(), usual.road[bridges].sum(), rtol=0.03)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"intersections": 12}, ("intersections", "12", "100")),
        ({"step_s": 7 * 60}, ("step_s = 420", "300")),
        ({"days": 0}, ("days = 0",)),
        ({"closures": -1}, ("closures = -1",)),
        ({"seed": -1}, ("seed = -1",)),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any], named: tuple[str, ...]) -> None:
    with raises(SettingsError, *named):
        simulate(**wrong)


def test_one_day_with_many_closures() -> None:
    town = simulate(seed=8, intersections=100, days=1, step_s=1800, closures=7)
    assert len(town.closures) == 7
    assert all(c.num_days == 1 and c.first_day == 0 for c in town.closures)
    assert all(strong_parts(t) == 1 for t in town.stream.networks)
