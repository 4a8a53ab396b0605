"""Rerouting when roads close or open: the same trips are routed again on the changed network.

Calibrated trip flows and drivers' travel times stay fixed; only the routes change. The result is a factor for each
node, new flow over old, that multiplies any forecast made for the unchanged network. Detours depend only on the map,
so they are computed once for all demands of a network. How far drivers really answer as the trips do is the city's
own (`ClosureResponse`): an exponent of the factor.

C demands, S route sets, N nodes, E roads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import vstack
from scipy.sparse.csgraph import connected_components

from frigate.city.network import RoadNetwork, joined_nodes, shut_nodes
from frigate.demand.calibration import Floats, RouteSet, SensorView, route_set
from frigate.demand.count_profiles import TINY
from frigate.demand.estimate import Demand
from frigate.demand.route_search import Routes, search_again
from frigate.demand.sensor_shares import SensorShares, find_sensor_shares
from frigate.demand.settings import DemandSettings, route_seed, set_searches
from frigate.roads.line_graph import LineGraph, line_graph
from frigate.roads.positions import road_matrix

LITTLE_FLOW = 0.05  # of the mean flow, added to both flows: keeps the ratio bounded at nodes with almost no flow
QUIET = 0.1  # of the mean flow: on quieter streets, diverted vehicles are added instead of multiplying a small flow


@dataclass(frozen=True)
class Detours:
    """The trips that were rerouted on another network with the same nodes."""

    graph: LineGraph  # all roads, the old ones first
    closed: NDArray[np.bool_]  # [E] which old roads are closed
    rows: tuple[NDArray[np.int64], ...]  # of the first route sets, the trips that were rerouted
    routes: tuple[RouteSet, ...]  # their new routes
    shut: NDArray[np.bool_]  # [N] nodes that lost all roads into them, or all roads out
    connected: NDArray[np.bool_]  # [N] nodes that had no road at all, and have some now


@dataclass(frozen=True)
class Rerouted:
    """Flows on the changed network, relative to those on the old one."""

    node_change: NDArray[np.float32]  # [N] new flow / old flow; 0 where nobody can pass any more
    road_change: NDArray[np.float32]  # [E] the same for the old roads; 0 on closed ones
    lost: float  # share of vehicles that can no longer reach their destination
    node_spread: NDArray[np.float32]  # [N] uncertainty of the change: standard deviation of its log over the route sets
    road_spread: NDArray[np.float32]  # [E]


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
    rows = []
    routes = []
    searches = zip(sets, set_searches(settings), strict=True)
    for k, (trips, search) in enumerate(islice(searches, settings.detour_sets)):
        used = np.asarray(trips.through_road[:, np.flatnonzero(closed)].sum(axis=1)).ravel() > 0
        some = np.flatnonzero(used) if len(more) == 0 else np.arange(len(trips.routes))
        moved = _open_ends(trips.routes.take(some), graph, there)
        rows.append(some)
        routes.append(route_set(graph, search_again(graph, search, moved, seed=route_seed(seed, k))))
    connected = ~joined_nodes(old) & joined_nodes(new)
    return Detours(graph, closed, tuple(rows), tuple(routes), shut_nodes(old, new), connected)


def reroute(demands: Sequence[Demand], detours: Detours) -> list[Rerouted]:
    """The effect of the detours on the weekly mean flow at every node and road, for demands of the same trips.

    The change of roads, and how uncertain the changes are, is that of the first demand for all.
    """
    first = demands[0]
    E = first.graph.num_roads
    sets = list(zip(first.sets, detours.rows, detours.routes, strict=False))
    before = np.stack([demand.set_flows[: len(sets)] for demand in demands], axis=2)  # [S,N,C]
    after = np.empty_like(before)
    road = []
    lost = np.zeros(len(demands))
    made = np.zeros(len(demands))
    for k, (trips, rows, other) in enumerate(sets):
        numbers = np.stack([demand.numbers[k][rows] for demand in demands], axis=1)  # [R,C]
        moved = other.through_node.T @ numbers - trips.through_node[rows].T @ numbers
        after[k] = np.maximum(before[k] + moved, 0)
        of_road = trips.through_road.T @ first.numbers[k]
        some = numbers[:, 0]
        new_of_road = of_road + (other.through_road.T @ some)[:E] - trips.through_road[rows].T @ some
        road.append(_change(of_road[:, None], np.maximum(new_of_road, 0)[:, None])[:, 0])
        lost = lost + numbers[np.diff(other.routes.start) == 0].sum(0)
        made = made + [float(demand.numbers[k].sum()) for demand in demands]
    ratios = np.stack([_change(old, new) for old, new in zip(before, after, strict=True)])  # [S,N,C]
    ratio = _middle(ratios)
    moved_vehicles = _middle_half(after - before)
    ratio = _in_quiet_streets(ratio, demands, moved_vehicles)
    ratio_of_road = _middle(np.stack(road))
    if detours.closed.any():  # to new roads all drivers answer
        ratio = first.settings.closures.answer(ratio)
        ratio_of_road = first.settings.closures.answer(ratio_of_road)
    if detours.connected.any():
        # A sensor there has counted on the new roads alone; at other places all traffic is what the new roads bring.
        sensors = np.stack([demand.sensors for demand in demands], axis=1)
        brought = np.where(sensors, 1, np.maximum(moved_vehicles, 0) / _level(demands))
        ratio = np.where(detours.connected[:, None], brought, ratio)
    nobody = detours.shut[:, None] | ((before.sum(0) > 0) & (after.sum(0) <= 1e-6 * before.sum(0)))
    nodes = np.where(nobody, 0, ratio).astype(np.float32)
    roads = np.where(detours.closed, 0, ratio_of_road).astype(np.float32)
    share_lost = lost / np.maximum(made, TINY)
    spreads = [np.log(each).std(0).astype(np.float32) for each in (ratios[:, :, 0], np.stack(road))]
    return [Rerouted(nodes[:, c], roads, float(share_lost[c]), *spreads) for c in range(len(demands))]


def _in_quiet_streets(ratio: Floats, demands: Sequence[Demand], moved: Floats) -> Floats:
    """[N,C] the ratios; in streets with little traffic, those that come of adding the vehicles diverted there."""
    level = _level(demands)
    quiet = np.clip(1 - level / (QUIET * level.mean(axis=0)), 0, 1)
    added = np.maximum(ratio, 1 + moved / level)
    mixed: Floats = np.where(ratio > 1, (1 - quiet) * ratio + quiet * added, ratio)
    return mixed


def _level(demands: Sequence[Demand]) -> Floats:
    """[N,C] the usual mean that a change is put in relation to; a little where nobody passes."""
    return np.stack([np.maximum(each.usual_level, each.least_flow) for each in demands], axis=1).astype(np.float64)


def sensor_shares_on_detours(demand: Demand, detours: Detours) -> SensorShares:
    """The share of each node's vehicles that pass each sensor, after rerouting."""
    sets = []
    for trips, numbers, rows, other in zip(demand.sets, demand.numbers, detours.rows, detours.routes, strict=False):
        as_before = np.ones(len(numbers), bool)
        as_before[rows] = False
        through_node = vstack([trips.through_node[as_before], other.through_node], format="csr")
        view = SensorView.of(through_node, demand.sensors)
        sets.append((through_node, view, np.concatenate([numbers[as_before], numbers[rows]])))
    return find_sensor_shares(sets, demand.sensors)


def _change(old: Floats, new: Floats) -> Floats:
    """[N,C] new flow over old, for one route set."""
    little = np.maximum(LITTLE_FLOW * old.mean(axis=0), TINY)
    change: Floats = (new + little) / (old + little)
    return change


def _middle(changes: Floats) -> Floats:
    """Geometric mean of the middle half of the sets: some set may have no trip through a quiet street."""
    middle: Floats = np.exp(_middle_half(np.log(changes)))
    return middle


def _middle_half(of_sets: Floats) -> Floats:
    """Mean of the middle half along the first axis."""
    ranked = np.sort(of_sets, axis=0)
    cut = len(ranked) // 4
    middle: Floats = ranked[cut : len(ranked) - cut].mean(axis=0)
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
