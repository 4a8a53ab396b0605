"""What a change of roads means for the trips, against a loop over every trip."""

from __future__ import annotations

import numpy as np
import pytest

import frigate as fg
from frigate.demand.detour_totals import detour_totals
from frigate.demand.rerouting import find_detours
from frigate.demand.settings import DemandSettings


@pytest.fixture(scope="module")
def demand() -> fg.Demand:
    city = fg.demo_city(intersections=100, days=1, closures=0)
    return fg.estimate_demand(city, settings=DemandSettings(sets=2, iterations=5))


@pytest.mark.parametrize("adding", [False, True])
def test_sums_over_trips_equal_a_loop(demand: fg.Demand, adding: bool) -> None:
    network = demand.network
    busy = np.argsort(-demand.road_flow.mean(0))[:2]
    ids = network.node_ids
    roads = [(ids[network.senders[row]], ids[network.receivers[row]]) for row in busy.tolist()]
    new = network.close(roads)
    if adding:
        far = network.node_ids[[int(network.lon.argmin()), int(network.lon.argmax())]].tolist()
        new = new.add(roads=[(far[0], far[1]), (far[1], far[0])])
    detours = find_detours(network, new, demand.sets, demand.settings, seed=demand.seed)
    found = detour_totals(demand, detours)
    graph = detours.graph
    shut = set(np.flatnonzero(detours.closed).tolist())
    for k, (trips, rows, other) in enumerate(zip(demand.sets, detours.rows, detours.routes, strict=True)):
        expected = np.zeros((5, 48))
        vehicles = demand.trips(k)
        place = {row: i for i, row in enumerate(rows.tolist())}
        for r in range(len(trips.routes)):
            way = trips.routes.roads[trips.routes.start[r] : trips.routes.start[r + 1]].tolist()
            length_m = sum(graph.length_m[road] for road in way)
            expected[0] += length_m * vehicles[r]
            if r not in place:
                assert not shut & set(way)
                continue
            i = place[r]
            another = other.routes.roads[other.routes.start[i] : other.routes.start[i + 1]].tolist()
            if not another:
                expected[3] += vehicles[r]
                expected[4] += length_m * vehicles[r]
                continue
            longer_m = sum(graph.length_m[road] for road in another) - length_m
            if shut & set(way) or abs(longer_m) > 0.5:
                expected[1] += vehicles[r]
                expected[2] += longer_m * vehicles[r]
        sums = (found.driven_m, found.moved, found.extra_m, found.lost, found.lost_m)
        np.testing.assert_allclose(np.stack([each[k] for each in sums]), expected, rtol=1e-4, atol=1e-3)
    assert found.moved.sum() > 0


def test_where_nothing_changes_nobody_moves(demand: fg.Demand) -> None:
    detours = find_detours(demand.network, demand.network, demand.sets, demand.settings, seed=demand.seed)
    found = detour_totals(demand, detours)
    assert found.driven_m.min() > 0
    assert not found.moved.any() and not found.extra_m.any() and not found.lost.any()
