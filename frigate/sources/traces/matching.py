"""Map matching: find which road each position of a vehicle was on, which nodes it passed, and when.

A hidden Markov model (Newson and Krumm 2009): the distance of a position from its road is Gaussian with sigma_m; the
difference between route and straight-line distance of two positions is exponential with beta_m. By default, both are
estimated from medians of the data, as in that paper. Routes are shortest paths of bounded length. Most are looked up in
a precomputed table and the rest are searched for, with the same result.

Vehicles are independent. They are matched in chunks of whole vehicles, by threads (the compiled functions release
Python's lock) or by tasks on a Ray cluster, with the same result.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.coordinates import haversine_m
from frigate.errors import CityError, MissingExtraError
from frigate.progress import Progress
from frigate.roads.geometry import Projection
from frigate.sources.traces.road_index import Candidates, RoadGrid, find_candidates, readonly
from frigate.sources.traces.viterbi import (
    DETOUR,
    DETOUR_M,
    MATCHED,
    Matches,
    MatchSettings,
    Positions,
    RouteTable,
    fill_rows,
    match_positions,
    new_search,
)

ENGINES = ("local", "ray")
CHUNK = 10_000  # positions matched at a time, approximately
SAMPLE = 20_000  # positions used to estimate sigma and beta, approximately
FIRST_SIGMA_M = 10.0  # initial estimate
FIRST_BETA_M = 50.0  # initial estimate
MIN_M = 1.0  # of both
INSIDE_M = 200.0  # a position farther than this from every road is outside the network
TABLE_RADIUS_M = 3000.0  # longest route in the table
TABLE_ROUTES = 40_000_000  # routes in it: 480 MB
ROUTES_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class MatchOptions:
    """How positions are matched; see `import_traces`."""

    sigma_m: float | None = None
    beta_m: float | None = None
    max_gap_s: float = 240.0
    radius_m: float = 50.0
    workers: int = 1
    engine: str = "local"

    def __post_init__(self) -> None:
        for option in ("sigma_m", "beta_m", "max_gap_s", "radius_m"):
            value = getattr(self, option)
            if value is not None and not (np.isfinite(value) and value > 0):
                raise CityError(f"{option}: {value:g}. Give a number above 0")
        if self.radius_m > INSIDE_M:
            raise CityError(f"radius_m: {self.radius_m:g}. Give at most {INSIDE_M:g} m")
        if self.workers < 1:
            raise CityError(f"workers: {self.workers}. Give 1 or more")
        if self.engine not in ENGINES:
            raise CityError(f'engine "{self.engine}" is not known. Engines: {", ".join(ENGINES)}')


@dataclass(frozen=True)
class NearbyRoads:
    """Finds the roads near positions."""

    projection: Projection
    grid: RoadGrid
    radius_m: float  # roads farther away are not considered

    def near(self, positions: Positions) -> Candidates:
        return find_candidates(
            self.grid, *self.projection.metres(positions.lon, positions.lat), float(self.radius_m), INSIDE_M
        )


def match(
    roads: NearbyRoads, positions: Positions, options: MatchOptions, *, on_progress: Progress | None = None
) -> tuple[Matches, MatchSettings]:
    """The road of every position, the passages of all vehicles, and the sigma and beta used."""
    sigma_m = options.sigma_m
    beta_m = options.beta_m
    workers = options.workers
    table = make_table(roads, positions, max_gap_s=options.max_gap_s, workers=workers)
    gap_us = int(options.max_gap_s * 1e6)
    settings = MatchSettings(float(sigma_m or FIRST_SIGMA_M), float(beta_m or FIRST_BETA_M), gap_us)
    if sigma_m is None or beta_m is None:
        sample = _sample(positions)
        for _ in range(2):
            found = join(list(_on_threads(roads, table, sample, settings, workers)))
            settings = _estimate(found, settings, sigma_m, beta_m)
    engine = _on_ray if options.engine == "ray" else _on_threads
    parts = []
    done = 0
    for part in engine(roads, table, _chunks(positions), settings, workers):
        parts.append(part)
        done += len(part.road)
        if on_progress is not None:
            on_progress(done, len(positions.vehicle), "")
    return join(parts), settings


def take(positions: Positions, rows: slice | NDArray[np.generic]) -> Positions:
    columns: Iterable[NDArray[Any]] = positions
    return Positions(*(readonly(column[rows], column.dtype.type) for column in columns))


def join(parts: Sequence[Matches]) -> Matches:
    """Join the matches of consecutive chunks."""
    firsts = np.cumsum([0, *(len(part.road) for part in parts)])
    moved = [p._replace(before=np.where(p.before >= 0, p.before + f, -1)) for p, f in zip(parts, firsts, strict=False)]
    return Matches(*(np.concatenate(columns) for columns in zip(*moved, strict=True)))


def chunk_slices(vehicle: NDArray[np.int32], size: int) -> list[slice]:
    """Slices of about this many positions that do not split a vehicle."""
    heads = np.flatnonzero(np.diff(vehicle, prepend=vehicle[:1] - 1))
    chosen = [0]
    for head in heads.tolist():
        if head - chosen[-1] >= size:
            chosen.append(head)
    return [slice(a, b) for a, b in zip(chosen, [*chosen[1:], len(vehicle)], strict=True) if b > a]


def _chunks(positions: Positions) -> list[Positions]:
    return [take(positions, part) for part in chunk_slices(positions.vehicle, CHUNK)]


# The table of routes


def make_table(roads: NearbyRoads, positions: Positions, *, max_gap_s: float, workers: int) -> RouteTable:
    """Routes from the nodes where routes may begin, most used first, as many as fit."""
    grid = roads.grid
    N = len(roads.grid.out_starts) - 1
    reach_m = _usual_route_m(positions, max_gap_s)
    with ThreadPoolExecutor(workers) as pool:
        uses = np.sum(list(pool.map(partial(_uses, roads), _chunks(positions))), axis=0)
        order = np.argsort(-uses, kind="stable")[: int((uses > 0).sum())]
        shares = [np.ascontiguousarray(order[k::workers]) for k in range(workers)]
        rows = [r for part in pool.map(partial(_rows, grid, reach_m, TABLE_ROUTES // workers), shares) for r in part]
    row_of = np.full(N, -1, np.int32)
    sources = np.concatenate([sources for sources, *_ in rows]) if rows else np.zeros(0, np.int64)
    row_of[sources] = np.arange(len(sources))
    sizes = np.concatenate([[0], *(size for _, size, *_ in rows)])
    columns = [np.concatenate(c) if c else np.zeros(0) for c in ([row[k] for row in rows] for k in (2, 3, 4))]
    return RouteTable(
        row_of=readonly(row_of, np.int32),
        starts=readonly(np.cumsum(sizes), np.int64),
        targets=readonly(columns[0], np.int32),
        metres=readonly(columns[1], np.float32),
        last_roads=readonly(columns[2], np.int32),
        radius_m=reach_m,
    )


def _uses(roads: NearbyRoads, positions: Positions) -> NDArray[np.int64]:
    """[N] how often a route may begin at each node: at the end of a road near a position."""
    near = roads.near(positions)
    held = np.arange(near.road.shape[1]) < near.number[:, None]
    return np.bincount(roads.grid.receivers[near.road[held]], minlength=len(roads.grid.out_starts) - 1)


def _usual_route_m(positions: Positions, max_gap_s: float) -> float:
    """A length that few routes between successive positions exceed."""
    lon = positions.lon
    lat = positions.lat
    linked = np.diff(positions.vehicle) == 0
    linked &= positions.arrive_us[1:] - positions.depart_us[:-1] <= max_gap_s * 1e6
    straight_m = haversine_m(lon[:-1], lat[:-1], lon[1:], lat[1:])[linked]
    usual_m = float(np.quantile(straight_m, 0.97)) if len(straight_m) else 0.0
    return min(TABLE_RADIUS_M, DETOUR * usual_m + DETOUR_M)


def _rows(grid: RoadGrid, reach_m: float, most: int, sources: NDArray[np.int64]) -> list[tuple[NDArray[Any], ...]]:
    """Rows of the table, in parts: sources, sizes, targets, metres, last roads."""
    search = new_search(grid)
    parts: list[tuple[NDArray[Any], ...]] = []
    held = 0
    while len(sources) and held < most:
        room = max(ROUTES_AT_ONCE, len(grid.out_starts))
        starts = np.zeros(len(sources) + 1, np.int64)
        targets = np.empty(room, np.int32)
        metres = np.empty(room, np.float32)
        last_roads = np.empty(room, np.int32)
        done = fill_rows(grid, search, sources, reach_m, starts, targets, metres, last_roads)
        stop = int(starts[done])
        columns = (column[:stop].copy() for column in (targets, metres, last_roads))
        parts.append((sources[:done], np.diff(starts[: done + 1]), *columns))
        sources = sources[done:]
        held = held + stop
    return parts


# Sigma and beta


def _estimate(found: Matches, settings: MatchSettings, sigma_m: float | None, beta_m: float | None) -> MatchSettings:
    """Sigma and beta estimated from these matches, unless given."""
    matched = found.state == MATCHED
    linked = found.before >= 0
    if sigma_m is None and matched.any():
        # The median absolute value of a Gaussian is sigma / 1.4826.
        settings = settings._replace(sigma_m=max(MIN_M, 1.4826 * float(np.median(found.distance_m[matched]))))
    if beta_m is None and linked.any():
        # The median of an exponential is beta ln 2.
        differ_m = np.abs(found.route_m[linked] - found.straight_m[linked])
        settings = settings._replace(beta_m=max(MIN_M, float(np.median(differ_m)) / float(np.log(2))))
    return settings


def _sample(positions: Positions) -> list[Positions]:
    """Every n-th vehicle, so that about SAMPLE positions remain."""
    each = max(1, len(positions.vehicle) // SAMPLE)
    names = np.unique(positions.vehicle)[::each]
    return _chunks(take(positions, np.isin(positions.vehicle, names)))


# Threads and Ray


def _match(roads: NearbyRoads, table: RouteTable, chunk: Positions, settings: MatchSettings) -> Matches:
    return match_positions(roads.grid, table, chunk, roads.near(chunk), settings)


def _on_threads(
    roads: NearbyRoads, table: RouteTable, chunks: Iterable[Positions], settings: MatchSettings, workers: int
) -> Iterator[Matches]:
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(lambda chunk: _match(roads, table, chunk, settings), chunks)


def _on_ray(
    roads: NearbyRoads, table: RouteTable, chunks: Iterable[Positions], settings: MatchSettings, workers: int
) -> Iterator[Matches]:
    """Match on a Ray cluster: the one in use or at RAY_ADDRESS, else a new one on this machine."""
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "cluster") from None
    started = not ray.is_initialized()
    if started:
        ray.init(num_cpus=None if "RAY_ADDRESS" in os.environ else workers, include_dashboard=False)
    try:
        held = (ray.put(roads), ray.put(table))  # sent once per machine, not per task
        task = ray.remote(_match)
        for waiting in [task.remote(*held, chunk, settings) for chunk in chunks]:
            yield ray.get(waiting)
    finally:
        if started:
            ray.shutdown()
