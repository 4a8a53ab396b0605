"""The last day of a run's test period: forecasts of every node and road, and what was observed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.baselines.naive import Baseline, TimedBaseline, naive_baselines, own_past_baselines
from frigate.calendar import DAY_S
from frigate.city.network import RoadNetwork
from frigate.evaluation.evaluate import DEMAND, demand_alone, forecaster_of, windows_at_once
from frigate.forecasting.forecaster import Forecaster
from frigate.forecasting.road_flow import closed_roads
from frigate.nn.windows import Edit
from frigate.pages.layers import Band
from frigate.roads.nearest_sensors import hops_to, nearest_sensors
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
    band: Band | None
    road_flow: Floats  # [n,E]
    notices: tuple[str, ...]


@dataclass(frozen=True)
class Day:
    """Consecutive forecasts that cover a day. n snapshots, N nodes, E usual roads."""

    run: RunOnCity
    forecaster: Forecaster
    current: Ints  # the last snapshot that each forecast uses
    forecast: Floats  # [n,N] NaN at absent nodes
    baseline: Floats | None  # [n,N]
    band: Band | None = None  # intervals of the forecast; None: not asked for

    @property
    def network(self) -> RoadNetwork:
        """The usual roads, none closed."""
        return self.forecaster.usual_roads

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
        stream = self.run.city.stream
        rows = self.rows
        return np.where(stream.observed[rows], stream.values[rows], np.nan).astype(np.float32)

    @property
    def has_demand(self) -> bool:
        return self.forecaster.demand is not None

    @cached_property
    def road_flow(self) -> Floats:
        """[n,E] the flow on every road, on the roads that are open then."""
        return self.forecaster.road_flow(self.forecast, self._networks(), self.times_s)

    def closed(self) -> list[list[int]]:
        """[n] rows of the usual roads that were closed at each time."""
        networks = self._networks()
        closed = {
            each.fingerprint: np.flatnonzero(closed_roads(self.network, each)).tolist()
            for each in {network.fingerprint: network for network in networks}.values()
        }
        return [closed[each.fingerprint] for each in networks]

    def main_sensors(self) -> tuple[NDArray[np.int32], Floats]:
        """The sensors [N,M] that a node's forecast rests on most (-1: none), and how near they are [N,M].

        Nearness is, with demand, the share of the node's vehicles that pass the sensor; without, the distance by road
        in metres.
        """
        demand = self.forecaster.demand
        if demand is None:
            sensor, away_m = nearest_sensors(self.network, self.run.split.seen, count=SUPPORTS, cutoff_m=CUTOFF_M)
            return sensor.astype(np.int32), np.where(sensor >= 0, away_m, 0).astype(np.float32)
        shares = demand.sensor_shares
        best = np.argsort(-shares.share, axis=1, kind="stable")[:, :SUPPORTS]
        share = np.take_along_axis(shares.share, best, axis=1)
        sensor = np.where(share > 0, np.take_along_axis(shares.sensor, best, axis=1), -1)
        return sensor.astype(np.int32), share.astype(np.float32)

    def close(self, shut: NDArray[np.bool_]) -> ClosedDay:
        """Forecast the day as if these usual roads [E] were closed throughout. Roads already closed stay closed."""

        ids = self.network.node_ids
        ends = (ids[end[shut]].tolist() for end in (self.network.senders, self.network.receivers))
        roads = list(zip(*ends, strict=True))

        def edit(recorded: RoadNetwork, _: int) -> RoadNetwork:
            return recorded.close(roads, missing_ok=True)

        level = None if self.band is None else self.band.level
        made, band = _forecasts(self.forecaster, self.current, edit=edit, level=level)
        networks = self._networks(edit)
        views = self.forecaster.windows().views
        notices = dict.fromkeys(notice for network in networks for notice in views.view(network).notices)
        flow = self.forecaster.road_flow(made, networks, self.times_s)
        return ClosedDay(np.flatnonzero(shut), made, band, flow, tuple(notices))

    def _networks(self, edit: Edit | None = None) -> list[RoadNetwork]:
        """[n] the network at each forecast snapshot."""
        each = (self.forecaster.networks_ahead(current, edit=edit) for current in self.current.tolist())
        return [network for of_window in each for network in of_window]


def forecast_day(run: RunOnCity, *, baseline: str = "", level: float | None = None, device: str | None = None) -> Day:
    """Forecast the last day of the test period (or all of a shorter one), each step once.

    Parameters
    ----------
    run
        A trained run, on its city.
    baseline
        Name of a baseline to forecast the day with too; "" for none. LightGBM is skipped: it would have to be refitted.
    level
        Of the intervals of its forecasts, in percent; None: none.
    device
        "cpu" or "cuda". Default: cuda if available.
    """
    stream = run.city.stream
    split = run.split
    task = run.settings.task
    count = max(1, DAY_S // (stream.step_s * task.horizon))
    last = split.test[1] - 1 - task.horizon
    current = np.arange(last, split.test[0] + task.past - 2, -task.horizon)[:count][::-1].copy()
    forecaster = forecaster_of(run, device)
    own_past, timed = own_past_baselines(stream, split)
    naive: dict[str, Baseline] = {**naive_baselines(stream, split), **own_past, DEMAND: demand_alone}
    beside: TimedBaseline | None = timed.get(baseline)
    if baseline in naive:
        beside = lambda batch, _: naive[baseline](batch)  # noqa: E731
    forecast, band = _forecasts(forecaster, current, level=level)
    other = None if beside is None else _baseline(forecaster, current, beside)
    return Day(run, forecaster, current, forecast, other, band)


def _ahead(current: Ints, horizon: int) -> Ints:
    return np.asarray((current[:, None] + np.arange(1, horizon + 1)).ravel())


def _forecasts(
    forecaster: Forecaster, current: Ints, *, edit: Edit | None = None, level: float | None = None
) -> tuple[Floats, Band | None]:
    """[n,N] the forecasts of these windows, in batches; with a level, their intervals too."""
    parts = [forecaster.values(some, edit=edit) for some in _batches(forecaster, current)]
    made = np.concatenate(parts)
    flat = made.reshape(-1, made.shape[-1])
    if level is None:
        return flat, None
    lower, upper = (end.reshape(flat.shape) for end in forecaster.bands(current, made, level, edit=edit))
    return flat, Band(lower, upper, level)


@torch.inference_mode()
def _baseline(forecaster: Forecaster, current: Ints, baseline: TimedBaseline) -> Floats:
    """[n,N] a baseline's forecasts of these windows; counts are clamped at 0."""
    least = 0.0 if forecaster.stream.quantity == "count" else -np.inf
    made = []
    for some in _batches(forecaster, current):
        batch = forecaster.batch(some)
        at = some if batch.window_of is None else some[batch.window_of.numpy()]
        values = batch.join(baseline(batch, at)).clamp(min=least).float().cpu().numpy()
        made.append(values.reshape(-1, values.shape[-1]))
    present = [network.present for at in current.tolist() for network in forecaster.networks_ahead(at)]
    return np.where(np.stack(present), np.concatenate(made), np.float32(np.nan))


def _batches(forecaster: Forecaster, current: Ints) -> list[Ints]:
    size = min(MAX_WINDOWS, windows_at_once(forecaster.stream, forecaster.run.settings.task, forecaster.predictor))
    return [current[first : first + size] for first in range(0, len(current), size)]


def pick_nodes(day: Day) -> dict[int, str]:
    """Example nodes with the reason: a busy, a typical and a quiet one, and the one farthest from a sensor."""
    stream = day.run.city.stream
    split = day.run.split
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
