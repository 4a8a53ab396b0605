"""The trips of one network, the counts they are calibrated to, and where they go when roads close or open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.faults import find_faults
from frigate.city.network import RoadNetwork
from frigate.city.split import Period
from frigate.city.stream import RoadNetworkStream
from frigate.demand.calibration import RouteSet
from frigate.demand.closures import detour_sets, fit_response
from frigate.demand.count_profiles import (
    fill_empty_hours,
    roughness,
    usual_counts,
    usual_medians,
    usual_week,
    week_mean,
)
from frigate.demand.cross_check import ASKED_WITH, CrossCheck, cross_check
from frigate.demand.detour_totals import DetourTotals, detour_totals
from frigate.demand.estimate import Demand, calibrate, trip_levels
from frigate.demand.levels import MIN_SENSORS, Estimates, Places, estimate_levels, fit_levels, places_of
from frigate.demand.rerouting import Detours, Rerouted, reroute, sensor_shares_on_detours
from frigate.demand.sensor_shares import SensorShares
from frigate.demand.settings import ClosureResponse, DemandSettings
from frigate.demand.trip_cache import cached_detours, cached_trips
from frigate.demand.tuning import choose_settings
from frigate.errors import CityError, SettingsError
from frigate.roads.feature_cache import features_of
from frigate.roads.line_graph import LineGraph
from frigate.text import three_digits

FOLDS = 4  # parts of the sensors, each estimated from the other parts
MOST_CONTRADICTED = 0.2  # of the sensors
MIN_LEFT = 3  # sensors to calibrate to
NAMED = 5  # sensors in notices


@dataclass(frozen=True)
class TripModel:
    """The trips of a network, and the usual counts to calibrate them to. K hourly bins, N nodes."""

    network: RoadNetwork  # the usual roads, from which detours start
    graph: LineGraph
    sets: tuple[RouteSet, ...]
    usual_counts: NDArray[np.float32]  # [K,N] NaN where there are no readings
    usual_medians: NDArray[np.float32]  # [K,N]
    usual_week: NDArray[np.float32] | None  # [W,N] parts of the week, against the usual counts; None: unknown
    settings: DemandSettings
    step_s: int
    seed: int
    forbidden_turns: NDArray[np.int64] | None
    places: Places | None = None  # needed where the settings have levels

    @classmethod
    def of(
        cls,
        network: RoadNetwork,
        settings: DemandSettings,
        *,
        step_s: int,
        usual_counts: NDArray[np.floating],
        usual_medians: NDArray[np.floating],
        usual_week: NDArray[np.floating] | None = None,
        seed: int,
        forbidden_turns: NDArray[np.int64] | None = None,
        folder: Path | None = None,
        features: NDArray[np.float32] | None = None,
    ) -> TripModel:
        """Sample the trips, or take them from the cache of the city in `folder`.

        `features` [N,R] are the network's raw road features, needed where the settings have levels.
        """
        graph, sets = cached_trips(network, settings, forbidden_turns=forbidden_turns, seed=seed, folder=folder)
        tables = usual_counts.astype(np.float32), usual_medians.astype(np.float32)
        week = None if usual_week is None else usual_week.astype(np.float32)
        places = None if features is None else places_of(network, features)
        return cls(network, graph, sets, *tables, week, settings, step_s, seed, forbidden_turns, places)

    def demand(self, sensors: NDArray[np.bool_]) -> Demand:
        """The demand calibrated to these sensors [N]."""
        usual = self.usual(sensors)
        demand = calibrate(
            self.network,
            self.graph,
            self.sets,
            usual,
            self.settings,
            step_s=self.step_s,
            seed=self.seed,
            medians=self.usual_medians,
            week=self.usual_week,
        )
        levels = self.settings.levels
        rows = np.flatnonzero(demand.sensors)
        if levels is None or self.places is None or not len(rows):
            return demand
        trips = Estimates(demand.level, demand.node_spread)
        estimated = estimate_levels(
            levels,
            self.places,
            rows,
            week_mean(usual)[rows],
            held_out=self._held_out(sensors, trips),
            trips=trips,
            keys=self.graph.node_key,
        )
        return demand.with_levels(estimated)

    def with_fitted_levels(self, sensors: NDArray[np.bool_]) -> TripModel:
        """The same trips, with levels fitted to the counts of these sensors [N]."""
        assert self.places is not None
        usual = self.usual(sensors)
        rows = np.flatnonzero(np.isfinite(usual).all(0))
        levels = None
        if len(rows) >= MIN_SENSORS:
            held_out = self._held_out(sensors, trip_levels(self.sets, usual, self.settings))
            levels = fit_levels(self.places, rows, week_mean(usual)[rows], held_out, self.graph.node_key)
        return replace(self, settings=replace(self.settings, levels=levels))

    def with_fitted_response(
        self, stream: RoadNetworkStream, sensors: NDArray[np.bool_], period: Period | None
    ) -> TripModel:
        """The same trips, with drivers' answer to closures fitted to the counts of these sensors [N]."""
        period = period or (0, stream.num_snapshots)
        sets = detour_sets(stream, period, self.settings.sets)
        settings = replace(self.settings, detour_sets=sets)
        if all(stream.networks[k] is self.network for k in np.unique(stream.network_of[slice(*period)]).tolist()):
            return replace(self, settings=settings)
        as_trips_say = replace(settings, sets=sets, closures=ClosureResponse(1.0, 1.0))
        usual = self.usual(sensors)
        rows = np.flatnonzero(np.isfinite(usual).all(0))
        rows = rows[np.argsort(self.graph.node_key[rows], kind="stable")]
        folds = [rows[fold::FOLDS] for fold in range(FOLDS)]
        demands = []
        for hidden in folds:
            visible = sensors.copy()
            visible[hidden] = False
            demands.append(
                calibrate(
                    self.network,
                    self.graph,
                    self.sets[:sets],
                    self.usual(visible),
                    as_trips_say,
                    step_s=self.step_s,
                    seed=self.seed,
                    medians=self.usual_medians,
                )
            )
        few = replace(self, sets=self.sets[:sets], settings=as_trips_say)

        def changes(network: RoadNetwork) -> NDArray[np.floating]:
            ratio = np.ones(len(sensors))
            for hidden, rerouted in zip(folds, few.rerouted(demands, network), strict=True):
                ratio[hidden] = rerouted.node_change[hidden]
            return ratio

        response = fit_response(stream, period, self.network, sensors, changes, self.settings.closures)
        return replace(self, settings=replace(settings, closures=response))

    def usual(self, sensors: NDArray[np.bool_]) -> NDArray[np.floating]:
        """[K,N] the usual counts of these sensors; NaN elsewhere."""
        return fill_empty_hours(np.where(sensors, self.usual_counts, np.nan))

    def _held_out(self, sensors: NDArray[np.bool_], trips: Estimates) -> Estimates:
        """What the trips say of each node; at a sensor, from a part of the sensors without it."""
        rows = np.flatnonzero(np.isfinite(self.usual(sensors)).all(0))
        rows = rows[np.argsort(self.graph.node_key[rows], kind="stable")]
        level = trips.level.astype(np.float64)
        spread = trips.spread.astype(np.float64)
        for fold in range(FOLDS):
            visible = sensors.copy()
            hidden = rows[fold::FOLDS]
            visible[hidden] = False
            without = trip_levels(self.sets, self.usual(visible), self.settings)
            level[hidden] = without.level[hidden]
            spread[hidden] = without.spread[hidden]
        return Estimates(level, spread)

    def rerouted(self, demands: Sequence[Demand], network: RoadNetwork) -> list[Rerouted]:
        """The effect of another network with the same nodes on the flows of each demand."""
        return reroute(demands, self._detours(network))

    def detour_totals(self, demand: Demand, network: RoadNetwork) -> DetourTotals:
        """What another network with the same nodes means for the trips of a demand."""
        return detour_totals(demand, self._detours(network))

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
    trust_all: bool = False,
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
        Default: what has the lowest error at held-out sensors (`fit_trips`).
    seed : int
        Seed for sampling trips.
    trust_all : bool
        Use every sensor. Default: those that the others contradict, or that are broken by their own record, are left
        out and named in the demand's notices.

    Examples
    --------
    >>> demand = fg.estimate_demand(city)
    >>> demand.road_flow.shape  # (48 hours of weekday and weekend, roads)
    """
    stream = city.stream
    sensors = stream.sensors if sensors is None else np.asarray(sensors)
    if sensors.dtype != bool or sensors.shape != (stream.num_nodes,):
        given = f"{sensors.dtype} of shape {sensors.shape}"
        raise SettingsError(f"sensors: {given}. Give a bool for each of the {stream.num_nodes:,} nodes")
    if not stream.observed[slice(*(period or (0, stream.num_snapshots))), sensors].any():
        where = city.folder or city.name
        raise CityError(f"{where}: no sensor has a reading, and demand is estimated from counts. Add readings")
    doubts = Doubts() if trust_all else doubted_sensors(city, sensors, period=period)
    sensors = doubts.without(sensors)
    if settings is None:
        trips = fit_trips(city, sensors, period=period, seed=seed)
    else:
        trips = trips_of(city, sensors, stream.usual_network(period), settings, period, seed)
    return replace(trips.demand(sensors), notices=doubts.notices)


@dataclass(frozen=True)
class Doubts:
    """Sensors that nothing should be learned from, and notices that name them."""

    rows: tuple[int, ...] = ()
    notices: tuple[str, ...] = ()

    def without(self, sensors: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The other sensors [N]."""
        left = sensors.copy()
        left[list(self.rows)] = False
        return left


def doubted_sensors(city: City, sensors: NDArray[np.bool_], *, period: Period | None = None) -> Doubts:
    """Which of these sensors [N] to leave out of a calibration; as in `estimate_demand`.

    Where too many are contradicted, nobody can say which are right: none is left out for it.
    """
    stream = city.stream
    first, stop = period or (0, stream.num_snapshots)
    rows = np.flatnonzero(sensors & stream.observed[first:stop].any(0))
    faults = find_faults(stream, rows, (first, stop))
    reasons = {row: each.unfit for row, each in zip(rows.tolist(), faults, strict=True) if each.unfit}
    unfit = np.zeros(len(sensors), bool)
    unfit[list(reasons)] = True
    asked = ask_sensors(city, sensors, period=period, unfit=unfit)
    contradicted = np.flatnonzero(asked.contradicted)
    told = []
    if len(contradicted) > MOST_CONTRADICTED * len(rows):
        told.append(
            f"{len(contradicted):,} of {len(rows):,} sensors are contradicted by the others: too many to say which are "
            "right, and all are used. See frigate check."
        )
    else:
        for k in contradicted.tolist():
            counted = f"it counts {_number(asked.counted[k])} a step"
            reasons.setdefault(int(asked.rows[k]), f"{counted}, and the others say {_number(asked.expected[k])}")
    if len(rows) - len(reasons) < MIN_LEFT:
        return Doubts(notices=tuple(told))
    names, _ = city.detectors.at_nodes(stream.node_ids, stream.node_ids)
    for row, reason in sorted(reasons.items()):
        label = f"{stream.node_ids[row]} ({names[row]})" if names[row] else str(stream.node_ids[row])
        told.append(f"Sensor {label} is left out: {reason}.")
    shown = told[:NAMED] + [f"{len(told) - NAMED:,} more are left out."] * (len(told) > NAMED)
    return Doubts(tuple(sorted(reasons)), tuple(shown))


def _number(count: float) -> str:
    return three_digits(float(count)) if count else "0"


def ask_sensors(
    city: City, sensors: NDArray[np.bool_], *, period: Period | None = None, unfit: NDArray[np.bool_] | None = None
) -> CrossCheck:
    """What the sensors [N] say of one another, in a city of counts; those that are `unfit` [N] are not asked."""
    usual = usual_counts(city.stream, sensors, period)
    network = city.stream.usual_network(period)
    trips = TripModel.of(
        network,
        ASKED_WITH,
        step_s=city.stream.step_s,
        usual_counts=usual,
        usual_medians=usual,
        seed=0,
        forbidden_turns=city.forbidden_turns,
        folder=city.folder,
        features=features_of([network.map], city)[0],
    )
    rough = roughness(city.stream, sensors, trips.usual(sensors), period)
    return cross_check(trips, sensors, roughness=rough, unfit=unfit)


def fit_trips(city: City, sensors: NDArray[np.bool_], *, period: Period | None = None, seed: int = 0) -> TripModel:
    """The trips with the settings that fit the city's drivers best, by hiding sensors; as in `estimate_demand`."""
    usual = city.stream.usual_network(period)
    settings = choose_settings(
        city.stream, sensors, period=period, network=usual, forbidden_turns=city.forbidden_turns, seed=seed
    )
    trips = trips_of(city, sensors, usual, settings, period, seed).with_fitted_levels(sensors)
    return trips.with_fitted_response(city.stream, sensors, period)


def trips_of(
    city: City,
    sensors: NDArray[np.bool_],
    network: RoadNetwork,
    settings: DemandSettings,
    period: Period | None,
    seed: int,
) -> TripModel:
    usual = usual_counts(city.stream, sensors, period)
    return TripModel.of(
        network,
        settings,
        step_s=city.stream.step_s,
        usual_counts=usual,
        usual_medians=usual_medians(city.stream, sensors, period),
        usual_week=usual_week(city.stream, sensors, usual, period),
        seed=seed,
        forbidden_turns=city.forbidden_turns,
        folder=city.folder,
        features=features_of([network.map], city)[0],
    )
