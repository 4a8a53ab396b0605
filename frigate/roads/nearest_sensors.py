"""The sensors nearest to each node by road, and how many roads away they are. N nodes, M nearest sensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from frigate.city.network import RoadNetwork
from frigate.roads.areas import split_into_areas
from frigate.roads.positions import road_matrix

CHUNK_CELLS = 4_000_000  # distances in memory at a time: 32 MB
FIRST_RADII = np.array([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1])  # of the cutoff: a short search is enough among dense sensors
FAR = 1.5  # an area without sensors is this many times farther from one than 99 % of nodes would be
SEARCHED_TOGETHER = 128  # sensors in one area

# Roads by the node they leave, and by the node they reach
_Directions: TypeAlias = "tuple[csr_array[np.float64], csr_array[np.float64]]"


def hops_to(network: RoadNetwork, sensors: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[N] roads between each node and its nearest sensor, ignoring directions; -1 if none is connected."""
    rows = np.flatnonzero(sensors & network.present)
    if len(rows) == 0:
        return np.full(network.num_nodes, -1)
    hops = dijkstra(road_matrix(network), directed=False, indices=rows, unweighted=True, min_only=True)
    return np.where(np.isfinite(hops), hops, -1).astype(np.int64)


def uncovered_share(network: RoadNetwork, sensors: NDArray[np.bool_], rng: np.random.Generator) -> float:
    """The share of the nodes without a sensor that are in an area without any.

    Such a node is at least `FAR` times as far from a sensor, by road in either direction, as 99 % of nodes would be if
    the same number of sensors were placed at random. A node that is not connected to any sensor does not count.
    """
    present = np.flatnonzero(network.present)
    rows = np.flatnonzero(sensors & network.present)
    others = np.setdiff1d(present, rows)
    if len(rows) == 0 or len(others) == 0:
        return 0.0
    anywhere = rng.choice(present, len(rows), replace=False)
    roads = road_matrix(network)
    usual_m, away_m = (dijkstra(roads, directed=False, indices=at, min_only=True) for at in (anywhere, rows))
    usual_m = usual_m[np.setdiff1d(present, anywhere)]
    usual_m = usual_m[np.isfinite(usual_m)]
    if len(usual_m) == 0:
        return 0.0
    away_m = away_m[others]
    return float((np.isfinite(away_m) & (away_m > FAR * np.percentile(usual_m, 99))).mean())


def sensors_around(network: RoadNetwork, sensors: NDArray[np.bool_], centre: int, share: float) -> NDArray[np.bool_]:
    """[N] the given share of the sensors: those nearest to a node, by road in either direction."""
    rows = np.flatnonzero(sensors)
    away_m = dijkstra(road_matrix(network), directed=False, indices=np.array([centre]))[0, rows]
    around = np.zeros(len(sensors), bool)
    around[rows[np.argsort(away_m, kind="stable")[: round(share * len(rows))]]] = True
    return around


def nearest_sensors(
    network: RoadNetwork, sensors: NDArray[np.bool_], *, count: int = 32, cutoff_m: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The `count` sensors nearest to each node by road, in the nearer of the two directions, excluding itself.

    Returns rows of sensors [N, M], padded with -1, and distances [N, M], padded with infinity, nearest first.
    Ties are broken by lon, lat and id, so the result does not depend on the order of nodes. Searches start short and
    get longer only around nodes that lack sensors: time grows with N x M, not with N times the number of sensors.
    """
    N = network.num_nodes
    rows = np.flatnonzero(sensors & network.present)
    rows = rows[np.lexsort((network.node_ids[rows], network.lat[rows], network.lon[rows]))]
    rank = np.full((N, count), len(rows), np.int32)  # index into rows; len(rows): none
    metres = np.full((N, count), np.inf)
    both = road_matrix(network), road_matrix(network, backward=True)
    lacks = np.full(N, count > 0)
    for radius_m in cutoff_m * FIRST_RADII:
        if not lacks.any():
            break
        rank[lacks] = len(rows)
        metres[lacks] = np.inf
        near = _within(both, np.flatnonzero(lacks), radius_m)[rows]
        for some, at, away_m in _searches(network, both, rows, np.flatnonzero(near), radius_m):
            lacking = lacks[at]
            local, which = np.nonzero(away_m[lacking] <= np.minimum(metres[at[lacking], -1:], radius_m))
            _merge_nearest(rank, metres, at[lacking][local], some[which], away_m[lacking][local, which])
        lacks &= np.isinf(metres[:, -1])
    return np.concatenate([rows, [-1]])[rank], metres.astype(np.float32)


def _within(both: _Directions, sources: NDArray[np.int64], radius_m: float) -> NDArray[np.bool_]:
    """[N] the nodes within a distance of any source, in either direction."""
    away = [dijkstra(roads, indices=sources, min_only=True, limit=radius_m) for roads in both]
    return np.isfinite(np.minimum(*away))


def _searches(
    network: RoadNetwork, both: _Directions, rows: NDArray[np.int64], some: NDArray[np.int64], radius_m: float
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
    """Sensors b, nodes n and the distances between them [n, b], infinite from a sensor to itself.

    A search initialises memory for its whole network, so sensors of one area are searched on the roads of that area
    only. That loses nothing: every node on a path is itself within the radius.
    """
    todo = [(both, np.arange(network.num_nodes), some)] if len(some) else []
    while todo:
        (forward, backward), at, some = todo.pop()
        local = np.searchsorted(at, rows[some])
        if len(some) > SEARCHED_TOGETHER:
            for area in split_into_areas(network.lon[rows[some]], network.lat[rows[some]], 8):
                keep = np.flatnonzero(_within((forward, backward), local[area], radius_m))
                smaller = forward[keep][:, keep], backward[keep][:, keep]
                todo.append((smaller, at[keep], some[area]))
            continue
        chunk = max(1, CHUNK_CELLS // len(at))
        for start in range(0, len(some), chunk):
            sources = local[start : start + chunk]
            away_m = dijkstra(forward, indices=sources, limit=radius_m)
            away_m = np.minimum(away_m, dijkstra(backward, indices=sources, limit=radius_m)).T
            away_m[sources, np.arange(len(sources))] = np.inf
            yield some[start : start + chunk], at, away_m


def _merge_nearest(
    rank: NDArray[np.int32],
    metres: NDArray[np.float64],
    node: NDArray[np.int64],
    sensor: NDArray[np.int64],
    distance: NDArray[np.float64],
) -> None:
    """Merge new triples (node, sensor, distance) into the best so far, in place."""
    touched = np.unique(node)
    if len(touched) == 0:
        return
    M = rank.shape[1]
    nodes = np.concatenate([np.repeat(touched, M), node])
    sensors = np.concatenate([rank[touched].ravel(), sensor])
    distances = np.concatenate([metres[touched].ravel(), distance])
    order = np.lexsort((sensors, distances, nodes))
    first = np.searchsorted(nodes[order], touched)
    best = order[first[:, None] + np.arange(M)]  # each node here has at least its M old entries
    rank[touched] = sensors[best]
    metres[touched] = distances[best]
