"""Runs the model on the store's readings: windows, forecasts, what-ifs and road flows. One call at a time.

The engine keeps only caches between forecasts. Every window comes from the store, so the forecast is the same after a
restart, a late reading or a correction, and in every process. The store counts changes, so a snapshot is read again
only if its readings have changed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from frigate.calendar import hourly_bins, utc_offsets_s, wall_clock
from frigate.city.timeline import Timeline
from frigate.demand.flows import Through, trips_through
from frigate.forecasting.live import Live
from frigate.forecasting.plan import RoadChange
from frigate.forecasting.result import Forecast
from frigate.forecasting.road_flow import closed_roads
from frigate.pages.wire import rounded
from frigate.roads.positions import road_matrix
from frigate.serve.city import ServedCity
from frigate.serve.issued import IssuedForecast, issue
from frigate.serve.past_days import StoredDays
from frigate.serve.store import PERIOD_US, Closure, Store
from frigate.training.run import Run

SUPPORTS = 8  # sensors listed for a node


@dataclass(frozen=True)
class WhatIf:
    """The forecast before and after a change to the roads. H steps, N nodes, E usual roads."""

    issued_s: int
    times_s: NDArray[np.int64]  # [H]
    before: NDArray[np.float32]  # [H,N]
    after: NDArray[np.float32]  # [H,N]
    road_before: NDArray[np.float32]  # [H,E]
    road_after: NDArray[np.float32]  # [H,E]
    notices: tuple[str, ...]
    bands: dict[str, NDArray[np.floating]]  # lower_before, upper_before, lower_after, upper_after [H,N]; {}: not asked


@dataclass(frozen=True)
class SelectLink:
    """The trips on a road, and the kind of day and hour that it is now."""

    through: Through
    hour: int


class Engine:
    """Forecasts a served city from its store."""

    def __init__(self, run: Run, city: ServedCity, store: Store, *, device: str | None = None) -> None:
        self.city = city
        self.store = store
        self.run = run
        self.intervals = "" if run.intervals is None else run.intervals.version
        self.live = Live(run, city.source, sensors=city.sensors, timezone=city.timezone, device=device)
        self._days = StoredDays(city, store, self.live.counted, self._roads_between)
        self._snapshots: dict[int, tuple[tuple[int, tuple[int, ...]], NDArray[np.float32]]] = {}
        self._alone = threading.RLock()
        self._reading = threading.Lock()

    def window(self, issued_s: int, *, count: int | None = None) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The last snapshots before a step boundary: times [T] and readings [T,N], NaN where there is none."""
        city = self.city
        times_s = city.boundaries(issued_s, -(city.past if count is None else count), 0)
        ends_s = [*times_s[1:].tolist(), issued_s]
        with self._reading:
            changes = self.store.reading_changes(int(times_s[0]) * 1_000_000, issued_s * 1_000_000)
            return times_s, np.stack(
                [self._snapshot(a, b, changes) for a, b in zip(times_s.tolist(), ends_s, strict=True)]
            )

    def _snapshot(self, begin_s: int, end_s: int, changes: dict[int, int]) -> NDArray[np.float32]:
        """[N] a snapshot, read again only if its readings have changed."""
        begin_us = begin_s * 1_000_000
        end_us = end_s * 1_000_000
        stamp = tuple(changes.get(period, 0) for period in range(begin_us // PERIOD_US, (end_us - 1) // PERIOD_US + 1))
        known = self._snapshots.get(begin_s)
        if known is None or known[0] != (end_s, stamp):
            snapshot = self.city.snapshot(begin_s, self.store.reading_parts(begin_us, end_us))
            known = self._snapshots[begin_s] = (end_s, stamp), snapshot
        for old in sorted(self._snapshots)[: -2 * (self.city.past + self.city.horizon)]:
            del self._snapshots[old]
        return known[1]

    def forecast(self, issued_s: int, *, now_s: float) -> IssuedForecast:
        """The forecast at a step boundary."""
        with self._alone:
            closures = self._bring_to(issued_s)
            made = self.live.forecast()
            changes = self.live.node_changes(self.live.networks_ahead()) if self.intervals else None
        return issue(self.city, made, closures, now_s=now_s, changes=changes, intervals=self.intervals)

    def with_intervals(
        self, issued: IssuedForecast, level: float, *, rows: NDArray[np.int64] | slice | None = None
    ) -> Forecast:
        """An issued forecast of some nodes, or all, with its intervals at a level in percent.

        Without intervals, which a notice says, if another run made it.
        """
        self.run.require_intervals(level)
        forecast = issued.forecast
        if issued.intervals != self.intervals:
            some = forecast if rows is None else forecast.at(rows)
            unknown = np.full(some.values.shape, np.nan)
            told = "this forecast was made by another run, and its intervals are not known."
            return replace(some, lower=unknown, upper=unknown, level=float(level), notices=(*some.notices, told))
        changes = np.ones(forecast.values.shape) if issued.changes is None else issued.changes.astype(np.float64)
        return self.live.with_band(forecast, changes, level, rows=rows)

    def what_if(self, issued_s: int, change: RoadChange, *, level: float | None = None) -> WhatIf:
        """The forecast at a step boundary as if roads, by their ends, were others. The live state does not change.

        Roads that are already closed stay closed. With a `level` in percent, intervals too.
        """
        if level is not None:
            self.run.require_intervals(level)
        with self._alone:
            self._bring_to(issued_s)
            planned = self.live.networks_ahead()
            shut = np.all([closed_roads(self.city.network, each) for each in planned], axis=0)
            ends = [(str(road[0]), str(road[1])) for road in dict.fromkeys(change.close)]
            gone = [road for road in ends if not shut[self.city.road_of[road]]]
            new = list(dict.fromkeys(change.add))
            asked = [replace(change, close=gone, add=new)] if gone or new else []
            changed = self.live.networks_ahead(changes=asked)
            before = self.live.forecast()
            after = self.live.what_if(changes=asked)
            times_s = before.times_s
            values = [rounded(each.values) for each in (before, after)]
            notices = after.notices
            bands: dict[str, NDArray[np.floating]] = {}
            if level is not None:
                for name, made, of, networks in (
                    ("before", before, values[0], planned),
                    ("after", after, values[1], changed),
                ):
                    sure = self.live.with_band(replace(made, values=of), self.live.node_changes(networks), level)
                    assert sure.lower is not None and sure.upper is not None
                    bands |= {f"lower_{name}": sure.lower, f"upper_{name}": sure.upper}
                    notices = sure.notices
            return WhatIf(
                issued_s=issued_s,
                times_s=times_s,
                before=values[0],
                after=values[1],
                road_before=self.live.road_flow(values[0], planned, times_s),
                road_after=self.live.road_flow(values[1], changed, times_s),
                notices=notices,
                bands={name: band.astype(np.float32) for name, band in bands.items()},
            )

    def _bring_to(self, issued_s: int) -> list[Closure]:
        """Load the window of a step boundary, and the roads as they change, into the live forecast."""
        times_s, values = self.window(issued_s)
        closures = self.store.closures(int(times_s[0]))
        stop_s = int(self.city.boundaries(issued_s, self.city.horizon, self.city.horizon + 1)[0])
        ahead_s = self.city.boundaries(issued_s, 0, self.city.horizon)
        days = self._days.before(int(times_s[0]), np.concatenate([times_s, ahead_s]))
        self.live.restore(int(times_s[0]), values, self._roads(closures, (int(times_s[0]), stop_s)), days)
        return closures

    def _roads_between(self, first_s: int, stop_s: int) -> Timeline:
        """The roads as they were, for snapshots that begin in [first, stop)."""
        return self._roads(self.store.closures(first_s), (first_s, stop_s))

    def _roads(self, closures: Sequence[Closure], span_s: tuple[int, int]) -> Timeline:
        """The roads with these closures, for snapshots and steps that begin in [first, stop)."""
        return Timeline.closing(self.city.network, [each.closed_roads for each in closures], span_s=span_s)

    def road_flow(
        self, times_s: NDArray[np.int64], nodes: NDArray[np.floating], closures: Sequence[Closure]
    ) -> NDArray[np.float32]:
        """[S,E] the flow on the usual roads at S times, from the values `nodes` [S,N], with these closures."""
        roads = self._roads(closures, (int(times_s[0]), int(times_s[-1]) + 1))
        networks = [roads.network_at(time_s) for time_s in times_s.tolist()]
        with self._alone:
            return self.live.road_flow(nodes, networks, times_s)

    def select_link(self, road: tuple[str, str] | str, *, now_s: int) -> SelectLink | None:
        """The trips that use a road; None without demand."""
        if self.live.demand is None:
            return None
        offset_s = int(utc_offsets_s(np.array([now_s]), self.city.timezone)[0])
        hour = int(hourly_bins(wall_clock(np.array([now_s + offset_s])))[0])
        return SelectLink(trips_through(self.live.demand, road), hour)

    def main_sensors(self, row: int) -> list[tuple[int, float]]:
        """The sensors that a node's forecast rests on, most important first: row and distance by road in metres.

        With demand, the sensors that most of its vehicles pass; without, the nearest.
        """
        away_m = np.minimum(*(dijkstra(roads, indices=[row])[0] for roads in self._road_matrices))
        others = self.city.sensors & (np.arange(len(away_m)) != row)
        if self.live.demand is None:
            ranked = np.argsort(np.where(others, away_m, np.inf), kind="stable")
            found = [n for n in ranked[:SUPPORTS].tolist() if others[n] and np.isfinite(away_m[n])]
        else:
            sensor_shares = self.live.demand.sensor_shares
            shares = zip(sensor_shares.sensor[row].tolist(), sensor_shares.share[row].tolist(), strict=True)
            found = [n for n, share in sorted(shares, key=lambda pair: -pair[1]) if share > 0 and others[n]][:SUPPORTS]
        return [(n, float(away_m[n])) for n in found]

    @cached_property
    def _road_matrices(self) -> tuple[csr_array, csr_array]:
        return road_matrix(self.city.network), road_matrix(self.city.network, backward=True)
