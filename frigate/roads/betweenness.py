"""Betweenness: how many shortest paths pass each node, exact for small networks or short paths, else estimated.

Brandes's algorithm, compiled by numba, which is imported only when needed. networkit 11.2 is not an option: its
ApproxBetweenness and KadabraBetweenness refuse directed graphs, its EstimateBetweenness is biased on them (it weights a
pair as if the way back existed too), and its exact Betweenness is several times slower.
N nodes, E roads.
"""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from frigate.city.network import RoadNetwork
from frigate.errors import FrigateError

# The time of a search is proportional to the network, and an exact count searches from every node: a few seconds on one
# core at this size, a hundred times longer at ten times the size. Beyond it, the number of searches is fixed.
EXACT_NODES = 5_000
SAMPLES = 512  # searches for an estimate: 128 in each direction for each of two samples
SAMPLE_SEED = 0

CHUNKS = 16  # of sources; fixed, so that sums do not depend on the number of threads
LIFT = 2.0**512
LARGEST = 2**63 - 1  # of int64


@dataclass(frozen=True)
class Passing:
    """Number of ordered pairs whose shortest path passes each node; equal paths share a pair."""

    count: NDArray[np.float64]  # [N]
    samples: NDArray[np.float64] | None = None  # [2,N] independent estimates, averaged in `count`; None: exact


def whole_betweenness(network: RoadNetwork, cost: NDArray[np.float64], *, exact_nodes: int = EXACT_NODES) -> Passing:
    """Betweenness over all pairs: exact up to `exact_nodes`, else from fixed samples. Costs [E] are integers > 0."""
    nodes, number, forward = _along_a_curve(network, cost)
    if network.num_nodes <= exact_nodes:
        return Passing(_search(forward, nodes)[number])
    rng = np.random.default_rng(SAMPLE_SEED)
    samples = []
    for _ in range(2):
        found = np.zeros(network.num_nodes)
        for roads in (forward, forward.T.tocsr()):
            found += _search(roads, _spread_out(nodes, SAMPLES // 4, rng), weighted=True)
        samples.append(found[number] * (len(nodes) / (SAMPLES // 4)))
    return Passing((samples[0] + samples[1]) / 2, np.stack(samples))


def local_betweenness(network: RoadNetwork, cost: NDArray[np.float64], *, cutoff: float) -> NDArray[np.float64]:
    """Exact betweenness [N] over pairs at most `cutoff` apart. Time grows linearly with the number of nodes."""
    nodes, number, roads = _along_a_curve(network, cost)
    return _search(roads, nodes, cutoff=int(cutoff))[number]


# Nodes in the order of a curve through the plane


def _along_a_curve(
    network: RoadNetwork, cost: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], csr_array[np.int64]]:
    """The present nodes in Z-order of their places, the rank of each row in that order, and the roads between them.

    Nearby nodes are close in memory, and every k-th node is a fair sample. The order depends only on places and ids, so
    neither the order of the node table nor a closed road changes the sample.
    """
    code = _every_other_bit(network.lon) | (_every_other_bit(network.lat) << np.uint64(1))
    order = np.lexsort((network.node_ids, code))
    number = np.argsort(order)
    ends = (number[network.senders], number[network.receivers])
    roads = csr_array((cost.astype(np.int64), ends), shape=(network.num_nodes, network.num_nodes))
    return np.flatnonzero(network.present[order]), number, roads


def _every_other_bit(degrees: NDArray[np.float64]) -> NDArray[np.uint64]:
    known = np.nan_to_num(degrees)
    if len(known) == 0:
        return np.zeros(0, np.uint64)
    from_0_to_1 = (known - known.min()) / max(float(np.ptp(known)), 1e-9)
    bits: NDArray[np.uint64] = (from_0_to_1 * 0xFFFF).astype(np.uint64)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        bits = (bits | (bits << np.uint64(shift))) & np.uint64(mask)
    return bits


def _spread_out(nodes: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """One node from each of `count` stretches of the curve. All nodes are equally likely."""
    at = (np.arange(count) + rng.random(count)) * (len(nodes) / count)
    return nodes[np.minimum(at.astype(np.int64), len(nodes) - 1)]


# Searches


def _search(
    roads: csr_array[np.int64], sources: NDArray[np.int64], *, cutoff: int = LARGEST, weighted: bool = False
) -> NDArray[np.float64]:
    """Sum over the sources of what passes each node [N]. Searches run in threads and are added in order of sources."""
    count_passing = _compiled()
    starts = roads.indptr.astype(np.int64)
    heads = roads.indices.astype(np.int32)

    def some(chunk: NDArray[np.int64]) -> NDArray[np.float64]:
        passing: NDArray[np.float64] = count_passing(starts, heads, roads.data, chunk, cutoff, weighted)
        return passing

    total = np.zeros(roads.shape[0])
    if len(heads) == 0 or len(sources) == 0:
        return total
    # Python threads, because numba's own cannot be entered from two places at once.
    with ThreadPoolExecutor(threads()) as pool:
        for passing in pool.map(some, np.array_split(sources, min(CHUNKS, len(sources)))):
            total += passing
    return total


def threads() -> int:
    """Number of threads, as in numba: the cores of this process, or NUMBA_NUM_THREADS."""
    return int(needed("numba").config.NUMBA_NUM_THREADS)


@cache
def _compiled() -> Any:
    return needed("numba").njit(cache=True, nogil=True)(_count_passing)


def _count_passing(
    starts: NDArray[np.int64],
    heads: NDArray[np.int32],
    cost: NDArray[np.int64],
    sources: NDArray[np.int64],
    cutoff: int,
    weighted: bool,
) -> NDArray[np.float64]:
    """Brandes's algorithm from these sources, each search cut off. Touches only what a search reaches.

    If weighted, a pair (s, t) counts d(s, v) / d(s, t) at v. Backward searches add the rest, so that a pair counts once
    in total and every source contributes to every node: with plain counting, only sources near a side street would see
    it (Geisberger, Sanders, Schultes 2008, for directed graphs).
    """
    N = len(starts) - 1
    passing = np.zeros(N)
    far = np.iinfo(np.int64).max
    distance = np.full(N, far)
    paths = np.zeros(N)  # shortest paths from the source number paths * LIFT ** lift: a grid has very many
    lift = np.zeros(N, np.int32)
    each = np.zeros(N)  # Brandes's dependency on a node and all beyond it, per path to it
    reached = np.empty(N, np.int32)
    heap = np.empty(N, np.int32)  # each node has four children
    place = np.full(N, -1, np.int32)  # position in the heap
    for source in sources:
        heap[0] = source
        size = 1
        count = 0
        distance[source] = 0
        paths[source] = 1.0
        lift[source] = 0
        while size > 0:
            u = heap[0]
            reached[count] = u
            count += 1
            size -= 1
            if size > 0:  # move the last entry to the top and sift it down
                last = heap[size]
                i = 0
                while 4 * i + 1 < size:
                    least = 4 * i + 1
                    for j in range(least + 1, min(least + 4, size)):
                        if distance[heap[j]] < distance[heap[least]]:
                            least = j
                    if distance[heap[least]] >= distance[last]:
                        break
                    heap[i] = heap[least]
                    place[heap[i]] = i
                    i = least
                heap[i] = last
                place[last] = i
            if paths[u] >= LIFT:
                paths[u] /= LIFT
                lift[u] += 1
            for e in range(starts[u], starts[u + 1]):
                v = heads[e]
                there = distance[u] + cost[e]
                if there > cutoff or there > distance[v]:
                    continue
                if there == distance[v]:
                    if lift[u] == lift[v]:
                        paths[v] += paths[u]
                    elif lift[u] < lift[v]:
                        paths[v] += paths[u] * LIFT ** (lift[u] - lift[v])
                    else:
                        paths[v] = paths[u] + paths[v] * LIFT ** (lift[v] - lift[u])
                        lift[v] = lift[u]
                    continue
                i = place[v]
                if i < 0:
                    i = size
                    size += 1
                distance[v] = there
                paths[v] = paths[u]
                lift[v] = lift[u]
                while i > 0 and distance[heap[(i - 1) // 4]] > there:
                    heap[i] = heap[(i - 1) // 4]
                    place[heap[i]] = i
                    i = (i - 1) // 4
                heap[i] = v
                place[v] = i
        for k in range(count - 1, 0, -1):  # farthest first; without the source, which is an end of all paths
            u = reached[k]
            beyond = 0.0
            for e in range(starts[u], starts[u + 1]):
                v = heads[e]
                if distance[v] == distance[u] + cost[e]:
                    beyond += each[v] if lift[u] == lift[v] else each[v] * LIFT ** (lift[u] - lift[v])
            beyond *= paths[u]
            if weighted:
                passing[u] += beyond * distance[u]
                each[u] = (1.0 / distance[u] + beyond) / paths[u]
            else:
                passing[u] += beyond
                each[u] = (1.0 + beyond) / paths[u]
        for k in range(count):
            distance[reached[k]] = far
            place[reached[k]] = -1
    return passing


def needed(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise FrigateError(
            f"{package} is not installed here, and road features need it. Run `frigate check CITY` "
            "where it is installed: that stores them in CITY/cache, which this machine can open."
        ) from error
