"""The inner loops of map matching, compiled by numba: bounded routes, Viterbi's algorithm, passages.

Functions that call each other are in one file, because numba's cache only checks the date of that file and would miss a
change in another. All arrays are read-only, like those from Ray, so that one compiled version serves both.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from frigate.coordinates import EARTH_RADIUS_M
from frigate.sources.traces.road_index import Candidates, RoadGrid, compiled

DETOUR = 1.5  # longest route: this many times the straight-line distance, plus
DETOUR_M = 1000.0
TOP_SPEED_MPS = 70.0  # no vehicle is faster ...
CLOCK_SLACK_S = 5.0  # ... if clocks are accurate to this

MATCHED, NO_ROAD, OUTSIDE = 0, 1, 2  # states of a position


class RouteTable(NamedTuple):
    """Shortest routes of at most radius_m from some nodes, sorted by target within a row."""

    row_of: NDArray[np.int32]  # [N] -1: not in the table
    starts: NDArray[np.int64]  # [rows+1]
    targets: NDArray[np.int32]
    metres: NDArray[np.float32]
    last_roads: NDArray[np.int32]  # last road of the route; -1 at its source
    radius_m: float


class Search(NamedTuple):
    """Work arrays of a shortest-path search."""

    metres: NDArray[np.float64]  # [N] infinite where not reached
    last_roads: NDArray[np.int32]  # [N]
    settled: NDArray[np.bool_]  # [N]
    touched: NDArray[np.int32]  # [N] nodes to reset afterwards


class Positions(NamedTuple):
    """Positions sorted by vehicle and time. A standing vehicle has one, with two times."""

    vehicle: NDArray[np.int32]  # [P]
    lon: NDArray[np.float64]  # [P]
    lat: NDArray[np.float64]  # [P]
    arrive_us: NDArray[np.int64]  # [P]
    depart_us: NDArray[np.int64]  # [P]


class MatchSettings(NamedTuple):
    sigma_m: float
    beta_m: float
    max_gap_us: int


class Matches(NamedTuple):
    """The match of each position, and the passages of all vehicles."""

    state: NDArray[np.int8]  # [P] MATCHED, NO_ROAD or OUTSIDE
    road: NDArray[np.int32]  # [P] -1 where not matched
    offset_m: NDArray[np.float64]  # [P] distance along the road
    distance_m: NDArray[np.float32]  # [P] to the road; NaN where not matched
    before: NDArray[np.int64]  # [P] the previous position in the chain; -1 at its head
    broken: NDArray[np.bool_]  # [P] no route leads here from the position before
    straight_m: NDArray[np.float32]  # [P] from the position before; NaN at the head of a chain
    route_m: NDArray[np.float32]  # [P] the same, by road
    passage_us: NDArray[np.int64]  # [passages]
    passage_node: NDArray[np.int32]
    passage_road: NDArray[np.int32]  # the road that led to the node


@compiled
def straight_distance_m(lon_a: float, lat_a: float, lon_b: float, lat_b: float) -> float:
    """`frigate.coordinates.haversine_m` for a single pair."""
    lon_a = np.radians(lon_a)
    lat_a = np.radians(lat_a)
    lon_b = np.radians(lon_b)
    lat_b = np.radians(lat_b)
    half = np.sin((lat_b - lat_a) / 2) ** 2 + np.cos(lat_a) * np.cos(lat_b) * np.sin((lon_b - lon_a) / 2) ** 2
    return float(2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(min(1.0, max(0.0, half)))))


@compiled
def merge_standing(
    vehicle: NDArray[np.int32], lon: NDArray[np.float64], lat: NDArray[np.float64], merge_m: float
) -> NDArray[np.bool_]:
    """Which positions to keep: those at least merge_m from the last kept position of the same vehicle."""
    kept = np.ones(len(vehicle), np.bool_)
    last = 0
    for i in range(1, len(vehicle)):
        if vehicle[i] == vehicle[last]:
            kept[i] = straight_distance_m(lon[last], lat[last], lon[i], lat[i]) >= merge_m
        if kept[i]:
            last = i
    return kept


# Routes


@compiled
def new_search(grid: RoadGrid) -> Search:
    N = len(grid.out_starts) - 1
    return Search(np.full(N, np.inf), np.full(N, -1, np.int32), np.zeros(N, np.bool_), np.empty(N, np.int32))


@compiled
def run_search(grid: RoadGrid, search: Search, source: int, limit_m: float, wanted: NDArray[np.int32]) -> int:
    """Dijkstra's algorithm up to limit_m, or until all wanted nodes are settled. Returns how many were touched."""
    search.metres[source] = 0.0
    search.last_roads[source] = -1
    search.touched[0] = source
    touched = 1
    left = len(wanted)
    # Ties are broken by node, so that the order in which nodes settle does not depend on the limit.
    heap = [(0.0, np.int64(source))]
    while len(heap) > 0:
        _, u = heapq.heappop(heap)
        if search.settled[u]:
            continue
        search.settled[u] = True
        for i in range(len(wanted)):
            left -= wanted[i] == u
        if left == 0 and len(wanted) > 0:
            break
        for at in range(grid.out_starts[u], grid.out_starts[u + 1]):
            road = grid.out_roads[at]
            v = grid.receivers[road]
            there_m = search.metres[u] + grid.length_m[road]
            if there_m > limit_m or there_m >= search.metres[v]:
                continue
            if search.metres[v] == np.inf:
                search.touched[touched] = v
                touched += 1
            search.metres[v] = there_m
            search.last_roads[v] = road
            heapq.heappush(heap, (there_m, np.int64(v)))
    return touched


@compiled
def clean_search(search: Search, touched: int) -> None:
    for i in range(touched):
        search.metres[search.touched[i]] = np.inf
        search.settled[search.touched[i]] = False


@compiled
def fill_rows(
    grid: RoadGrid,
    search: Search,
    sources: NDArray[np.int64],
    radius_m: float,
    starts: NDArray[np.int64],
    targets: NDArray[np.int32],
    metres: NDArray[np.float32],
    last_roads: NDArray[np.int32],
) -> int:
    """Fill rows of a route table, as many as fit into the arrays. Returns how many."""
    nobody = np.empty(0, np.int32)
    for row in range(len(sources)):
        touched = run_search(grid, search, sources[row], radius_m, nobody)
        first = starts[row]
        stop = starts[row] + touched
        if stop > len(targets):
            clean_search(search, touched)
            return row
        targets[first:stop] = np.sort(search.touched[:touched])
        for at in range(first, stop):
            metres[at] = search.metres[targets[at]]
            last_roads[at] = search.last_roads[targets[at]]
        starts[row + 1] = stop
        clean_search(search, touched)
    return len(sources)


@compiled
def look_up(table: RouteTable, row: int, target: int) -> int:
    """Index of a target in a row of the table, or -1."""
    low = table.starts[row]
    high = table.starts[row + 1]
    while low < high:
        middle = (low + high) >> 1
        if table.targets[middle] < target:
            low = middle + 1
        else:
            high = middle
    return int(low) if low < table.starts[row + 1] and table.targets[low] == target else -1


# The most likely roads


@compiled
def longest_route_m(straight_m: float, seconds: float) -> float:
    """Maximum length of a route between two positions."""
    return float(min(DETOUR * straight_m + DETOUR_M, TOP_SPEED_MPS * (seconds + CLOCK_SLACK_S)))


@compiled
def link(
    grid: RoadGrid,
    table: RouteTable,
    search: Search,
    here: tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]],
    there: tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]],
    back: NDArray[np.int8],
    straight_m: float,
    limit_m: float,
    beta_m: float,
) -> bool:
    """One step of Viterbi's algorithm: the cheapest route to each candidate in `there`. False if there is none.

    `here` and `there` are (roads, offsets, costs). Route costs are added to the costs in `there`.
    """
    road, offset_m, cost = here
    next_road, next_offset_m, next_cost = there
    ends = grid.senders[next_road]
    best = np.full(len(ends), np.inf)
    between_m = np.empty(len(ends), np.float32)
    unknown = np.zeros((len(road), len(ends)), np.bool_)  # routes that are not in the table
    for a in range(len(road)):
        source = grid.receivers[road[a]]
        row = table.row_of[source]
        for b in range(len(ends)):
            between_m[b] = np.inf
            at = look_up(table, row, ends[b]) if row >= 0 else -1
            if at >= 0:
                between_m[b] = table.metres[at]
            else:
                unknown[a, b] = row < 0 or table.radius_m < limit_m
        _relax(grid, a, here, there, between_m, back, best, straight_m, limit_m, beta_m)
    searched = -1
    for a in np.argsort(grid.receivers[road]):  # roads that end at the same node share one search
        source = grid.receivers[road[a]]
        known_m = 0.0 if table.row_of[source] < 0 else table.radius_m  # lower bound of an unknown route
        needed = False
        for b in range(len(ends)):
            least_m = grid.length_m[road[a]] - offset_m[a] + known_m + next_offset_m[b]
            least = cost[a] + max(0.0, least_m - straight_m) / beta_m
            needed = needed or (unknown[a, b] and least_m <= limit_m and least < np.inf and least <= best[b])
        if needed:
            if source != searched:
                _search_ends(grid, search, source, limit_m, ends, between_m)
                searched = source
            _relax(grid, a, here, there, between_m, back, best, straight_m, limit_m, beta_m)
    linked = False
    for b in range(len(ends)):
        next_cost[b] += best[b]
        linked = linked or best[b] < np.inf
    return linked


@compiled
def _relax(
    grid: RoadGrid,
    a: int,
    here: tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]],
    there: tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]],
    between_m: NDArray[np.float32],
    back: NDArray[np.int8],
    best: NDArray[np.float64],
    straight_m: float,
    limit_m: float,
    beta_m: float,
) -> None:
    """Use the routes from candidate `a` where they are cheaper; ties go to the first candidate."""
    road, offset_m, cost = here
    next_road, next_offset_m, _ = there
    for b in range(len(next_road)):
        if road[a] == next_road[b] and next_offset_m[b] >= offset_m[a]:
            route_m = next_offset_m[b] - offset_m[a]
        else:
            route_m = grid.length_m[road[a]] - offset_m[a] + between_m[b] + next_offset_m[b]
        total = cost[a] + abs(route_m - straight_m) / beta_m
        if route_m <= limit_m and (total < best[b] or (total == best[b] and a < back[b])):
            best[b] = total
            back[b] = a


@compiled
def _search_ends(
    grid: RoadGrid, search: Search, source: int, limit_m: float, ends: NDArray[np.int32], between_m: NDArray[np.float32]
) -> None:
    """Fill in the length of the shortest route from a node to each of the ends, rounded as in the table."""
    touched = run_search(grid, search, source, limit_m + 1.0, ends)
    for b in range(len(ends)):
        between_m[b] = search.metres[ends[b]] if search.settled[ends[b]] else np.inf
    clean_search(search, touched)


@compiled
def match_positions(
    grid: RoadGrid, table: RouteTable, positions: Positions, candidates: Candidates, settings: MatchSettings
) -> Matches:
    """The most likely road of every position, vehicle by vehicle (Newson and Krumm 2009), and the nodes passed."""
    P = len(positions.lon)
    near = candidates
    count = candidates.number
    cost = np.empty(near.road.shape)
    back = np.zeros(near.road.shape, np.int8)
    state = np.zeros(P, np.int8)
    broken = np.zeros(P, np.bool_)
    before = np.full(P, -1, np.int64)
    straight_m = np.full(P, np.nan, np.float32)
    route_m = np.full(P, np.nan, np.float32)
    search = new_search(grid)
    last = -1
    for i in range(P):
        n = count[i]
        if n == 0:
            state[i] = NO_ROAD if near.inside[i] else OUTSIDE
            continue
        # Negative log of a Gaussian, without the constant.
        cost[i, :n] = 0.5 * (near.distance_m[i, :n] / settings.sigma_m) ** 2
        if last >= 0 and positions.vehicle[last] == positions.vehicle[i]:
            gap_us = positions.arrive_us[i] - positions.depart_us[last]
            apart_m = straight_distance_m(positions.lon[last], positions.lat[last], positions.lon[i], positions.lat[i])
            limit_m = longest_route_m(apart_m, gap_us / 1e6)
            m = count[last]
            here = (near.road[last, :m], near.offset_m[last, :m], cost[last, :m])
            there = (near.road[i, :n], near.offset_m[i, :n], cost[i, :n])
            if gap_us > settings.max_gap_us:
                pass
            elif apart_m <= limit_m and link(
                grid, table, search, here, there, back[i], apart_m, limit_m, settings.beta_m
            ):
                before[i] = last
                straight_m[i] = apart_m
            else:
                broken[i] = True
                cost[i, :n] = 0.5 * (near.distance_m[i, :n] / settings.sigma_m) ** 2
        last = i
    road = np.full(P, -1, np.int32)
    offset_m = np.zeros(P)
    distance_m = np.full(P, np.nan, np.float32)
    chosen = _trace_back(count, cost, back, before)
    for i in range(P):
        if count[i] > 0:
            road[i] = near.road[i, chosen[i]]
            offset_m[i] = near.offset_m[i, chosen[i]]
            distance_m[i] = near.distance_m[i, chosen[i]]
    time_us, node, by = _passages(grid, table, search, positions, road, offset_m, before, route_m)
    return Matches(state, road, offset_m, distance_m, before, broken, straight_m, route_m, time_us, node, by)


@compiled
def _trace_back(
    count: NDArray[np.int64], cost: NDArray[np.float64], back: NDArray[np.int8], before: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[P] the chosen candidates: the cheapest at the end of each chain, traced back to its head."""
    chosen = np.full(len(count), -1, np.int64)
    for i in range(len(count) - 1, -1, -1):
        if count[i] == 0:
            continue
        if chosen[i] < 0:
            chosen[i] = np.argmin(cost[i, : count[i]])
        if before[i] >= 0:
            chosen[before[i]] = back[i, chosen[i]]
    return chosen


# Passages


@compiled
def route_roads(
    grid: RoadGrid, table: RouteTable, search: Search, source: int, target: int, out: NDArray[np.int32]
) -> int:
    """Fill in the roads of the shortest route between two nodes, last first. Returns their number."""
    count = 0
    row = table.row_of[source]
    if row >= 0 and look_up(table, row, target) >= 0:
        while target != source:
            out[count] = table.last_roads[look_up(table, row, target)]
            target = grid.senders[out[count]]
            count += 1
        return count
    wanted = np.full(1, target, np.int32)
    touched = run_search(grid, search, source, np.inf, wanted)
    while target != source:
        out[count] = search.last_roads[target]
        target = grid.senders[out[count]]
        count += 1
    clean_search(search, touched)
    return count


@compiled
def _passages(
    grid: RoadGrid,
    table: RouteTable,
    search: Search,
    positions: Positions,
    road: NDArray[np.int32],
    offset_m: NDArray[np.float64],
    before: NDArray[np.int64],
    route_m: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Every node on the routes between positions, with times interpolated by distance. Also fills in `route_m`."""
    size = 4 * len(road) + 16
    time_us = np.empty(size, np.int64)
    node = np.empty(size, np.int32)
    by = np.empty(size, np.int32)
    roads = np.empty(len(grid.out_starts), np.int32)
    count = 0
    for i in range(len(road)):
        last = before[i]
        if last < 0:
            continue
        if road[last] == road[i] and offset_m[i] >= offset_m[last]:
            route_m[i] = offset_m[i] - offset_m[last]
            continue
        hops = route_roads(grid, table, search, grid.receivers[road[last]], grid.senders[road[i]], roads)
        done_m = grid.length_m[road[last]] - offset_m[last]
        whole_m = done_m + offset_m[i]
        for h in range(hops):
            whole_m += grid.length_m[roads[h]]
        route_m[i] = whole_m
        left_us = positions.depart_us[last]
        taken_us = positions.arrive_us[i] - positions.depart_us[last]
        if count + hops + 1 > len(node):
            more = len(node) + hops + 1
            time_us = np.append(time_us, np.empty(more, np.int64))
            node = np.append(node, np.empty(more, np.int32))
            by = np.append(by, np.empty(more, np.int32))
        for h in range(hops, -1, -1):
            passed = road[last] if h == hops else roads[h]
            done_m += 0.0 if h == hops else grid.length_m[passed]
            time_us[count] = left_us + np.int64(taken_us * (done_m / whole_m if whole_m > 0 else 0.0))
            node[count] = grid.receivers[passed]
            by[count] = passed
            count += 1
    return time_us[:count].copy(), node[:count].copy(), by[:count].copy()
