"""Turn GPS traces into counts: how many vehicles passed each intersection in each step.

A trace table has one row per position: vehicle, time, lon, lat. Positions are cleaned, those of a standing vehicle are
merged, and the rest are matched to the roads (`matching`). Every node on the route counts once each time it is passed,
at a time interpolated by distance. A 0 is a real zero of this fleet; a step in which no vehicle reported is not
observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import zone
from frigate.city.bucketing import Readings, Span, bucket, snapshot_grid
from frigate.city.city import City
from frigate.city.city_toml import parse_step
from frigate.city.network import RoadNetwork
from frigate.errors import CityError
from frigate.progress import Progress
from frigate.reading.notices import Notices
from frigate.reading.times import Clock, network_timezone
from frigate.roads.geometry import Projection
from frigate.roads.on_roads import on_roads
from frigate.sources.traces.files import MERGE_M, Trace, read_traces
from frigate.sources.traces.matching import INSIDE_M, MatchOptions, NearbyRoads, match
from frigate.sources.traces.road_index import build_grid, readonly
from frigate.sources.traces.viterbi import MATCHED, NO_ROAD, OUTSIDE, Matches, MatchSettings, Positions, merge_standing


@dataclass(frozen=True)
class MatchReport:
    """How many positions were matched, and what became of the others."""

    read: int
    dropped: Mapping[str, int]  # reason -> unusable positions
    standing: int  # merged with the position before, which is closer than MERGE_M
    moving: int  # the rest
    outside: int  # moving, with no road within INSIDE_M
    no_road: int  # inside, with no road within the radius
    alone: int  # inside and on a road, but not linked to another position
    matched: int  # inside and on a road, with a route from or to another position
    broken: int  # gaps in a trace where no route leads from one position to the next
    cut: int  # gaps in a trace longer than max_gap_s
    vehicles: int
    vehicles_outside: int  # with no position inside the network
    passages: int
    mean_distance_m: float  # of matched positions from their roads
    sigma_m: float
    beta_m: float

    @property
    def inside(self) -> int:
        return self.moving - self.outside

    @property
    def matched_share(self) -> float:
        """Share of the moving positions inside the network that are matched."""
        return self.matched / self.inside if self.inside else 0.0

    def sentences(self) -> tuple[str, ...]:
        """The report as sentences."""
        found = f"{self.matched:,} of {self.inside:,} moving positions inside the network ({self.matched_share:.1%})"
        return (
            f"Matched to a road: {found}, {self.mean_distance_m:.1f} m from it on average.",
            f"Moving positions with no road nearby: {self.no_road:,}; not linked to another: {self.alone:,}.",
            f"Positions outside the network: {self.outside:,}. Merged, as the vehicle stood still: {self.standing:,}.",
            f"Traces cut at long gaps: {self.cut:,}; broken for lack of a route: {self.broken:,}.",
            f"Passages counted: {self.passages:,}, of {self.vehicles - self.vehicles_outside:,} vehicles.",
            f"Matched with sigma {self.sigma_m:.1f} m and beta {self.beta_m:.1f} m.",
        )


@dataclass(frozen=True)
class MatchedTraces:
    """Passages of vehicles at nodes, sorted by vehicle and time."""

    time_us: NDArray[np.int64]  # [passages] microseconds since 1970 UTC
    node: NDArray[np.integer]  # [passages] row of the node
    road: NDArray[np.int32]  # [passages] row of the road that led to the node
    trace: Trace  # the usable positions
    report: MatchReport
    notices: Notices


def match_traces(
    files: str | Path | Iterable[str | Path],
    network: City | RoadNetwork,
    options: MatchOptions | None = None,
    *,
    rename: Mapping[str, str] | None = None,
    timezone: str | None = None,
    on_progress: Progress | None = None,
) -> MatchedTraces:
    """Match GPS traces to the roads of a network: which nodes each vehicle passed, and when.

    Parameters
    ----------
    files, network, rename, timezone, on_progress
        As for `import_traces`.
    options
        How to match.

    Returns
    -------
    The passages, the positions they are based on, and a report on all positions.
    """
    options = options or MatchOptions()
    notices = Notices()
    roads = network.network if isinstance(network, City) else network
    if not roads.num_edges:
        raise CityError("the network has no roads to match traces to")
    if isinstance(network, City):
        forms = len(network.stream.networks)
        notices.add("Versions of the network over time, of which only the last was used", forms if forms > 1 else 0)
        timezone = network_timezone(timezone, network.stream.timezone, notices)
    paths = [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]
    clock = Clock(zone(_timezone(network, timezone)), "")
    trace, notices = read_traces(paths, roads, names=rename or {}, clock=clock, notices=notices)
    projection = Projection.of(roads)
    grid = build_grid(roads, projection, radius_m=options.radius_m, margin_m=INSIDE_M, notices=notices)
    positions = _moving(trace)
    near = NearbyRoads(projection, grid, options.radius_m)
    found, settings = match(near, positions, options, on_progress=on_progress)
    if (found.state == OUTSIDE).all():
        raise CityError(_elsewhere(paths, trace, roads))
    report = _report(trace, positions, found, settings)
    notices.add("Vehicles without any position inside the network", report.vehicles_outside)
    return MatchedTraces(found.passage_us, found.passage_node, found.passage_road, trace, report, notices)


def import_traces(
    files: str | Path | Iterable[str | Path],
    network: City | RoadNetwork,
    *,
    rename: Mapping[str, str] | None = None,
    timezone: str | None = None,
    step: str = "5min",
    on: str = "nodes",
    sigma_m: float | None = None,
    beta_m: float | None = None,
    max_gap_s: float = 240.0,
    radius_m: float = 50.0,
    workers: int = 1,
    engine: str = "local",
    name: str | None = None,
    on_progress: Progress | None = None,
) -> City:
    """Make a city of counts: the vehicles that passed each node of a network in each step.

    Parameters
    ----------
    files
        Tables of positions, .csv or .parquet, with the columns vehicle, time, lon and lat.
    network
        The roads that were driven.
    rename
        Their columns -> ours. {"lon_e5": "lon"} also divides by 100,000 (likewise _e6 and _e7).
    timezone
        For times without a zone. Default: the city's, else UTC.
    step
        Length of a step.
    on
        "nodes": count at intersections. "roads": every road is a node, counted at its end.
    sigma_m, beta_m
        Standard deviation of positions around their road, and scale of the difference between route and straight-line
        distance. Default: estimated from the data.
    max_gap_s
        A trace is cut where two positions are farther apart in time.
    radius_m
        Only roads within this distance of a position are considered.
    workers
        Number of threads.
    engine
        "local", or "ray" for a Ray cluster.
    name
        Name of the city. Default: the network's, or the folder's.
    on_progress
        Called with the number of positions matched so far, their total number, and a description.
    """
    step_s = parse_step(step, where="step")
    if on not in ("nodes", "roads"):
        raise CityError(f'on "{on}" is not known. Give nodes or roads')
    files = [files] if isinstance(files, str | Path) else list(files)
    options = MatchOptions(sigma_m, beta_m, max_gap_s, radius_m, workers, engine)
    matched = match_traces(files, network, options, rename=rename, timezone=timezone, on_progress=on_progress)
    named = network.name if isinstance(network, City) else Path(files[0]).resolve().parent.name
    counted = network.network if isinstance(network, City) else network
    if on == "roads":
        counted = on_roads(network, notices=matched.notices)
        matched = replace(matched, node=matched.road)
    city = count_passages(matched, counted, step_s=step_s, timezone=_timezone(network, timezone), name=name or named)
    if on == "nodes" and isinstance(network, City):
        return replace(city, forbidden_turns=network.forbidden_turns)
    return city


def count_passages(matched: MatchedTraces, network: RoadNetwork, *, step_s: int, timezone: str, name: str) -> City:
    """A city with passages as readings, from the step of the first position to that of the last."""
    first = int(matched.trace.time_us.min())
    last = int(matched.trace.time_us.max())
    N = network.num_nodes
    span = Span(first, last, "the first position", "the last position")
    read = matched.report.read
    grid = snapshot_grid(span, step_s=step_s, timezone=timezone, num_nodes=N, num_readings=read)
    passages = Readings(matched.time_us, matched.node, np.ones(len(matched.node), np.float32))
    counts = bucket([passages], grid, num_nodes=N, quantity="count")
    reported = np.zeros(grid.num_snapshots, bool)
    reported[grid.snapshot_of(np.concatenate([matched.time_us, matched.trace.time_us]))] = True
    joined = np.zeros(N, bool)
    joined[network.senders] = joined[network.receivers] = True  # a node without a road cannot be passed
    matched.notices.add("Steps in which no vehicle reported, taken as not observed", int((~reported).sum()))
    observed = reported[:, None] & joined
    stream = replace(counts, observed=observed).stream(network, unit="vehicles")
    told = matched.notices.sentences()
    return City(name, stream, (*matched.report.sentences(), *told), places=told)


def _timezone(network: City | RoadNetwork, timezone: str | None) -> str:
    return timezone or (network.stream.timezone if isinstance(network, City) else "UTC")


def _moving(trace: Trace) -> Positions:
    """Positions of moving vehicles. A standing vehicle has one position, with a first and a last time."""
    kept = np.flatnonzero(merge_standing(trace.vehicle, trace.lon, trace.lat, MERGE_M))
    lasts = np.append(kept[1:] - 1, len(trace.vehicle) - 1)
    return Positions(
        vehicle=readonly(trace.vehicle[kept], np.int32),
        lon=readonly(trace.lon[kept], np.float64),
        lat=readonly(trace.lat[kept], np.float64),
        arrive_us=readonly(trace.time_us[kept], np.int64),
        depart_us=readonly(trace.time_us[lasts], np.int64),
    )


def _report(trace: Trace, positions: Positions, found: Matches, settings: MatchSettings) -> MatchReport:
    on_road = found.state == MATCHED
    linked = found.before >= 0
    joined = linked.copy()
    joined[found.before[linked]] = True
    matched = on_road & joined
    inside = found.state != OUTSIDE
    names = np.unique(trace.vehicle)
    head = np.diff(positions.vehicle[on_road], prepend=-1) != 0
    return MatchReport(
        read=trace.read,
        dropped=dict(trace.dropped),
        standing=len(trace.vehicle) - len(positions.vehicle),
        moving=len(positions.vehicle),
        outside=int((~inside).sum()),
        no_road=int((found.state == NO_ROAD).sum()),
        alone=int((on_road & ~joined).sum()),
        matched=int(matched.sum()),
        broken=int(found.broken.sum()),
        cut=int((on_road & ~linked & ~found.broken).sum()) - int(head.sum()),
        vehicles=len(names),
        vehicles_outside=len(names) - len(np.unique(positions.vehicle[inside])),
        passages=len(found.passage_us),
        mean_distance_m=float(found.distance_m[matched].mean(dtype=np.float64)) if matched.any() else 0.0,
        sigma_m=settings.sigma_m,
        beta_m=settings.beta_m,
    )


def _elsewhere(paths: list[Path], trace: Trace, network: RoadNetwork) -> str:
    def area(lon: NDArray[np.float64], lat: NDArray[np.float64]) -> str:
        return f"lon {lon.min():.4f} to {lon.max():.4f}, lat {lat.min():.4f} to {lat.max():.4f}"

    positions = area(trace.lon, trace.lat)
    roads = area(network.lon[network.present], network.lat[network.present])
    named = paths[0].name if len(paths) == 1 else f"{paths[0].name} and {len(paths) - 1} more"
    return (
        f"{named}: no position is within {INSIDE_M:g} m of a road. The positions are at {positions}, the network "
        f"is at {roads}. Is it another city?"
    )
