"""The demand of a city: calibrated trip flows for every kind of day and hour, and the resulting flow at every node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.calendar import WEEK_PARTS
from frigate.city.network import RoadNetwork
from frigate.demand.calibration import Floats, RouteSet, SensorView, first_numbers
from frigate.demand.count_profiles import TINY, week_mean
from frigate.demand.levels import Estimates
from frigate.demand.route_search import Routes, search_routes
from frigate.demand.sensor_shares import SensorShares, find_sensor_shares, propagate
from frigate.demand.settings import DemandSettings, num_searches, route_seed, set_searches
from frigate.notebook import card, sketch
from frigate.roads.line_graph import LineGraph
from frigate.text import percent

LITTLE = 1e-3  # vehicles per step
LEAST = 1e-3  # of the mean flow: what a detour brings to a place where nobody passes is put in relation to this


@dataclass(frozen=True)
class Demand:
    """Calibrated trips and the resulting flows. S route sets, K = 48 bins (kind of day and hour), N nodes, E roads."""

    network: RoadNetwork  # the usual roads
    step_s: int  # length of a snapshot: flows are vehicles per step
    graph: LineGraph
    settings: DemandSettings
    seed: int
    sensors: NDArray[np.bool_]  # [N] nodes whose counts were used
    usual_counts: NDArray[np.float32]  # [K,N] mean counts of the sensors; 0 elsewhere
    usual_medians: NDArray[np.float32]  # [K,N] median counts of the sensors; NaN where unknown
    week: NDArray[np.float32]  # [W,N] flow in each part of the week, against that of its kind of day and hour
    sets: tuple[RouteSet, ...]  # S
    numbers: tuple[NDArray[np.float32], ...]  # S times [R] trip flows averaged over the week, vehicles per step
    sensor_factor: NDArray[np.float32]  # [K,N] hourly multiplier of the trips that pass a sensor
    other_factor: NDArray[np.float32]  # [K] hourly multiplier of the trips that pass none
    sensor_shares: SensorShares
    level: NDArray[np.float32]  # [N] mean over the week according to the trips, vehicles per step
    level_factor: NDArray[np.float32]  # [N] how much more pass according to the sensors around; 1: the trips alone
    node_flow: NDArray[np.float32]  # [K,N] vehicles per step, with this factor
    node_spread: NDArray[np.float32]  # [N] uncertainty of the flow: standard deviation of its log over the sets
    fit: float  # mean absolute error of the flows at the sensors, relative to their mean count
    notices: tuple[str, ...] = ()  # of sensors that were left out

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {fact}" for name, fact in self._facts().items())
        return f"<Demand: {facts}>"

    def _repr_html_(self) -> str:
        network = self.network
        roads = sketch(network.lon, network.lat, network.senders, network.receivers, self.sensors)
        return card("Demand", self._facts(), roads)

    def _facts(self) -> dict[str, str]:
        return {
            "network": f"{self.network.num_nodes:,} nodes, {self.network.num_edges:,} roads",
            "sensors": f"{int(self.sensors.sum()):,}",
            "trips": f"{sum(map(len, self.numbers)):,} in {len(self.sets)} sets",
            "mean error at the sensors": percent(self.fit),
        }

    def trips(self, k: int, bins: NDArray[np.int64] | None = None) -> Floats:
        """[R,bins] trip flows of set k in vehicles per step, for some bins of day and hour (default: all)."""
        view = SensorView.of(self.sets[k].through_node, self.sensors)
        factor = (self.sensor_factor if bins is None else self.sensor_factor[bins])[:, self.sensors].T  # [V,K]
        other = self.other_factor if bins is None else self.other_factor[bins]
        hourly = np.where(view.per_trip > 0, (view.at_sensor @ factor) * view.per_trip, other)
        return self.numbers[k][:, None] * hourly

    def with_levels(self, level: NDArray[np.floating]) -> Demand:
        """The demand with this mean count at each node [N]; at the sensors, with the one they measure."""
        level = np.where(self.sensors, week_mean(self.usual_counts), level)
        factor = (level + LITTLE) / (self.level + LITTLE)
        nobody = np.outer(self.other_factor, level)  # where no trip passes, the level with everybody's profile
        flow = np.where(self.level > 0, self.node_flow * factor, nobody)
        return replace(self, level_factor=factor.astype(np.float32), node_flow=flow.astype(np.float32))

    @property
    def usual_level(self) -> NDArray[np.float32]:
        """[N] mean over the week, vehicles per step."""
        level: NDArray[np.float32] = self.level * self.level_factor
        return level

    @property
    def least_flow(self) -> float:
        """The least usual flow that a change is put in relation to, vehicles per step."""
        return max(LEAST * float(self.usual_level.mean()), TINY)

    @cached_property
    def set_flows(self) -> NDArray[np.float32]:
        """[S,N] the weekly mean according to each route set, vehicles per step."""
        flows = [trips.through_node.T @ numbers for trips, numbers in zip(self.sets, self.numbers, strict=True)]
        return np.stack(flows).astype(np.float32)

    @cached_property
    def road_flow(self) -> NDArray[np.float32]:
        """[K,E] vehicles per step."""
        return self._roads[0]

    @cached_property
    def road_spread(self) -> NDArray[np.float32]:
        """[E] uncertainty of the flow: standard deviation of its log over the sets."""
        return self._roads[1]

    @cached_property
    def _roads(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        flows = np.stack([(trips.through_road.T @ self.trips(k)).T for k, trips in enumerate(self.sets)])
        flow, _ = middle_flow(flows)
        ends = self.level_factor[self.network.senders] * self.level_factor[self.network.receivers]
        return flow * np.sqrt(ends), middle_flow(flows.mean(1))[1]


def calibrate(
    network: RoadNetwork,
    graph: LineGraph,
    sets: tuple[RouteSet, ...],
    usual: NDArray[np.floating],
    settings: DemandSettings,
    *,
    step_s: int,
    seed: int,
    medians: NDArray[np.floating],
    week: NDArray[np.floating] | None = None,
) -> Demand:
    """Calibrate trips to the usual counts [K,N] of the sensors; NaN at nodes without a sensor.

    `medians` [K,N] are usual median counts and `week` [W,N] the parts of the week against the usual counts, NaN where
    unknown; they may cover more nodes than these sensors.

    Trip flows are first calibrated to the weekly mean, one route set at a time; `propagate` then scales them to every
    kind of day and hour.
    """
    sensors = np.isfinite(usual).all(0)
    counts = week_mean(usual)
    through = [trips.through_node for trips in sets]
    views = [SensorView.of(nodes, sensors) for nodes in through]
    numbers = tuple(trip_flows(view, counts[sensors], settings) for view in views)
    level, spread = middle_flow(np.stack([nodes.T @ n for nodes, n in zip(through, numbers, strict=True)]))
    sensor_shares = find_sensor_shares(zip(through, views, numbers, strict=True), sensors)
    known = np.where(sensors, usual, 0)
    other = known.sum(1) / max(float(np.where(sensors, counts, 0).sum()), TINY)
    ratio = known / np.maximum(np.where(sensors, counts, 1), TINY)
    change, factor = _spread(ratio, other, sensors, sensor_shares)
    flow = level * change
    error = float(np.abs(flow - known)[:, sensors].sum())
    return Demand(
        network=network,
        step_s=step_s,
        graph=graph,
        settings=settings,
        seed=seed,
        sensors=sensors,
        usual_counts=known.astype(np.float32),
        usual_medians=np.where(sensors, medians, np.nan).astype(np.float32),
        week=_week(week, counts, sensors, sensor_shares),
        sets=sets,
        numbers=numbers,
        sensor_factor=factor,
        other_factor=other.astype(np.float32),
        sensor_shares=sensor_shares,
        level=level,
        level_factor=np.ones_like(level),
        node_flow=flow,
        node_spread=spread,
        fit=error / max(float(known.sum()), TINY),
    )


def _spread(
    ratio: Floats, everywhere: Floats, sensors: NDArray[np.bool_], shares: SensorShares
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """`propagate` from the ratios [K,N] of all sensors, and [K] those of vehicles that pass none."""
    change, factor = propagate(
        torch.from_numpy(ratio).float(),
        torch.from_numpy(sensors)[None],
        sensor=torch.from_numpy(shares.sensor),
        share=torch.from_numpy(shares.share),
        rest=torch.from_numpy(shares.rest),
        everywhere=torch.from_numpy(everywhere).float()[:, None],
    )
    return change.numpy(), factor.numpy()


def _week(
    week: NDArray[np.floating] | None, counts: Floats, sensors: NDArray[np.bool_], shares: SensorShares
) -> NDArray[np.float32]:
    """[W,N] the parts of the week: at a sensor its own, elsewhere those of the sensors that vehicles pass."""
    if week is None or not sensors.any():
        return np.ones((WEEK_PARTS, len(sensors)), np.float32)
    own = np.where(sensors & np.isfinite(week), week, 1)
    weight = np.where(sensors, counts, 0)
    everywhere = own @ weight / max(float(weight.sum()), TINY)
    return np.where(sensors, own, _spread(own, everywhere, sensors, shares)[0]).astype(np.float32)


def trip_levels(sets: tuple[RouteSet, ...], usual: NDArray[np.floating], settings: DemandSettings) -> Estimates:
    """The mean count of each node over the week, from trips calibrated to the usual counts [K,N] of the sensors."""
    sensors = np.isfinite(usual).all(0)
    counts = week_mean(usual)[sensors]
    flows = [
        trips.through_node.T @ trip_flows(SensorView.of(trips.through_node, sensors), counts, settings)
        for trips in sets
    ]
    return Estimates(*middle_flow(np.stack(flows)))


def trip_flows(view: SensorView, counts: Floats, settings: DemandSettings) -> NDArray[np.float32]:
    """[R] the trip flows that meet the counts [V]."""
    wanted = counts[:, None]
    fitted = view.calibrate(first_numbers(view, wanted), wanted, iterations=settings.iterations, hold=settings.hold)
    numbers: NDArray[np.float32] = fitted[:, 0]
    return numbers


def sample_routes(graph: LineGraph, settings: DemandSettings, *, seed: int) -> list[Routes]:
    """The routes of each set, which depend only on the map."""
    searches = num_searches(graph)
    return [
        search_routes(graph, search, searches=searches, seed=route_seed(seed, k))
        for k, search in enumerate(set_searches(settings))
    ]


def middle_flow(flows: Floats) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The median over the sets (first axis), and the standard deviation of the log."""
    logs = np.log(np.maximum(flows, TINY))
    middle = np.exp(np.median(logs, axis=0))
    return np.where(middle > 1.01 * TINY, middle, 0).astype(np.float32), logs.std(0).astype(np.float32)
