"""The demand of a city: trips with their numbers for every kind of day and hour, and the flow they make everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from frigate.data.network import RoadNetwork
from frigate.data.split import Period
from frigate.data.stream import DAY_S, RoadNetworkStream
from frigate.demand.calibration import Floats, RouteSet, SensorView, first_numbers, route_set
from frigate.demand.route_search import LineGraph, SearchSettings, line_graph, search_routes
from frigate.errors import CityError

KINDS_OF_DAY = ("weekday", "weekend")
BINS = 24 * len(KINDS_OF_DAY)  # hours of the kinds of day: bin = 24 * kind + hour
MIN_SEARCHES = 400  # a set: fewer leave parts of a small network without trips
NODES_PER_SEARCH = 16  # in a large network
TINY = 1e-4  # flow of a node that no trip passes


@dataclass(frozen=True)
class DemandSettings:
    """How demand is estimated. `tuning.choose_settings` finds the ones of a city by hiding sensors."""

    search: SearchSettings = field(default_factory=SearchSettings)
    short_trips: float = 3.0  # `shortness` of every other set: drivers make long trips and short ones
    sets: int = 8  # route sets with other trips; the flow is their geometric mean
    iterations: int = 30  # towards the mean count of each sensor
    hourly_iterations: int = 8  # from there towards the counts of each kind of day and hour


@dataclass(frozen=True)
class Demand:
    """Trips of a city and the flows they make. S route sets, K = 48 kinds of day and hours, N nodes, E roads."""

    graph: LineGraph
    settings: DemandSettings
    seed: int
    sensors: NDArray[np.bool_]  # [N] whose counts were used
    sets: tuple[RouteSet, ...]  # S
    trips: tuple[Floats, ...]  # S times [R,K] vehicles a step that make each trip
    node_flow: NDArray[np.float32]  # [K,N] vehicles a step
    road_flow: NDArray[np.float32]  # [K,E]
    node_spread: NDArray[np.float32]  # [N] standard deviation of the logarithm over the sets: how unsure the flow is
    road_spread: NDArray[np.float32]  # [E]
    hourly_counts: NDArray[np.float32]  # [K,N] the sensors' own mean counts; NaN elsewhere
    fit: float  # mean absolute error of the flows at the sensors, relative to their mean count


def estimate_demand(
    stream: RoadNetworkStream,
    sensors: NDArray[np.bool_],
    *,
    period: Period | None = None,
    network: RoadNetwork | None = None,
    forbidden_turns: NDArray[np.int64] | None = None,
    settings: DemandSettings | None = None,
    seed: int = 0,
) -> Demand:
    """Estimate who drives where from the counts of some nodes.

    Parameters
    ----------
    stream
        Counts; a gauge such as speed has no trips and is refused.
    sensors
        [N] the nodes whose readings may be used.
    period
        First snapshot and the one after the last that may be used (default: all).
    network
        Where trips are driven (default: the stream's last topology).
    forbidden_turns
        [K,3] rows of nodes source, via, target, as `City.forbidden_turns`.
    settings
        Default: `DemandSettings()`; see `tuning.choose_settings` for those of a city.
    seed
        Of the trips.
    """
    settings = settings or DemandSettings()
    counts, hourly = mean_counts(stream, sensors, period)
    graph = line_graph(network or stream.network, forbidden_turns)
    sets = sample_trips(graph, settings, seed=seed)
    used = sensors & np.isfinite(counts)
    trips = tuple(calibrate_set(trips, used, counts, hourly, settings) for trips in sets)
    return demand_of(graph, settings, seed, used, sets, trips, hourly)


def demand_of(
    graph: LineGraph,
    settings: DemandSettings,
    seed: int,
    sensors: NDArray[np.bool_],
    sets: tuple[RouteSet, ...],
    trips: tuple[Floats, ...],
    hourly: Floats,
) -> Demand:
    """A demand with the flows that these trips make."""
    node_flow, node_spread = _mean_flow([(s.through_node.T @ t).T for s, t in zip(sets, trips, strict=True)])
    road_flow, road_spread = _mean_flow([(s.through_road.T @ t).T for s, t in zip(sets, trips, strict=True)])
    known = hourly[:, sensors]
    fit = float(np.abs(node_flow[:, sensors] - known).mean() / max(float(known.mean()), TINY)) if known.size else np.nan
    own = np.where(sensors, hourly, np.nan).astype(np.float32)
    return Demand(graph, settings, seed, sensors, sets, trips, node_flow, road_flow, node_spread, road_spread, own, fit)


def sample_trips(graph: LineGraph, settings: DemandSettings, *, seed: int) -> tuple[RouteSet, ...]:
    """Route sets from the map alone."""
    searches = max(MIN_SEARCHES, graph.num_nodes // NODES_PER_SEARCH)
    return tuple(
        route_set(graph, search_routes(graph, search, searches=searches, seed=1000 * seed + k))
        for k, search in enumerate(set_searches(settings))
    )


def set_seed(demand: Demand, k: int) -> int:
    """The seed that the trips of set k were searched with."""
    return 1000 * demand.seed + k


def set_searches(settings: DemandSettings) -> list[SearchSettings]:
    """The search of each set: in turn with long trips and with short ones."""
    short = replace(settings.search, shortness=settings.short_trips)
    return [short if k % 2 else settings.search for k in range(settings.sets)]


def calibrate_set(
    trips: RouteSet, sensors: NDArray[np.bool_], counts: Floats, hourly: Floats, settings: DemandSettings
) -> Floats:
    """Trip numbers [R,K] of one set: first towards the mean counts [N], from there towards the hourly ones [K,N]."""
    view = SensorView.of(trips, sensors)
    level = view.calibrate(first_numbers(view, counts[sensors]), counts[sensors, None], iterations=settings.iterations)
    each = np.repeat(level, len(hourly), axis=1)
    return view.calibrate(each, hourly[:, sensors].T, iterations=settings.hourly_iterations)


def _mean_flow(flows: Sequence[Floats]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The geometric mean [K,X] of the sets' flows, and the spread [X] of the logarithm of their means over K."""
    logs = np.log(np.maximum(np.stack(flows), TINY))
    mean = np.exp(logs.mean(0))
    levels = np.log(np.maximum(np.stack([flow.mean(0) for flow in flows]), TINY))
    return np.where(mean > 1.01 * TINY, mean, 0).astype(np.float32), levels.std(0).astype(np.float32)


def clock_bins(stream: RoadNetworkStream) -> NDArray[np.int64]:
    """[S] the bin of each snapshot: kind of day and hour of the city's local time."""
    return bins_at(stream.times_s + stream.utc_offset_s)


def bins_at(local_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bins of local times in seconds since 1970."""
    weekday = (local_s // DAY_S + 3) % 7  # 1 January 1970 was a Thursday
    return 24 * (weekday >= 5) + local_s % DAY_S // 3600


def mean_counts(
    stream: RoadNetworkStream, sensors: NDArray[np.bool_], period: Period | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean count [N] of each sensor, and that [K,N] of each kind of day and hour; NaN where there is no reading.

    A bin without a reading at a sensor gets the sensor's mean, times what the other sensors say of that bin.
    """
    if stream.quantity != "count":
        raise CityError(f'demand is estimated from counts; this city measures "{stream.quantity}"')
    first, stop = period or (0, stream.num_snapshots)
    rows = np.flatnonzero(sensors)
    values, observed = stream.values[first:stop, rows].astype(np.float64), stream.observed[first:stop, rows]
    bins = clock_bins(stream)[first:stop]
    total, count = np.zeros((BINS, len(rows))), np.zeros((BINS, len(rows)))
    np.add.at(total, bins, np.where(observed, values, 0))
    np.add.at(count, bins, observed)
    level = np.full(stream.num_nodes, np.nan)
    hourly = np.full((BINS, stream.num_nodes), np.nan)
    readings = count.sum(0)
    here = readings > 0
    if not here.any():
        return level, hourly
    means = total / np.maximum(count, 1)
    known = count > 0
    # What a bin has of the level at the sensors that were read in it; 1 for a bin without any.
    rough = np.where(here, total.sum(0) / np.maximum(readings, 1), 0)
    profile = (means * known).sum(1) / np.maximum((rough * known).sum(1), TINY)
    profile[~known.any(1)] = 1.0
    hourly[:, rows] = np.where(known, means, rough * profile[:, None])
    # Every bin weighs by its share of a week, however often it was read.
    weight = np.repeat([5.0, 2.0], 24)[:, None] * np.where(known.any(1), 1.0, 0.0)[:, None]
    level[rows] = (hourly[:, rows] * weight).sum(0) / weight.sum()
    hourly[:, rows[~here]] = np.nan
    level[rows[~here]] = np.nan
    return level, hourly
