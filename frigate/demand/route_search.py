"""Samples trips as shortest paths from one road to others, with turn costs.

A search is Dijkstra's algorithm on the line graph, whose nodes are roads and whose arcs are turns from one road into
the next. A trip passes the nodes between its roads, so a trip of n roads passes n - 1 nodes. Each search has its own
travel times (each road's time multiplied by a random factor), so that not everyone takes the single fastest route. The
factors come from a hash of (seed, search, road): a trip rerouted after a closure meets the same factors on all other
roads. Ends and factors are drawn by the ids of nodes (`LineGraph.road_key`): the order of the tables does not matter.

Uses numba if installed, otherwise scipy; both find the same trips.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from frigate.calendar import DAY_S
from frigate.config import require_between, require_kinds
from frigate.roads.line_graph import LineGraph

SMALL = 20_000  # roads times searches
MAX_REACHED = 30_000  # a search stops after this many nearest roads, which bounds its cost
SPEED_MPS = 50 / 3.6  # nominal speed on every road for drivers who only mind distance

Found = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]  # last roads, trip lengths in roads, roads


@dataclass(frozen=True)
class SearchSettings:
    """How trips are sampled."""

    turn_s: float = 20.0  # cost of a right-angle turn
    crossing_s: float = 4.0  # cost of passing any intersection
    speed_weight: float = 1.0  # 0: drivers minimise distance; 1: travel time; above 1: they favour fast roads even more
    noise: float = 0.3  # standard deviation of the log of a road's travel time between drivers
    shortness: float = 1.0  # 1: destinations are uniform over the roads reached; above 1, nearer ones are likelier
    fast_ends: float = 0.0  # if above 0, trip ends are drawn in proportion to speed ** fast_ends: many come from afar
    max_trip_s: float = 3600.0  # longest trip
    trips_per_search: int = 24

    def __post_init__(self) -> None:
        require_kinds(self)
        require_between(self, 0, DAY_S, "turn_s", "crossing_s", "max_trip_s")
        require_between(self, 0, 10, "speed_weight", "noise", "fast_ends")
        require_between(self, 1, 10, "shortness")  # draw ** shortness must stay below 1: it indexes a list
        require_between(self, 1, 1000, "trips_per_search")


@dataclass(frozen=True)
class Routes:
    """Trips and the sequence of roads of each."""

    origin: NDArray[np.int32]  # [R] first road of each trip
    destination: NDArray[np.int32]  # [R] last road
    search: NDArray[np.int64]  # [R] the search that found the trip, which determines its travel times
    start: NDArray[np.int64]  # [R+1] the roads of trip r are roads[start[r] .. start[r+1]]
    roads: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.origin)

    def take(self, rows: NDArray[np.int64]) -> Routes:
        """A subset of the trips, in the given order."""
        length = np.diff(self.start)[rows]
        start = np.concatenate([[0], np.cumsum(length)])
        which = np.repeat(self.start[rows] - start[:-1], length) + np.arange(start[-1])
        return Routes(self.origin[rows], self.destination[rows], self.search[rows], start, self.roads[which])


def road_cost_s(graph: LineGraph, settings: SearchSettings) -> NDArray[np.float64]:
    """[E] cost of each road without noise, including its intersection."""
    weight = settings.speed_weight
    cost: NDArray[np.float64] = graph.time_s**weight * (graph.length_m / SPEED_MPS) ** (1 - weight)
    return cost + settings.crossing_s


def turn_cost_s(graph: LineGraph, turn_s: float) -> NDArray[np.float64]:
    """[P] cost of each turn in seconds."""
    return turn_s * graph.turn_angle


def search_routes(
    graph: LineGraph, settings: SearchSettings, *, searches: int, seed: int, compiled: bool | None = None
) -> Routes:
    """Sample trips from random roads to random roads reachable from them.

    Parameters
    ----------
    searches
        Number of origins; each yields up to `settings.trips_per_search` trips.
    seed
        Seed for origins, destinations and drivers' travel times.
    compiled
        Use numba. Default: if installed and worth its import time.
    """
    rng = np.random.default_rng(seed)
    by_key = np.argsort(graph.road_key).astype(np.int32)
    origins = by_key[rng.integers(0, max(graph.num_roads, 1), searches if graph.num_roads else 0)]
    draws = rng.random((searches, settings.trips_per_search)) ** settings.shortness
    number = np.arange(searches)
    wanted = np.full((searches, settings.trips_per_search), -1, np.int32)
    if settings.fast_ends and graph.num_roads:  # all origins and half of the destinations
        weight = ((graph.length_m / np.maximum(graph.time_s, 1e-3)) ** settings.fast_ends)[by_key]
        half = settings.trips_per_search // 2
        ends = by_key[rng.choice(graph.num_roads, (searches, 1 + half), p=weight / weight.sum())]
        origins = ends[:, 0]
        wanted[:, :half] = ends[:, 1:]
        wanted[wanted == origins[:, None]] = -1
    reach = min(MAX_REACHED, graph.num_roads)
    end, length, roads = _search(graph, settings, origins, number, draws, wanted, reach, seed, compiled)
    found = end >= 0
    row = np.nonzero(found)[0]
    start = np.concatenate([[0], np.cumsum(length[found])]).astype(np.int64)
    return Routes(origins[row], end[found], number[row], start, roads)


def search_again(
    graph: LineGraph, settings: SearchSettings, routes: Routes, *, seed: int, compiled: bool | None = None
) -> Routes:
    """Reroute trips on another line graph of the same roads, with the same ends and the same noise on every road.

    Row r is still trip r. A trip with no remaining route has no roads.
    """
    if len(routes) == 0:
        return routes
    number, row = np.unique(routes.search, return_inverse=True)
    place = np.arange(len(routes)) - np.searchsorted(row, np.arange(len(number)))[row]
    wanted = np.full((len(number), int(place.max(initial=0)) + 1), -2, np.int32)
    wanted[row, place] = routes.destination
    origins = np.zeros(len(number), np.int32)
    origins[row] = routes.origin
    draws = np.zeros(wanted.shape)
    reach = graph.num_roads
    _, length, roads = _search(graph, settings, origins, number, draws, wanted, reach, seed, compiled)
    start = np.concatenate([[0], np.cumsum(length[row, place])]).astype(np.int64)
    return Routes(routes.origin, routes.destination, routes.search, start, roads)


def _search(
    graph: LineGraph,
    settings: SearchSettings,
    origins: NDArray[np.int32],
    number: NDArray[np.int64],
    draws: NDArray[np.float64],
    wanted: NDArray[np.int32],
    reach: int,
    seed: int,
    compiled: bool | None,
) -> Found:
    """The last road [S,W] of each trip (-1: not found), its length in roads [S,W], and the roads of all trips.

    `wanted` [S,W] are the destination roads; -1: drawn with `draws`, -2: no trip. A search stops after `reach` roads;
    destinations not reached by then are also drawn with `draws`.
    """
    if graph.num_roads == 0 or len(origins) == 0:
        return np.full(wanted.shape, -1, np.int32), np.zeros(wanted.shape, np.int64), np.zeros(0, np.int32)
    if compiled is None:  # importing numba takes longer than a few hundred searches in a small network
        small = graph.num_roads * len(origins) < SMALL and "numba" not in sys.modules
        compiled = not small and _compiled() is not None
    search = _by_numba if compiled else _by_scipy
    searched = search(graph, settings, origins, number, draws, wanted, reach, seed)
    ends, lengths, roads = zip(*searched, strict=True)
    return np.concatenate(ends), np.concatenate(lengths), np.concatenate(roads)


def _by_numba(
    graph: LineGraph,
    settings: SearchSettings,
    origins: NDArray[np.int32],
    number: NDArray[np.int64],
    draws: NDArray[np.float64],
    wanted: NDArray[np.int32],
    reach: int,
    seed: int,
) -> Iterator[Found]:
    kernel = _compiled()
    assert kernel is not None
    time_s = road_cost_s(graph, settings)
    turn_s = turn_cost_s(graph, settings.turn_s)
    road_key = graph.road_key
    search, threads = kernel

    def some(rows: NDArray[np.int64]) -> Found:
        found: Found = search(
            time_s,
            road_key,
            graph.turn_start,
            graph.turn_into,
            turn_s,
            origins[rows],
            number[rows],
            draws[rows],
            wanted[rows],
            reach,
            np.uint64(seed),
            settings.noise,
            settings.max_trip_s,
        )
        return found

    chunks = np.array_split(np.arange(len(origins)), min(len(origins), 8 * threads))
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(some, chunks)


def _by_scipy(
    graph: LineGraph,
    settings: SearchSettings,
    origins: NDArray[np.int32],
    number: NDArray[np.int64],
    draws: NDArray[np.float64],
    wanted: NDArray[np.int32],
    reach: int,
    seed: int,
) -> Iterator[Found]:
    E = graph.num_roads
    road_key = graph.road_key
    time_s = road_cost_s(graph, settings)
    turn_s = turn_cost_s(graph, settings.turn_s)
    for row, origin in enumerate(origins.tolist()):
        time = time_s * road_factors(seed, int(number[row]), road_key, settings.noise)
        arcs = csr_array((time[graph.turn_into] + turn_s, graph.turn_into, graph.turn_start), (E, E))
        away, before = dijkstra(arcs, indices=origin, limit=settings.max_trip_s, return_predecessors=True)
        reached = np.flatnonzero(np.isfinite(away))
        reached = reached[np.argsort(away[reached], kind="stable")][:reach]
        end = wanted[row].copy()
        known = end >= 0
        end[known] = np.where(np.isin(end[known], reached), end[known], -1 if len(reached) == reach else -2)
        drawn = end == -1
        end[drawn] = _picked(reached, draws[row][drawn]) if len(reached) > 1 else -1
        end[end == -2] = -1
        paths = [_path(before, origin, int(last)) for last in end[end >= 0]]
        length = np.zeros(len(end), np.int64)
        length[end >= 0] = [len(path) for path in paths]
        yield end[None], length[None], np.concatenate([np.zeros(0, np.int32), *paths])


def _picked(reached: NDArray[np.int64], draws: NDArray[np.float64]) -> NDArray[np.int32]:
    """The roads at these relative ranks (in [0, 1)) among those reached, nearest first; never the origin."""
    return reached[1 + (draws * (len(reached) - 1)).astype(np.int64)].astype(np.int32)


def _path(before: NDArray[np.int32], origin: int, last: int) -> NDArray[np.int32]:
    path = [last]
    while path[-1] != origin:
        path.append(int(before[path[-1]]))
    return np.array(path[::-1], np.int32)


def road_factors(seed: int, search: int, road_key: NDArray[np.uint64], noise: float) -> NDArray[np.float64]:
    """[E] random multiplier of a driver's time on each road: exp(noise * z), z with mean 0 and variance 1."""
    with np.errstate(over="ignore"):
        key = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(search) * np.uint64(0xC2B2AE3D27D4EB4F)
        x = key + road_key * np.uint64(0x165667B19E3779F9)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    mask = np.uint64(0xFFFF)
    total = sum(((x >> np.uint64(16 * k)) & mask).astype(np.float64) for k in range(4)) / 65536.0
    normal = (total - 2.0) * 3.0**0.5  # the sum of four uniforms has variance 1/3
    factors: NDArray[np.float64] = np.exp(noise * normal)
    return factors


@cache
def _compiled() -> tuple[Any, int] | None:
    try:
        numba: Any = importlib.import_module("numba")
    except ImportError:
        return None
    return numba.njit(cache=True, nogil=True)(_search_some), int(numba.config.NUMBA_NUM_THREADS)


def _search_some(
    time_s: NDArray[np.float64],
    road_key: NDArray[np.uint64],
    turn_start: NDArray[np.int64],
    turn_into: NDArray[np.int32],
    turn_cost: NDArray[np.float64],
    origins: NDArray[np.int32],
    number: NDArray[np.int64],
    draws: NDArray[np.float64],
    wanted: NDArray[np.int32],
    reach: int,
    seed: np.uint64,
    noise: float,
    max_trip_s: float,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Dijkstra from some origins with a 4-ary heap; a search only touches the roads it reaches."""
    E = len(time_s)
    S = len(origins)
    W = wanted.shape[1]
    away = np.full(E, np.inf)
    before = np.full(E, -1, np.int32)
    reached = np.empty(E, np.int32)
    heap = np.empty(E, np.int32)
    ranked = np.empty(E)  # distances of the roads in the heap
    place = np.full(E, -1, np.int32)  # position in the heap; -1: not seen, -2: done
    factor = np.zeros(E)
    is_wanted = np.zeros(E, np.bool_)
    ends = wanted.copy()
    lengths = np.zeros((S, W), np.int64)
    roads = np.empty(max(1024, S * W * 32), np.int32)
    filled = 0
    for s in range(S):
        key = seed * np.uint64(0x9E3779B97F4A7C15) + np.uint64(number[s]) * np.uint64(0xC2B2AE3D27D4EB4F)
        origin = origins[s]
        heap[0] = origin
        ranked[0] = 0.0
        size = 1
        count = 0
        away[origin] = 0.0
        place[origin] = 0
        missing = 0  # destinations still to reach; drawn ones force a full search
        for w in range(W):
            if ends[s, w] >= 0 and not is_wanted[ends[s, w]]:
                is_wanted[ends[s, w]] = True
                missing += 1
            elif ends[s, w] == -1:
                missing += E + 1
        while size > 0 and missing > 0 and count < reach:
            u = heap[0]
            reached[count] = u
            count += 1
            size -= 1
            if is_wanted[u]:
                missing -= 1
            if size > 0:
                last = heap[size]
                far = ranked[size]
                i = 0
                while 4 * i + 1 < size:
                    least = 4 * i + 1
                    for j in range(least + 1, min(least + 4, size)):
                        if ranked[j] < ranked[least]:
                            least = j
                    if ranked[least] >= far:
                        break
                    heap[i] = heap[least]
                    ranked[i] = ranked[least]
                    place[heap[i]] = i
                    i = least
                heap[i] = last
                ranked[i] = far
                place[last] = i
            place[u] = -2
            for p in range(turn_start[u], turn_start[u + 1]):
                v = turn_into[p]
                if place[v] == -2:
                    continue
                if factor[v] == 0.0:
                    x = key + road_key[v] * np.uint64(0x165667B19E3779F9)
                    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                    x ^= x >> np.uint64(31)
                    total = 0.0
                    for k in range(4):
                        total += float((x >> np.uint64(16 * k)) & np.uint64(0xFFFF))
                    factor[v] = np.exp(noise * (total / 65536.0 - 2.0) * 3.0**0.5)
                there = away[u] + (time_s[v] * factor[v] + turn_cost[p])
                if there > max_trip_s or there >= away[v]:
                    continue
                i = place[v]
                if i < 0:
                    i = size
                    size += 1
                away[v] = there
                before[v] = u
                while i > 0 and ranked[(i - 1) // 4] > there:
                    heap[i] = heap[(i - 1) // 4]
                    ranked[i] = ranked[(i - 1) // 4]
                    place[heap[i]] = i
                    i = (i - 1) // 4
                heap[i] = v
                ranked[i] = there
                place[v] = i
        for w in range(W):
            last = ends[s, w]
            if last >= 0 and place[last] != -2 and count == reach:
                last = -1
            if last == -1 and count > 1:
                last = reached[1 + int(draws[s, w] * (count - 1))]
            if last < 0 or place[last] != -2:
                ends[s, w] = -1
                continue
            ends[s, w] = last
            n = 1
            u = last
            while u != origin:
                u = before[u]
                n += 1
            while filled + n > len(roads):
                longer = np.empty(2 * len(roads), np.int32)
                longer[:filled] = roads[:filled]
                roads = longer
            u = last
            for k in range(n - 1, -1, -1):
                roads[filled + k] = u
                u = before[u]
            filled += n
            lengths[s, w] = n
        for w in range(W):
            if wanted[s, w] >= 0:
                is_wanted[wanted[s, w]] = False
        for k in range(size):
            away[heap[k]] = np.inf
            place[heap[k]] = -1
        for k in range(count):
            v = reached[k]
            away[v] = np.inf
            place[v] = -1
            for p in range(turn_start[v], turn_start[v + 1]):
                factor[turn_into[p]] = 0.0
    return ends, lengths, roads[:filled].copy()
