"""Invent coordinates for nodes that have none, from the lengths of the roads between them. A notice says so."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from frigate.city.network import Edges
from frigate.coordinates import EARTH_RADIUS_M

CENTRE = (-30.0, 30.0)  # lon, lat: in the Atlantic, so that nobody takes the places for real
LANDMARKS = 64
GAP_M = 200.0  # between connected parts
SPREAD_M = 5.0  # separates nodes that have the same distances to all others
INVENTED = "Coordinates invented from road lengths, around 30 N 30 W, as the files have none: maps are not real. Nodes"


def invented_places(num_nodes: int, edges: Edges, *, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Longitude and latitude of each node, chosen so that straight-line distances are close to road distances.

    Landmark multidimensional scaling: a few nodes far from each other are placed by their shortest paths, averaged over
    both directions, and all others by their distances to these. Memory is N x 64, not N x N. Unconnected parts are
    placed side by side.
    """
    rng = np.random.default_rng(seed)
    graph = coo_array((edges.length_m, (edges.senders, edges.receivers)), shape=(num_nodes, num_nodes)).tocsr()
    count, part = connected_components(graph, directed=False)
    xy_m = np.zeros((num_nodes, 2))
    sizes = np.bincount(part, minlength=count)
    parts = np.split(np.argsort(part, kind="stable"), np.cumsum(sizes)[:-1])
    right_m = 0.0
    for rows in sorted(parts, key=len, reverse=True):
        own_m = _part_m(graph[rows][:, rows], rng) if len(rows) > 1 else np.zeros((1, 2))
        xy_m[rows] = own_m - own_m.min(axis=0) + np.array([right_m, 0.0])
        right_m += float(np.ptp(own_m[:, 0])) + GAP_M
    xy_m += rng.uniform(-SPREAD_M, SPREAD_M, xy_m.shape)
    return _degrees(xy_m - (xy_m.min(axis=0) + xy_m.max(axis=0)) / 2)


def _part_m(graph: csr_array, rng: np.random.Generator) -> NDArray[np.float64]:
    """Coordinates in metres of the nodes of one connected part."""
    N = graph.shape[0]
    landmarks = [int(rng.integers(N))]
    far = []
    while len(landmarks) <= min(LANDMARKS, N):
        far.append(dijkstra(graph, directed=False, indices=landmarks[-1:])[0])
        landmarks.append(int(np.argmax(np.min(far, axis=0))))
    squared = np.stack(far) ** 2  # [K,N]
    among = squared[:, landmarks[: len(far)]]
    mean = among.mean(axis=0)
    centred = -0.5 * (among - mean - mean[:, None] + among.mean())
    value, vector = np.linalg.eigh(centred)
    top = np.argsort(value)[::-1][:2]
    scale = np.sqrt(np.maximum(value[top], 1e-9))
    # de Silva and Tenenbaum 2004: the pseudo-inverse of the landmarks' coordinates, applied to the distances to them
    placed: NDArray[np.float64] = (-0.5 * (squared - mean[:, None]).T @ vector[:, top]) / scale
    if value[top[-1]] < 1e-6 * max(value[top[0]], 1e-9):
        placed[:, -1] = 0  # nodes in a line have no second dimension
    return np.pad(placed, ((0, 0), (0, 2 - placed.shape[1])))


def _degrees(xy_m: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    lon, lat = CENTRE
    per_degree_m = np.pi * EARTH_RADIUS_M / 180
    # Clip distances larger than any city, to stay on earth.
    north = np.clip(lat + xy_m[:, 1] / per_degree_m, -80, 80)
    east = np.clip(lon + xy_m[:, 0] / (per_degree_m * np.cos(np.radians(lat))), -179, 179)
    return east, north
