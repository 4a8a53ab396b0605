"""Who drives where: routes by travel time under congestion, for all trips between zones and nodes at once.

Three rounds of successive averages: each third of the drivers takes the paths that are shortest after the delays that
those before them made. Paths are trees from and to zones, so that a tree carries all trips of its zone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import depth_first_order, dijkstra

from frigate.simulate.streets import Floats, Ints, Town

# Letters, beside N and E: P flows (a purpose, outward or homeward), Z zones.
ROUNDS = 3  # of assignment: each is a third of the drivers, who see the delays that those before them made
CAPACITY_PER_LANE = 800.0  # vehicles an hour through a green that others share
JUNCTION_S = np.array([8.0, 7.0, 7.0, 7.0, 8.0])  # lost at the end of a road, by class


@dataclass(frozen=True)
class Demand:
    """Who goes where: trips between zones and nodes, each flow summing to 1 over both tables."""

    roots: Ints  # [Z] the node that stands for a zone
    to_root: Floats  # [P,Z,N] from a node to a zone
    from_root: Floats  # [P,Z,N] from a zone to a node


@dataclass(frozen=True)
class Loading:
    """Where one trip of each flow passes, on average over the drivers, and the traffic that made it so."""

    passages: Floats  # [P,Z,N] trips through a node, by the zone they start or end at
    elapsed_s: Floats  # [N] mean time since departure
    road_flow: Floats  # [E] vehicles an hour; 0 on closed roads


@dataclass(frozen=True)
class AssignedRoads:
    """What assignment needs of the roads, sorted by sender and receiver."""

    num_nodes: int
    senders: Ints  # [E]
    receivers: Ints  # [E]
    free_s: Floats  # [E]
    capacity: Floats  # [E] vehicles an hour
    perceived: Floats  # [ROUNDS,E] how drivers differ in what they think of a road

    def matrix(self, cost: Floats, open_: NDArray[np.bool_]) -> csr_array:
        ends = (self.senders[open_], self.receivers[open_])
        return csr_array((cost[open_], ends), shape=(self.num_nodes, self.num_nodes))


def assigned_roads(rng: np.random.Generator, town: Town) -> AssignedRoads:
    e = town.network.edges
    order = np.lexsort((e.receivers, e.senders))
    e = e.take(order)
    lost_s = JUNCTION_S[town.node_class[e.receivers]]
    free_s = e.length_m / (e.speed_kph / 3.6) + lost_s
    green = np.select([e.road_class == "trunk", e.road_class == "residential"], [1.3, 0.5], 1.0)
    capacity = e.lanes * CAPACITY_PER_LANE * green
    perceived = rng.lognormal(0, 0.12, (ROUNDS, len(e)))
    return AssignedRoads(town.network.num_nodes, e.senders, e.receivers, free_s, capacity, perceived)


def climb(before: NDArray[np.int32], load: Floats) -> Floats:
    """Sums over subtrees: `load` [Z,N,C] of every node and all nodes behind it, in Z trees of predecessors [Z,N].

    Depth first, a subtree is a run of nodes, and its sum the difference of two running sums.
    """
    Z, N, C = load.shape
    top = Z * N  # one more node, above all roots
    up = np.where(before < 0, top, before + N * np.arange(Z)[:, None]).ravel()
    forest = csr_array((np.ones(top), (up, np.arange(top))), shape=(top + 1, top + 1))
    order = depth_first_order(forest, top, return_predecessors=False)[1:]
    size, up = np.ones(top + 1), np.append(up, top)
    while (up < top).any():  # pointer doubling: after k rounds a node has counted all within 2^k roads
        size[:top] += np.bincount(up, size, top + 1)[:top]
        up = up[up]
    running = np.zeros((top + 1, C))
    np.cumsum(load.reshape(top, C)[order], axis=0, out=running[1:])
    first = np.argsort(order)
    return (running[first + size[:top].astype(np.int64)] - running[first]).reshape(Z, N, C)


def assign(roads: AssignedRoads, demand: Demand, open_: NDArray[np.bool_], per_hour: Floats) -> Loading:
    """Routes by travel time under congestion: successive averages over rounds of drivers who differ in taste."""
    Z, N = len(demand.roots), roads.num_nodes
    flow = np.zeros(len(open_))
    passages = np.zeros((Z, N, len(per_hour)))
    moment = np.zeros(N)
    key = roads.senders * N + roads.receivers
    for done in range(ROUNDS):
        delay = 1 + 0.8 * np.minimum(flow / max(done, 1) / roads.capacity, 1.5) ** 4  # BPR curve
        graph = roads.matrix(roads.free_s * delay * roads.perceived[done], open_)
        for table, directed in ((demand.from_root, graph), (demand.to_root, graph.T.tocsr())):
            time_s, before = dijkstra(directed, indices=demand.roots, return_predecessors=True)
            load = table.transpose(1, 2, 0)
            trips_s = (load @ per_hour) * time_s
            through = climb(before, np.concatenate([load, trips_s[..., None]], -1))
            passages += through[..., :-1]
            by_node = through[..., :-1] @ per_hour  # [Z,N]
            outbound = table is demand.from_root
            moment += (by_node * time_s if outbound else through[..., -1] - by_node * time_s).sum(0)
            z, n = np.nonzero(before >= 0)
            p = before[z, n].astype(np.int64)
            road = np.searchsorted(key, p * N + n if outbound else n * N + p)
            flow += np.bincount(road, by_node[z, n], len(flow))
    total = passages.sum(0) @ per_hour
    elapsed_s = moment / np.maximum(total, 1e-12)
    return Loading(passages.transpose(2, 0, 1) / ROUNDS, elapsed_s, flow / ROUNDS)
