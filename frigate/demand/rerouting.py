"""Where traffic goes when roads close: the same trips searched again on the roads that are left.

Trip numbers stay as they were calibrated, and so do the drivers' travel times; only the routes change. What comes of it
is a factor for each node and road, new flow over old, by which any forecast of the open network is multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from frigate.demand.calibration import Floats, route_set
from frigate.demand.estimate import TINY, Demand, set_searches, set_seed
from frigate.demand.route_search import LineGraph, Routes, search_again

LITTLE_FLOW = 0.05  # vehicles a step, added to both flows: a node that nobody passed cannot change a hundredfold


@dataclass(frozen=True)
class Rerouted:
    """Flows with some roads closed, relative to those with all open. K kinds of day and hours."""

    node_change: NDArray[np.float32]  # [K,N] factors
    road_change: NDArray[np.float32]  # [K,E] 0 on a closed road
    lost: NDArray[np.float32]  # [K] share of the vehicles that can no longer get to where they were going
    cut_off: NDArray[np.bool_]  # [N] nodes that no trip can pass any more although trips did


def close_roads(graph: LineGraph, closed: NDArray[np.bool_]) -> LineGraph:
    """The line graph without the turns into and out of these roads [E]. Roads keep their numbers."""
    leaving = np.repeat(np.arange(graph.num_roads), np.diff(graph.turn_start))
    open_ = ~(closed[leaving] | closed[graph.turn_into])
    return replace(
        graph,
        turn_start=np.concatenate([[0], np.cumsum(np.bincount(leaving[open_], minlength=graph.num_roads))]),
        turn_into=graph.turn_into[open_],
        turn_angle=graph.turn_angle[open_],
        u_turn=graph.u_turn[open_],
    )


def reroute(demand: Demand, closed: NDArray[np.bool_], bins: NDArray[np.int64] | None = None) -> Rerouted:
    """What closing these roads [E] does to the flow of every node and road.

    Only trips that used a closed road are searched again: the fastest route of any other is as it was.

    Parameters
    ----------
    demand
        Of the network with all roads open.
    closed
        [E] the roads to close.
    bins
        The kinds of day and hours to look at (default: all).
    """
    graph = close_roads(demand.graph, closed)
    K, S = len(demand.node_flow) if bins is None else len(bins), len(demand.sets)
    node, road = np.zeros((K, graph.num_nodes)), np.zeros((K, graph.num_roads))
    lost, made = np.zeros(K), np.zeros(K)
    before, after = np.zeros(graph.num_nodes), np.zeros(graph.num_nodes)
    for k, (trips, search) in enumerate(zip(demand.sets, set_searches(demand.settings), strict=True)):
        numbers = demand.trips(k, bins)
        rows = np.flatnonzero(trips.through_road[:, np.flatnonzero(closed)].sum(axis=1))
        moved = _open_ends(trips.routes.take(rows), graph, closed)
        other = route_set(graph, search_again(graph, search, moved, seed=set_seed(demand, k)))
        of_rows = numbers[rows]
        flow, new = _flows(trips.through_node, other.through_node, numbers, rows)
        node += _log_change(flow, new) / S
        before, after = before + flow.sum(1), after + new.sum(1)
        road += _log_change(*_flows(trips.through_road, other.through_road, numbers, rows)) / S
        lost += of_rows[np.diff(other.routes.start) == 0].sum(0)
        made += numbers.sum(0)
    road_change = np.exp(road)
    road_change[:, closed] = 0
    return Rerouted(
        np.exp(node).astype(np.float32),
        road_change.astype(np.float32),
        (lost / np.maximum(made, TINY)).astype(np.float32),
        (before > 0) & (after <= 1e-6 * before),
    )


def _flows(through: csr_array, other: csr_array, numbers: Floats, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """[X,K] the flow as it was, and with these rows of trips on their other routes."""
    flow = through.T @ numbers
    return flow, np.maximum(flow + other.T @ numbers[rows] - through[rows].T @ numbers[rows], 0)


def _log_change(flow: Floats, new: Floats) -> Floats:
    """[K,X] logarithm of new flow over old."""
    change: Floats = np.log((new + LITTLE_FLOW) / (flow + LITTLE_FLOW)).T
    return change


def _open_ends(routes: Routes, graph: LineGraph, closed: NDArray[np.bool_]) -> Routes:
    """Trips that begin or end on a closed road do so on the nearest open one: out of, or into, the same crossing."""
    if not closed.any():
        return routes
    origin, destination = np.arange(graph.num_roads), np.arange(graph.num_roads)
    for e in np.flatnonzero(closed).tolist():
        origin[e] = _open_road(
            graph, closed, e, (graph.receivers == graph.receivers[e], graph.senders == graph.receivers[e])
        )
        destination[e] = _open_road(
            graph, closed, e, (graph.senders == graph.senders[e], graph.receivers == graph.senders[e])
        )
    return replace(
        routes,
        origin=origin[routes.origin].astype(np.int32),
        destination=destination[routes.destination].astype(np.int32),
    )


def _open_road(graph: LineGraph, closed: NDArray[np.bool_], road: int, places: tuple[NDArray[np.bool_], ...]) -> int:
    for place in places:
        found = np.flatnonzero(place & ~closed)
        if len(found):
            return int(found[0])
    return road
