"""The demand of a city: trips with their numbers for every kind of day and hour, and the flow they make everywhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.config import made_of, require, require_between, require_kinds
from frigate.data.network import RoadNetwork
from frigate.data.split import Period
from frigate.data.stream import DAY_S, RoadNetworkStream
from frigate.demand.calibration import Floats, RouteSet, SensorView, first_numbers, route_set
from frigate.demand.leaning import Leaning, lean, propagate
from frigate.demand.route_search import LineGraph, Routes, SearchSettings, line_graph, search_routes
from frigate.draws import Draw, seed_of
from frigate.errors import CityError

KINDS_OF_DAY = ("weekday", "weekend")
BINS = 24 * len(KINDS_OF_DAY)  # hours of the kinds of day: bin = 24 * kind + hour
SEARCHES = 800  # a set: fewer leave parts of a town without trips
NODES_PER_SEARCH = 48  # in a large network: with 16 sets a node is the origin of 8 trips and lies on hundreds
TINY = 1e-4  # flow of a node that no trip passes
USUAL_SEARCHES = (  # where too few sensors are known to choose: drivers differ
    SearchSettings(turn_s=20.0, noise=0.2),
    SearchSettings(turn_s=40.0, noise=0.6, fast_ends=2.0),
    SearchSettings(turn_s=80.0, noise=0.2, shortness=2.0, crossing_s=0.0),
    SearchSettings(turn_s=10.0, noise=0.4, fast_ends=1.0, speed_weight=1.5),
)


@dataclass(frozen=True)
class DemandSettings:
    """How demand is estimated. `tuning.choose_settings` finds the searches of a city by hiding sensors.

    A forecast's least absolute error is at the median, which lies under the mean: counts are skewed (`below_mean`), and
    so is what is known of a flow (`below_share`). A sensor's own median is known (`own_median`).
    """

    searches: tuple[SearchSettings, ...] = USUAL_SEARCHES  # of the route sets, in turn
    sets: int = 16  # route sets with other trips; the flow is their median
    iterations: int = 60  # of the calibration
    hold: float = 0.03  # weight of the trip numbers that the calibration begins with; 1: that of a sensor
    power: float = 0.75  # of the last hour's change: how much of it is expected to last through the coming hour
    below_mean: float = 0.4  # vehicles
    below_share: float = 0.05  # of the flow where there is no sensor
    own_median: float = 0.5  # weight of what a sensor says itself of how far its median lies under its mean

    def __post_init__(self) -> None:
        require_kinds(self)
        require(len(self.searches) > 0, "searches", self.searches, "give at least one")
        require_between(self, 1, 1000, "sets", "iterations")
        require_between(self, 0, 1, "hold", "power", "below_share", "own_median")
        require_between(self, 0, 1e6, "below_mean")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DemandSettings:
        return made_of(cls, data | {"searches": tuple(made_of(SearchSettings, each) for each in data["searches"])})


@dataclass(frozen=True)
class Demand:
    """Trips of a city and the flows they make. S route sets, K = 48 kinds of day and hours, N nodes, E roads."""

    graph: LineGraph
    settings: DemandSettings
    seed: int
    sensors: NDArray[np.bool_]  # [N] whose counts were used
    usual_counts: NDArray[np.float32]  # [K,N] their own mean counts; 0 elsewhere
    usual_medians: NDArray[np.float32]  # [K,N] their own median counts; NaN where not known
    sets: tuple[RouteSet, ...]  # S
    numbers: tuple[NDArray[np.float32], ...]  # S times [R] vehicles a step that make each trip, of a mean week
    sensor_factor: NDArray[np.float32]  # [K,N] what trips that pass a sensor are multiplied by in each hour
    other_factor: NDArray[np.float32]  # [K] the same of trips that pass none
    leaning: Leaning
    node_flow: NDArray[np.float32]  # [K,N] vehicles a step
    node_spread: NDArray[np.float32]  # [N] standard deviation of the logarithm over the sets: how unsure the flow is
    fit: float  # mean absolute error of the flows at the sensors, relative to their mean count

    def trips(self, k: int, bins: NDArray[np.int64] | None = None) -> Floats:
        """[R,bins] vehicles a step that make each trip of set k, in some kinds of day and hours (default: all)."""
        view = SensorView.of(self.sets[k].through_node, self.sensors)
        factor = (self.sensor_factor if bins is None else self.sensor_factor[bins])[:, self.sensors].T  # [V,K]
        other = self.other_factor if bins is None else self.other_factor[bins]
        hourly = np.where(view.per_trip > 0, (view.at_sensor @ factor) * view.per_trip, other)
        return self.numbers[k][:, None] * hourly

    @cached_property
    def road_flow(self) -> NDArray[np.float32]:
        """[K,E] vehicles a step."""
        return self._roads[0]

    @cached_property
    def road_spread(self) -> NDArray[np.float32]:
        """[E] standard deviation of the logarithm over the sets."""
        return self._roads[1]

    @cached_property
    def _roads(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        flows = np.stack([(trips.through_road.T @ self.trips(k)).T for k, trips in enumerate(self.sets)])
        flow, _ = _middle_flow(flows)
        return flow, _middle_flow(flows.mean(1))[1]


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
    usual = usual_counts(stream, sensors, period)
    graph = line_graph(network or stream.network, forbidden_turns)
    sets, medians = sample_trips(graph, settings, seed=seed), usual_medians(stream, sensors, period)
    return calibrate(graph, sets, usual, settings, seed=seed, medians=medians)


def calibrate(
    graph: LineGraph,
    sets: tuple[RouteSet, ...],
    usual: NDArray[np.floating],
    settings: DemandSettings,
    *,
    seed: int,
    medians: NDArray[np.floating] | None = None,
) -> Demand:
    """The demand of these trips that fits the usual counts [K,N] of the sensors; NaN at nodes that are none.

    `medians` [K,N] are the usual median counts, of these sensors or more; NaN where not known.

    First the trip numbers of a mean week, set by set; from there, in one step, those of every kind of day and hour.
    """
    sensors = np.isfinite(usual).all(0)
    counts = week_mean(usual)
    through = [trips.through_node for trips in sets]
    views = [SensorView.of(nodes, sensors) for nodes in through]
    wanted, steps, hold = counts[sensors, None], settings.iterations, settings.hold
    numbers = tuple(
        view.calibrate(first_numbers(view, wanted), wanted, iterations=steps, hold=hold)[:, 0] for view in views
    )
    level, spread = _middle_flow(np.stack([nodes.T @ n for nodes, n in zip(through, numbers, strict=True)]))
    leaning = lean(zip(through, views, numbers, strict=True), sensors)
    known = np.where(sensors, usual, 0)
    other = known.sum(1) / max(float(np.where(sensors, counts, 0).sum()), TINY)
    ratio = known / np.maximum(np.where(sensors, counts, 1), TINY)
    change, factor = (
        made.numpy()
        for made in propagate(
            torch.from_numpy(ratio).float(),
            torch.from_numpy(sensors)[None],
            sensor=torch.from_numpy(leaning.sensor),
            share=torch.from_numpy(leaning.share),
            rest=torch.from_numpy(leaning.rest),
            everywhere=torch.from_numpy(other).float()[:, None],
        )
    )
    flow = level * change
    error = float(np.abs(flow - known)[:, sensors].sum())
    return Demand(
        graph=graph,
        settings=settings,
        seed=seed,
        sensors=sensors,
        usual_counts=known.astype(np.float32),
        usual_medians=np.where(sensors, np.nan if medians is None else medians, np.nan).astype(np.float32),
        sets=sets,
        numbers=numbers,
        sensor_factor=factor,
        other_factor=other.astype(np.float32),
        leaning=leaning,
        node_flow=flow,
        node_spread=spread,
        fit=error / max(float(known.sum()), TINY),
    )


def sample_trips(graph: LineGraph, settings: DemandSettings, *, seed: int) -> tuple[RouteSet, ...]:
    """Route sets from the map alone."""
    return tuple(route_set(graph, routes) for routes in sample_routes(graph, settings, seed=seed))


def sample_routes(graph: LineGraph, settings: DemandSettings, *, seed: int) -> list[Routes]:
    """The trips of each route set."""
    searches = num_searches(graph)
    return [
        search_routes(graph, search, searches=searches, seed=route_seed(seed, k))
        for k, search in enumerate(set_searches(settings))
    ]


def num_searches(graph: LineGraph) -> int:
    """Of a route set: one from every road of a small network, and as many as its nodes ask for in a large one."""
    return max(min(SEARCHES, graph.num_roads), graph.num_nodes // NODES_PER_SEARCH)


def route_seed(seed: int, k: int) -> int:
    """The seed that the trips of set k are searched with."""
    return seed_of(seed, Draw.TRIPS, k)


def set_searches(settings: DemandSettings) -> list[SearchSettings]:
    """The search of each set."""
    return [settings.searches[k % len(settings.searches)] for k in range(settings.sets)]


def _middle_flow(flows: Floats) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The median over the first axis, the sets, and the standard deviation of the logarithm over it."""
    logs = np.log(np.maximum(flows, TINY))
    middle = np.exp(np.median(logs, axis=0))
    return np.where(middle > 1.01 * TINY, middle, 0).astype(np.float32), logs.std(0).astype(np.float32)


def snapshot_bins(stream: RoadNetworkStream) -> NDArray[np.int64]:
    """[S] the bin of each snapshot: kind of day and hour of the city's local time."""
    return bins_at(stream.times_s + stream.utc_offset_s)


def bins_at(local_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bins of local times in seconds since 1970."""
    weekday = (local_s // DAY_S + 3) % 7  # 1 January 1970 was a Thursday
    return 24 * (weekday >= 5) + local_s % DAY_S // 3600


def week_mean(hourly: Floats) -> Floats:
    """[N] the mean of a week from that of every kind of day and hour [K,N]."""
    mean: Floats = np.repeat([5.0, 2.0], 24) @ hourly / 168
    return mean


def usual_counts(
    stream: RoadNetworkStream, sensors: NDArray[np.bool_], period: Period | None = None
) -> NDArray[np.float64]:
    """The mean count [K,N] of each sensor by kind of day and hour; NaN at nodes that are none, or were never read.

    A bin without a reading at a sensor gets the sensor's mean, times what the other sensors say of that bin.
    """
    if stream.quantity != "count":
        raise CityError(f'demand is estimated from counts; this city measures "{stream.quantity}"')
    first, stop = period or (0, stream.num_snapshots)
    rows = np.flatnonzero(sensors)
    values, observed = stream.values[first:stop, rows].astype(np.float64), stream.observed[first:stop, rows]
    bins = snapshot_bins(stream)[first:stop]
    total, count = np.zeros((BINS, len(rows))), np.zeros((BINS, len(rows)))
    for b in np.unique(bins):
        total[b] = np.where(observed[bins == b], values[bins == b], 0).sum(0)
        count[b] = observed[bins == b].sum(0)
    hourly = np.full((BINS, stream.num_nodes), np.nan)
    readings = count.sum(0)
    known, here = count > 0, readings > 0
    means = total / np.maximum(count, 1)
    # What a bin has of the level at the sensors that were read in it; 1 for a bin without any.
    rough = total.sum(0) / np.maximum(readings, 1)
    profile = (means * known).sum(1) / np.maximum((rough * known).sum(1), TINY)
    profile[~known.any(1)] = 1.0
    hourly[:, rows[here]] = np.where(known, means, rough * profile[:, None])[:, here]
    return hourly


def usual_medians(
    stream: RoadNetworkStream, sensors: NDArray[np.bool_], period: Period | None = None
) -> NDArray[np.float32]:
    """The median count [K,N] of each sensor by kind of day and hour; NaN where there is no reading."""
    first, stop = period or (0, stream.num_snapshots)
    rows = np.flatnonzero(sensors)
    medians = np.full((BINS, stream.num_nodes), np.nan, np.float32)
    bins = snapshot_bins(stream)[first:stop]
    for b in np.unique(bins):
        at = first + np.flatnonzero(bins == b)
        values = np.sort(np.where(stream.observed[np.ix_(at, rows)], stream.values[np.ix_(at, rows)], np.inf), axis=0)
        count = np.isfinite(values).sum(0)
        low, high = (values[np.maximum(middle, 0), np.arange(len(rows))] for middle in ((count - 1) // 2, count // 2))
        medians[b, rows[count > 0]] = ((low + high) / 2)[count > 0]
    return medians
