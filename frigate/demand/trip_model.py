"""The trips of one network, the counts they are calibrated to, and where they go when roads close or open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.city.split import Period
from frigate.demand.calibration import RouteSet
from frigate.demand.count_profiles import fill_empty_hours, usual_counts, usual_medians
from frigate.demand.estimate import Demand, calibrate
from frigate.demand.rerouting import Detours, Rerouted, reroute, sensor_shares_on_detours
from frigate.demand.sensor_shares import SensorShares
from frigate.demand.settings import DemandSettings
from frigate.demand.trip_cache import cached_detours, cached_trips
from frigate.demand.tuning import choose_settings
from frigate.errors import CityError, SettingsError
from frigate.roads.line_graph import LineGraph


@dataclass(frozen=True)
class TripModel:
    """The trips of a network, and the usual counts to calibrate them to. K hourly bins, N nodes."""

    network: RoadNetwork  # the usual roads, from which detours start
    graph: LineGraph
    sets: tuple[RouteSet, ...]
    usual_counts: NDArray[np.float32]  # [K,N] NaN where there are no readings
    usual_medians: NDArray[np.float32]  # [K,N]
    settings: DemandSettings
    step_s: int
    seed: int
    forbidden_turns: NDArray[np.int64] | None

    @classmethod
    def of(
        cls,
        network: RoadNetwork,
        settings: DemandSettings,
        *,
        step_s: int,
        usual_counts: NDArray[np.floating],
        usual_medians: NDArray[np.floating],
        seed: int,
        forbidden_turns: NDArray[np.int64] | None = None,
        folder: Path | None = None,
    ) -> TripModel:
        """Sample the trips, or take them from the cache of the city in `folder`."""
        graph, sets = cached_trips(network, settings, forbidden_turns=forbidden_turns, seed=seed, folder=folder)
        tables = usual_counts.astype(np.float32), usual_medians.astype(np.float32)
        return cls(network, graph, sets, *tables, settings, step_s, seed, forbidden_turns)

    def demand(self, sensors: NDArray[np.bool_]) -> Demand:
        """The demand calibrated to these sensors [N]."""
        usual = fill_empty_hours(np.where(sensors, self.usual_counts, np.nan))
        return calibrate(
            self.network, self.graph, self.sets, usual, self.settings, step_s=self.step_s, seed=self.seed,
            medians=self.usual_medians,
        )  # fmt: skip

    def rerouted(self, demand: Demand, network: RoadNetwork) -> Rerouted:
        """The effect of another network with the same nodes on the flows of a demand."""
        return reroute(demand, self._detours(network))

    def sensor_shares(self, demand: Demand, network: RoadNetwork) -> SensorShares:
        """The share of each node's vehicles that pass each sensor, on another network with the same nodes."""
        return sensor_shares_on_detours(demand, self._detours(network))

    def _detours(self, network: RoadNetwork) -> Detours:
        return cached_detours(
            self.network, network, self.sets, self.settings, seed=self.seed, forbidden_turns=self.forbidden_turns
        )


def estimate_demand(
    city: City,
    sensors: NDArray[np.bool_] | None = None,
    *,
    period: Period | None = None,
    settings: DemandSettings | None = None,
    seed: int = 0,
) -> Demand:
    """Estimate travel demand from the counts at some nodes.

    Parameters
    ----------
    city : City
        Must measure counts; gauges such as speed are rejected. Trips use the roads open in most of the period.
    sensors : array of bool, optional
        [N] the nodes whose readings may be used. Default: all nodes with readings.
    period : pair of int, optional
        Range of snapshots to use, end exclusive. Default: all.
    settings : DemandSettings, optional
        Default: the searches with the lowest error at held-out sensors (`tuning.choose_settings`).
    seed : int
        Seed for sampling trips.

    Examples
    --------
    >>> demand = fg.estimate_demand(city)
    >>> demand.road_flow.shape  # (48 hours of weekday and weekend, roads)
    """
    stream, turns = city.stream, city.forbidden_turns
    sensors = stream.sensors if sensors is None else np.asarray(sensors)
    if sensors.dtype != bool or sensors.shape != (stream.num_nodes,):
        given = f"{sensors.dtype} of shape {sensors.shape}"
        raise SettingsError(f"sensors: {given}. Give a bool for each of the {stream.num_nodes:,} nodes")
    usual, medians = usual_counts(stream, sensors, period), usual_medians(stream, sensors, period)
    if not np.isfinite(usual).any():
        where = city.folder or city.name
        raise CityError(f"{where}: no sensor has a reading, and demand is estimated from counts. Add readings")
    if settings is None:
        settings = choose_settings(stream, sensors, period=period, forbidden_turns=turns, seed=seed)
    trips = TripModel.of(
        stream.usual_network(period), settings, step_s=stream.step_s, usual_counts=usual, usual_medians=medians,
        seed=seed, forbidden_turns=turns, folder=city.folder,
    )  # fmt: skip
    return trips.demand(sensors)
