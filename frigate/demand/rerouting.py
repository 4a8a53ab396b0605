"""Rerouting when roads close or open: the same trips are routed again on the changed network.

Calibrated trip flows and drivers' travel times stay fixed; only the routes change. The result is a factor for each
node, new flow over old, that multiplies any forecast made for the unchanged network. Detours depend only on the map,
so they are computed once for all demands of a network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import vstack
from scipy.sparse.csgraph import connected_components

from frigate.city.network import RoadNetwork
from frigate.demand.calibration import Floats, RouteSet, SensorView, route_set
from frigate.demand.count_profiles import TINY
from frigate.demand.estimate import Demand
from frigate.demand.route_search import Routes, search_again
from frigate.demand.sensor_shares import SensorShares, find_sensor_shares
from frigate.demand.settings import DemandSettings, route_seed, set_searches
from frigate.roads.line_graph import LineGraph, line_graph
from frigate.roads.positions import road_matrix

LITTLE_FLOW = 0.05  # of the mean flow, added to both flows: keeps the ratio bounded at nodes with almost no flow


@dataclass(frozen=True)
class Detours:
    """The trips that were rerouted on another network with the same nodes."""

    graph: LineGraph  # all roads, the old ones first
    closed: NDArray[np.bool_]  # [E] which old roads are closed
    rows: tuple[NDArray[np.int64], ...]  # per route set, the trips that were rerouted
    routes: tuple[RouteSet, ...]  # their new routes
    shut: NDArray[np.bool_]  # [N] nodes that lost all roads into them, or all roads out


@dataclass(frozen=True)
class Rerouted:
    """Flows on the changed network, relative to those on the old one."""

    node_change: NDArray[np.float32]  # [N] new flow / old flow; 0 where nobody can pass any more
    road_change: NDArray[np.float32]  # [E] the same for the old roads; 0 on closed ones
    lost: float  # share of vehicles that can no longer reach their destination


def find_detours(
    old: RoadNetwork,
    new: RoadNetwork,
    sets: tuple[RouteSet, ...],
    settings: DemandSettings,
    *,
    seed: int,
    forbidden_turns: NDArray[np.int64] | None = None,
) -> Detours:
    """Reroute the trips of the old network on the new one.

    If roads only close, only the trips that used them are rerouted: every other trip's fastest route is unchanged. If
    a road is added, any trip may get faster, so all are rerouted.

    Parameters
    ----------
    old, new
        Networks with the same table of nodes.
    sets, settings, seed
        The trips, and the settings and seed they were sampled with.
    forbidden_turns
        [K,3] rows of nodes source, via, target.
    """
    before, after = (np.stack([n.senders, n.receivers], axis=1) @ [n.num_nodes, 1] for n in (old, new))
    closed = ~np.isin(before, after)
    more = np.flatnonzero(~np.isin(after, before))
    there = np.concatenate([closed, np.zeros(len(more), bool)])
    graph = line_graph(old, forbidden_turns, also=(new, more), closed=there)
    rows, routes = [], []
    for k, (trips, search) in enumerate(zip(sets, set_searches(settings), strict=True)):
        used = np.asarray(trips.through_road[:, np.flatnonzero(closed)].sum(axis=1)).ravel() > 0
        some = np.flatnonzero(used) if len(more) == 0 else np.arange(len(trips.routes))
        moved = _open_ends(trips.routes.take(some), graph, there)
        rows.append(some)
        routes.append(route_set(graph, search_again(graph, search, moved, seed=route_seed(seed, k))))
    return Detours(graph, closed, tuple(rows), tuple(routes), _shut(old, new))


def _shut(old: RoadNetwork, new: RoadNetwork) -> NDArray[np.bool_]:
    """[N] nodes that lost all roads into them, or all roads out of them."""

    def degree(ends: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(ends, minlength=old.num_nodes)

    lost = (degree(old.receivers) > 0) & (degree(new.receivers) == 0)
    lost |= (degree(old.senders) > 0) & (degree(new.senders) == 0)
    return np.asarray(lost)


def reroute(demand: Demand, detours: Detours) -> Rerouted:
    """The effect of the detours on the weekly mean flow at every node and road."""
    E = demand.graph.num_roads
    node = []
    road = []
    before = np.zeros(len(detours.shut))
    after = np.zeros(len(detours.shut))
    lost, made = 0.0, 0.0
    for trips, numbers, rows, other in zip(demand.sets, demand.numbers, detours.rows, detours.routes, strict=True):
        some = numbers[rows]
        flow = trips.through_node.T @ numbers
        flow_of_road = trips.through_road.T @ numbers
        new = np.maximum(flow + other.through_node.T @ some - trips.through_node[rows].T @ some, 0)
        new_of_road = flow_of_road + (other.through_road.T @ some)[:E] - trips.through_road[rows].T @ some
        node.append(_change(flow, new))
        road.append(_change(flow_of_road, np.maximum(new_of_road, 0)))
        before = before + flow
        after = after + new
        lost += float(some[np.diff(other.routes.start) == 0].sum())
        made += float(numbers.sum())
    nobody = detours.shut | ((before > 0) & (after <= 1e-6 * before))
    return Rerouted(
        np.where(nobody, 0, _middle(node)).astype(np.float32),
        np.where(detours.closed, 0, _middle(road)).astype(np.float32),
        lost / max(made, TINY),
    )


def sensor_shares_on_detours(demand: Demand, detours: Detours) -> SensorShares:
    """The share of each node's vehicles that pass each sensor, after rerouting."""
    sets = []
    for trips, numbers, rows, other in zip(demand.sets, demand.numbers, detours.rows, detours.routes, strict=True):
        as_before = np.ones(len(numbers), bool)
        as_before[rows] = False
        through_node = vstack([trips.through_node[as_before], other.through_node], format="csr")
        view = SensorView.of(through_node, demand.sensors)
        sets.append((through_node, view, np.concatenate([numbers[as_before], numbers[rows]])))
    return find_sensor_shares(sets, demand.sensors)


def _change(old: Floats, new: Floats) -> Floats:
    """New flow over old, for one route set."""
    little = max(LITTLE_FLOW * float(old.mean()), TINY)
    change: Floats = (new + little) / (old + little)
    return change


def _middle(changes: list[Floats]) -> Floats:
    """Geometric mean of the middle half of the sets: some set may have no trip through a quiet street."""
    logs = np.sort(np.log(changes), axis=0)
    cut = len(logs) // 4
    middle: Floats = np.exp(logs[cut : len(logs) - cut].mean(axis=0))
    return middle


def newly_cut_off(old: RoadNetwork, new: RoadNetwork) -> NDArray[np.bool_]:
    """[N] nodes in the largest strongly connected component of the old network but not of the new one."""

    def largest(network: RoadNetwork) -> NDArray[np.bool_]:
        _, part = connected_components(road_matrix(network), directed=True, connection="strong")
        found: NDArray[np.bool_] = part == np.bincount(part).argmax()
        return found

    return largest(old) & ~largest(new) & new.present


def _open_ends(routes: Routes, graph: LineGraph, closed: NDArray[np.bool_]) -> Routes:
    """Move trip ends on a closed road to an open road at the same intersection."""
    if not closed.any():
        return routes
    origin = np.arange(graph.num_roads)
    destination = np.arange(graph.num_roads)
    key = graph.road_key
    for e in np.flatnonzero(closed).tolist():
        origin[e] = _open_road(
            key, closed, e, (graph.receivers == graph.receivers[e], graph.senders == graph.receivers[e])
        )
        destination[e] = _open_road(
            key, closed, e, (graph.senders == graph.senders[e], graph.receivers == graph.senders[e])
        )
    return replace(
        routes,
        origin=origin[routes.origin].astype(np.int32),
        destination=destination[routes.destination].astype(np.int32),
    )


def _open_road(
    key: NDArray[np.uint64], closed: NDArray[np.bool_], road: int, places: tuple[NDArray[np.bool_], ...]
) -> int:
    for place in places:
        found = np.flatnonzero(place & ~closed)
        if len(found):
            return int(found[key[found].argmin()])
    return road
