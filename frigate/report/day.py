"""The last day of a run's test period: forecasts of every node and road, and what was observed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.baselines.naive import Forecaster, TimedForecaster, naive_baselines, own_past_baselines
from frigate.data.network import RoadNetwork
from frigate.data.stream import DAY_S
from frigate.demand.estimate import Demand
from frigate.demand.rerouting import Rerouted
from frigate.evaluation.evaluate import DEMAND, demand_alone, windows_at_once
from frigate.forecasting.forecast import about_detours
from frigate.graph.nearest_sensors import hops_to, nearest_sensors
from frigate.nn.batch import Batch, Windows
from frigate.nn.demand_tables import DemandTables
from frigate.nn.device import best_device
from frigate.nn.scaling import build_topologies
from frigate.serve.map_data import closed_roads, road_flows
from frigate.training.run import RunOnCity

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

SUPPORTS = 4  # sensors listed for a node
CUTOFF_M = 20_000.0  # and how far away they may be
MAX_WINDOWS = 4  # per batch


@dataclass(frozen=True)
class ClosedDay:
    """The same day with roads closed throughout."""

    roads: Ints  # rows of the usual roads
    forecast: Floats  # [n,N]
    road_flow: Floats  # [n,E]
    notices: tuple[str, ...]


@dataclass(frozen=True)
class Day:
    """Consecutive forecasts that cover a day. n snapshots, N nodes, E usual roads."""

    run: RunOnCity
    current: Ints  # the last snapshot that each forecast uses
    forecast: Floats  # [n,N] NaN at absent nodes
    baseline: Floats | None  # [n,N]
    device: str | None

    @property
    def network(self) -> RoadNetwork:
        """The usual roads, none closed."""
        return self.run.city.stream.main_network

    @cached_property
    def rows(self) -> Ints:
        """[n] the forecast snapshots."""
        return _ahead(self.current, self.run.settings.task.horizon)

    @property
    def times_s(self) -> Ints:
        """[n] seconds since 1970 UTC."""
        return np.asarray(self.run.city.stream.times_s[self.rows])

    @property
    def observed(self) -> Floats:
        """[n,N] NaN where there is no reading."""
        stream, rows = self.run.city.stream, self.rows
        return np.where(stream.observed[rows], stream.values[rows], np.nan).astype(np.float32)

    @cached_property
    def demand(self) -> Demand | None:
        """The demand estimated from the run's sensors; None for a model without demand."""
        return None if self.run.scaling.demand is None else self.run.trips.demand(self.run.split.seen)

    @cached_property
    def road_flow(self) -> Floats:
        """[n,E] the flow on every road, given the roads open when each forecast was made."""
        flow = np.zeros((len(self.rows), self.network.num_edges), np.float32)
        for topology, _, here in self._by_topology():
            flow[here] = self._flow_on(self.run.city.stream.topologies[topology], self.forecast[here], here)
        return flow

    def closed(self) -> list[list[int]]:
        """[n] rows of the usual roads that were closed at each time."""
        stream = self.run.city.stream
        known = stream.topology_of[self.rows].tolist()
        closed = {
            each: np.flatnonzero(closed_roads(self.network, stream.topologies[each])).tolist() for each in set(known)
        }
        return [closed[each] for each in known]

    def leans_on(self) -> tuple[NDArray[np.int32], Floats]:
        """The sensors [N,M] that each node's forecast relies on (-1: none), and how near they are [N,M].

        Nearness is, with demand, the share of the node's vehicles that pass the sensor; without, the distance by road
        in metres.
        """
        if self.demand is None:
            sensor, away_m = nearest_sensors(self.network, self.run.split.seen, count=SUPPORTS, cutoff_m=CUTOFF_M)
            return sensor.astype(np.int32), np.where(sensor >= 0, away_m, 0).astype(np.float32)
        sensor_shares = self.demand.sensor_shares
        best = np.argsort(-sensor_shares.share, axis=1, kind="stable")[:, :SUPPORTS]
        share = np.take_along_axis(sensor_shares.share, best, axis=1)
        sensor = np.where(share > 0, np.take_along_axis(sensor_shares.sensor, best, axis=1), -1)
        return sensor.astype(np.int32), share.astype(np.float32)

    def close(self, shut: NDArray[np.bool_]) -> ClosedDay:
        """Forecast the day as if these usual roads [E] were closed throughout. Roads already closed stay closed."""
        made, flow, notices = np.copy(self.forecast), np.copy(self.road_flow), dict[str, None]()
        for topology, windows, here in self._by_topology():
            recorded = self.run.city.stream.topologies[topology]
            shut_then = shut & ~closed_roads(self.network, recorded)
            ids, ends = self.network.node_ids, (self.network.senders[shut_then], self.network.receivers[shut_then])
            now = recorded.close(list(zip(*(ids[end].tolist() for end in ends), strict=True)))
            made[here], more = self._forecast_on(now, self.current[windows])
            flow[here] = self._flow_on(now, made[here], here)
            notices |= dict.fromkeys(more)
        return ClosedDay(np.flatnonzero(shut), made, flow, tuple(notices))

    def _by_topology(self) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[np.bool_]]]:
        """For each topology: its index, which forecasts were made on it, and which snapshots those cover."""
        made_on = self.run.city.stream.topology_of[self.current]
        for topology in np.unique(made_on).tolist():
            yield topology, made_on == topology, np.repeat(made_on == topology, self.run.settings.task.horizon)

    def _flow_on(self, now: RoadNetwork, values: Floats, here: NDArray[np.bool_]) -> Floats:
        stream, rows = self.run.city.stream, self.rows[here]
        return road_flows(
            values,
            self.network,
            closed=closed_roads(self.network, now),
            demand=self.demand,
            rerouted=self._rerouted(now),
            local_s=stream.times_s[rows] + stream.utc_offset_s[rows],
            step_s=stream.step_s,
        )

    def _rerouted(self, now: RoadNetwork) -> Rerouted | None:
        return None if self.demand is None else self.run.trips.rerouted([self.demand], now)[0]

    def _forecast_on(self, now: RoadNetwork, current: Ints) -> tuple[Floats, list[str]]:
        """Forecasts as if `now` were the roads in every snapshot, from readings made on the roads as recorded."""
        run, device = self.run, best_device(self.device)
        stream, task = run.city.stream, run.settings.task
        topologies, notices = build_topologies([now], run.scaling, sensors=run.split.seen, city=run.city)
        windows, tables = Windows(stream.on(now), topologies, device), None
        if self.demand is not None:
            networks = [*stream.topologies, now]
            rerouted = [each for each in map(self._rerouted, networks) if each is not None]
            roads = torch.from_numpy(np.array([[each.node_change for each in rerouted]]))
            shares = [[run.trips.sensor_shares(self.demand, now)]]
            tables = DemandTables.of([self.demand], device, step_s=stream.step_s, roads=roads, shares=shares)
            notices += about_detours(rerouted[-1], now)

        def cut(some: Ints) -> Batch:
            batch = _batch(run, windows, some)
            if tables is None:
                return batch
            before = torch.from_numpy(stream.topology_of[some[:, None] + np.arange(1 - task.past, 1)]).to(device)
            last = torch.full((len(some),), len(stream.topologies), device=device)
            return tables.apply(batch, torch.zeros_like(last), before, last)

        predictor = run.predictor(device)
        made = _forecasts(run, current, cut, {"model": lambda batch, _: predictor(batch)})["model"]
        return np.where(now.present, made, np.float32(np.nan)), notices


def forecast_day(run: RunOnCity, *, baseline: str = "", device: str | None = None) -> Day:
    """Forecast the last day of the test period (or all of a shorter one), each step once.

    Parameters
    ----------
    run
        A trained run, on its city.
    baseline
        Name of a baseline to forecast the day with too; "" for none. LightGBM is skipped: it would have to be refitted.
    device
        "cpu" or "cuda". Default: cuda if available.
    """
    stream, split, task, at = run.city.stream, run.split, run.settings.task, best_device(device)
    count = max(1, DAY_S // (stream.step_s * task.horizon))
    last = split.test[1] - 1 - task.horizon
    current = np.arange(last, split.test[0] + task.past - 2, -task.horizon)[:count][::-1].copy()
    windows, predictor = run.windows(at), run.predictor(at)
    own_past, timed = own_past_baselines(stream, split)
    naive: dict[str, Forecaster] = {**naive_baselines(stream, split), **own_past, DEMAND: demand_alone}
    asked: dict[str, TimedForecaster] = {"model": lambda batch, _: predictor(batch)}
    if baseline in naive:
        asked["baseline"] = lambda batch, _: naive[baseline](batch)
    elif baseline in timed:
        asked["baseline"] = timed[baseline]
    made = _forecasts(run, current, lambda some: _batch(run, windows, some), asked)
    present = np.array([network.present for network in stream.topologies])[stream.topology_of[current]]
    there = np.repeat(present, task.horizon, axis=0)
    forecasts = {name: np.where(there, values, np.float32(np.nan)) for name, values in made.items()}
    return Day(run, current, forecasts["model"], forecasts.get("baseline"), device)


def _ahead(current: Ints, horizon: int) -> Ints:
    return np.asarray((current[:, None] + np.arange(1, horizon + 1)).ravel())


def _batch(run: RunOnCity, windows: Windows, current: Ints) -> Batch:
    task, inputs = run.settings.task, torch.from_numpy(run.split.seen).to(windows.device)
    return windows.batch(current, past=task.past, horizon=task.horizon, inputs=inputs)


@torch.inference_mode()
def _forecasts(
    run: RunOnCity, current: Ints, cut: Callable[[Ints], Batch], asked: Mapping[str, TimedForecaster]
) -> dict[str, Floats]:
    """[n,N] for each forecaster, computed in batches; counts are clamped at 0."""
    least = 0.0 if run.city.stream.quantity == "count" else -np.inf
    size = min(MAX_WINDOWS, windows_at_once(run, run.predictor(torch.device("cpu"))))
    made: dict[str, list[Floats]] = {name: [] for name in asked}
    for first in range(0, len(current), size):
        some = current[first : first + size]
        batch = cut(some)
        for name, forecaster in asked.items():
            values = forecaster(batch, some).clamp(min=least).float().cpu().numpy()
            made[name].append(values.reshape(-1, values.shape[-1]))
    return {name: np.concatenate(parts) for name, parts in made.items()}


def pick_nodes(day: Day) -> dict[int, str]:
    """Example nodes with the reason: a busy, a typical and a quiet one, and the one farthest from a sensor."""
    stream, split = day.run.city.stream, day.run.split
    nodes = split.unseen if split.unseen.any() else split.seen
    coverage = stream.observed[day.rows].mean(axis=0)
    enough = (coverage > 0) & (coverage >= 0.5 * coverage[nodes].max())
    able = np.flatnonzero(nodes & day.run.city.network.present & enough)
    if not len(able):
        return {}
    train = slice(*split.train)
    seen = stream.observed[train][:, able]
    level = np.where(seen, stream.values[train][:, able], 0).sum(0) / np.maximum(seen.sum(0), 1)
    ranked = able[np.argsort(-level, kind="stable")].tolist()
    hops = hops_to(day.run.city.network, split.seen)
    ranks = ((0.85, "quiet"), (0.5, "typical"), (0.05, "busy"))
    picked = {ranked[round(share * (len(ranked) - 1))]: reason for share, reason in ranks}
    rest = [row for row in ranked if row not in picked]
    if rest and split.unseen.any():
        picked[max(rest, key=lambda row: int(hops[row]))] = "far from sensors"
    return {row: f"{picked[row]}, {_distance(int(hops[row]))}" for row in ranked if row in picked}


def _distance(hops: int) -> str:
    if hops <= 0:
        return "has a sensor" if hops == 0 else "no road to a sensor"
    return f"{hops} road{'s' * (hops > 1)} from a sensor"
