"""Runs the model on the store's readings: windows, forecasts, what-ifs and road flows. One call at a time.

The engine keeps only caches between forecasts. Every window comes from the store, so the forecast is the same after a
restart, a late reading or a correction, and in every process. The store counts changes, so a snapshot is read again
only if its readings have changed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from frigate.data.network import RoadNetwork
from frigate.data.stream import utc_offsets_s
from frigate.demand.count_profiles import bins_at
from frigate.demand.flows import trips_through
from frigate.demand.rerouting import Rerouted
from frigate.forecasting.forecast import edit_network
from frigate.forecasting.live import Live
from frigate.graph.positions import road_matrix
from frigate.serve.city import ServedCity
from frigate.serve.issued import Issued, rounded
from frigate.serve.map_data import closed_roads, road_flows
from frigate.serve.store import PERIOD_US, Closure, Store
from frigate.training.run import Run

READ_US = 30 * 1_000_000  # time span of readings held in memory at once
TRIP_ENDS = 40  # origins, and destinations, that a select link lists
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


@dataclass(frozen=True)
class SelectLink:
    """The trips on a road in one hour, and the rows and shares of the nodes where they start and end, largest first."""

    vehicles_per_hour: float
    origins: list[tuple[int, float]]
    destinations: list[tuple[int, float]]


class Engine:
    """Forecasts a served city from its store."""

    def __init__(self, run: Run, city: ServedCity, store: Store, *, device: str | None = None) -> None:
        self.city, self.store = city, store
        self.live = Live(run, city.source, sensors=city.sensors, timezone=city.timezone, device=device)
        self._rerouted: dict[str, Rerouted | None] = {}  # by network; most recently used last
        self._snapshots: dict[int, tuple[tuple[int, tuple[int, ...]], NDArray[np.float32]]] = {}
        self._alone, self._reading = threading.RLock(), threading.Lock()

    @property
    def has_demand(self) -> bool:
        return self.live.demand is not None

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
        begin_us, end_us = begin_s * 1_000_000, end_s * 1_000_000
        stamp = tuple(changes.get(period, 0) for period in range(begin_us // PERIOD_US, (end_us - 1) // PERIOD_US + 1))
        known = self._snapshots.get(begin_s)
        if known is None or known[0] != (end_s, stamp):
            parts = (
                self.store.readings(at_us, min(at_us + READ_US, end_us)) for at_us in range(begin_us, end_us, READ_US)
            )
            known = self._snapshots[begin_s] = (end_s, stamp), self.city.snapshot(begin_s, parts)
        for old in sorted(self._snapshots)[: -2 * (self.city.past + self.city.horizon)]:
            del self._snapshots[old]
        return known[1]

    def forecast(self, issued_s: int, *, now_s: float) -> Issued:
        """The forecast at a step boundary."""
        with self._alone:
            closures = self._bring_to(issued_s)
            made = self.live.forecast()
        held = [closure for closure in closures if closure.active(issued_s)]
        return Issued(
            issued_s=issued_s,
            made_s=now_s,
            version=self.city.version,
            times_s=made.times_s,
            values=rounded(made.values),
            closed=tuple((closure.id, closure.source, closure.target) for closure in held),
            notices=made.notices,
        )

    def what_if(self, issued_s: int, *, close: Sequence[tuple[str, str]], add: Sequence[tuple[str, str]]) -> WhatIf:
        """The forecast at a step boundary as if these roads were closed and added. The live state does not change.

        Roads that are already closed stay closed.
        """
        with self._alone:
            held = [each for each in self._bring_to(issued_s) if each.active(issued_s)]
            closed = {(each.source, each.target) for each in held}
            now = self.live.network
            network = edit_network(
                now,
                close=[_row_ids(self.city, road) for road in dict.fromkeys(close) if road not in closed],
                add=[_row_ids(self.city, road) for road in dict.fromkeys(add)],
            )
            before, after = self.live.forecast(), self.live.what_if(network)
            times_s, values = before.times_s, [rounded(each.values) for each in (before, after)]
            return WhatIf(
                issued_s=issued_s,
                times_s=times_s,
                before=values[0],
                after=values[1],
                road_before=self.road_flow(times_s, values[0], now),
                road_after=self.road_flow(times_s, values[1], network),
                notices=after.notices,
            )

    def _bring_to(self, issued_s: int) -> list[Closure]:
        """Load the window of a step boundary, and the roads of each snapshot, into the live forecast.

        A snapshot gets the closures active at its end: a road closed a minute ago is closed in the forecast.
        """
        times_s, values = self.window(issued_s)
        closures = self.store.closures(int(times_s[0]))
        ends_s = [*times_s[1:].tolist(), issued_s]
        networks = [(int(t), self.network_at(end_s, closures)) for t, end_s in zip(times_s, ends_s, strict=True)]
        changes = [
            each
            for k, each in enumerate(networks)
            if k == 0 or each[1].fingerprint != networks[k - 1][1].fingerprint
        ]  # fmt: skip
        self.live.restore(int(times_s[0]), values, changes)
        return closures

    def network_at(self, time_s: float, closures: Sequence[Closure]) -> RoadNetwork:
        return self.city.closed([(each.source, each.target) for each in closures if each.active(time_s)])

    def network_of(self, issued: Issued) -> RoadNetwork:
        return self.city.closed([(source, target) for _, source, target in issued.closed])

    def road_flow(
        self, times_s: NDArray[np.int64], nodes: NDArray[np.floating], network: RoadNetwork
    ) -> NDArray[np.float32]:
        """[S,E] the flow on the usual roads at S times, from the values `nodes` [S,N] on a network."""
        city, demand = self.city, self.live.demand
        return road_flows(
            nodes,
            city.network,
            closed=closed_roads(city.network, network),
            demand=demand,
            rerouted=None if demand is None else self._change(network),
            local_s=times_s + utc_offsets_s(times_s, city.timezone),
            step_s=city.step_s,
        )

    def _change(self, network: RoadNetwork) -> Rerouted | None:
        key = network.fingerprint
        with self._alone:
            found = self._rerouted.pop(key) if key in self._rerouted else self.live.rerouted(network)
            self._rerouted[key] = found
            for old in list(self._rerouted)[:-4]:
                del self._rerouted[old]
        return found

    def select_link(self, road: tuple[str, str], *, now_s: int) -> SelectLink | None:
        """The trips that use a road; None without demand."""
        demand, network = self.live.demand, self.city.network
        if demand is None:
            return None
        through = trips_through(demand, network, road, step_s=self.city.step_s)
        offset_s = int(utc_offsets_s(np.array([now_s]), self.city.timezone)[0])
        now = int(bins_at(np.array([now_s + offset_s]))[0])
        total = max(float(through.starting.sum()), 1e-12)
        ends = [
            np.bincount(at, weights=daily, minlength=network.num_nodes) / total
            for at, daily in ((network.senders, through.starting), (network.receivers, through.ending))
        ]
        ranked = [[(int(n), float(share[n])) for n in np.argsort(-share)[:TRIP_ENDS] if share[n] > 0] for share in ends]
        return SelectLink(float(through.road_flow[now, through.row]), *ranked)

    def leans_on(self, row: int) -> list[tuple[int, float]]:
        """The sensors that a node's forecast relies on, most important first: row and distance by road in metres.

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


def _row_ids(city: ServedCity, road: tuple[str, str]) -> tuple[str | int, str | int]:
    """The ends of a road as node ids. Unknown names are left as they are, for the network to refuse."""
    ids = city.network.node_ids.tolist()
    a, b = (ids[city.row_of[end]] if end in city.row_of else end for end in road)
    return a, b
