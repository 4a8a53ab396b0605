"""Traffic assignment: routes by travel time under congestion, for all trips between zones and nodes at once.

Successive averages in three rounds: each third of the drivers takes the shortest paths under the delays caused by the
previous thirds. The paths from (or to) a zone form a tree, which carries all trips of the zone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import depth_first_order, dijkstra

from frigate.simulate.streets import Floats, Ints, Town

# Besides N and E: P flows (a purpose, outward or homeward), Z zones.
ROUNDS = 3
CAPACITY_PER_LANE = 800.0  # vehicles per hour; signals are shared with other directions
JUNCTION_S = np.array([8.0, 7.0, 7.0, 7.0, 8.0])  # delay at the end of a road, by class


@dataclass(frozen=True)
class TripShares:
    """Trips between zones and nodes; each flow sums to 1 over both tables."""

    roots: Ints  # [Z] the node that represents the zone
    to_root: Floats  # [P,Z,N] from a node to a zone
    from_root: Floats  # [P,Z,N] from a zone to a node


@dataclass(frozen=True)
class Loading:
    """The route of an average trip of each flow, and the traffic on the roads."""

    passages: Floats  # [P,Z,N] trips through a node, by the zone they start or end at
    elapsed_s: Floats  # [N] mean time since departure
    road_flow: Floats  # [E] vehicles per hour; 0 on closed roads
    road_passages: Floats  # [P,E] trips along a road


@dataclass(frozen=True)
class AssignedRoads:
    """What assignment needs to know about the roads, sorted by sender and receiver."""

    num_nodes: int
    senders: Ints  # [E]
    receivers: Ints  # [E]
    free_s: Floats  # [E]
    capacity: Floats  # [E] vehicles per hour
    perceived: Floats  # [ROUNDS,E] factors on the travel times: drivers perceive them differently

    def matrix(self, cost: Floats, open_: NDArray[np.bool_]) -> csr_array:
        ends = (self.senders[open_], self.receivers[open_])
        return csr_array((cost[open_], ends), shape=(self.num_nodes, self.num_nodes))


def assigned_roads(rng: np.random.Generator, town: Town) -> AssignedRoads:
    """The roads of a town, with random differences in how drivers perceive them."""
    e = town.network.edges
    e = e.take(np.lexsort((e.receivers, e.senders)))
    free_s = e.length_m / (e.speed_kph / 3.6) + JUNCTION_S[town.node_class[e.receivers]]
    green = np.select([e.road_class == "trunk", e.road_class == "residential"], [1.3, 0.5], 1.0)
    capacity = e.lanes * CAPACITY_PER_LANE * green
    perceived = rng.lognormal(0, 0.12, (ROUNDS, len(e)))
    return AssignedRoads(town.network.num_nodes, e.senders, e.receivers, free_s, capacity, perceived)


def subtree_sums(before: NDArray[np.int32], load: Floats) -> Floats:
    """The sum of `load` [Z,N,C] over each node and all nodes below it, in Z trees given by predecessors [Z,N].

    In depth-first order, a subtree is a range of nodes, so its sum is the difference of two cumulative sums.
    """
    Z, N, C = load.shape
    top = Z * N  # a node above all roots
    up = np.where(before < 0, top, before + N * np.arange(Z)[:, None]).ravel()
    forest = csr_array((np.ones(top), (up, np.arange(top))), shape=(top + 1, top + 1))
    order = depth_first_order(forest, top, return_predecessors=False)[1:]
    size = np.ones(top + 1)
    up = np.append(up, top)
    while (up < top).any():  # pointer doubling: after k rounds, a node has counted all nodes within 2^k roads
        size[:top] += np.bincount(up, size, top + 1)[:top]
        up = up[up]
    running = np.zeros((top + 1, C))
    np.cumsum(load.reshape(top, C)[order], axis=0, out=running[1:])
    first = np.argsort(order)
    return (running[first + size[:top].astype(np.int64)] - running[first]).reshape(Z, N, C)


def assign(roads: AssignedRoads, demand: TripShares, open_: NDArray[np.bool_], per_hour: Floats) -> Loading:
    """Assign trips to routes on the open roads, given `per_hour` [P] trips per hour of each flow."""
    Z = len(demand.roots)
    N = roads.num_nodes
    flow = np.zeros(len(open_))
    passages = np.zeros((Z, N, len(per_hour)))
    road_passages = np.zeros((len(per_hour), len(open_)))
    vehicle_s = np.zeros(N)  # seconds since departure, summed over vehicles
    key = roads.senders * N + roads.receivers
    for done in range(ROUNDS):
        delay = 1 + 0.8 * np.minimum(flow / max(done, 1) / roads.capacity, 1.5) ** 4  # BPR curve
        graph = roads.matrix(roads.free_s * delay * roads.perceived[done], open_)
        for table, directed in ((demand.from_root, graph), (demand.to_root, graph.T.tocsr())):
            time_s, before = dijkstra(directed, indices=demand.roots, return_predecessors=True)
            load = table.transpose(1, 2, 0)
            trips_s = (load @ per_hour) * time_s
            through = subtree_sums(before, np.concatenate([load, trips_s[..., None]], -1))
            passages += through[..., :-1]
            by_node = through[..., :-1] @ per_hour  # [Z,N]
            outbound = table is demand.from_root
            vehicle_s += (by_node * time_s if outbound else through[..., -1] - by_node * time_s).sum(0)
            z, n = np.nonzero(before >= 0)
            p = before[z, n].astype(np.int64)
            road = np.searchsorted(key, p * N + n if outbound else n * N + p)
            flow += np.bincount(road, by_node[z, n], len(flow))
            road_passages += [np.bincount(road, through[z, n, k], len(flow)) for k in range(len(per_hour))]
    total = passages.sum(0) @ per_hour
    elapsed_s = vehicle_s / np.maximum(total, 1e-12)
    return Loading(passages.transpose(2, 0, 1) / ROUNDS, elapsed_s, flow / ROUNDS, road_passages / ROUNDS)
