"""Live forecasts: the encodings of past snapshots are cached, so that a new snapshot costs one GNN pass instead of T.

In both presets a snapshot's encoding z depends only on its own readings, topology and calendar. Only the snapshots for
which one of these changes are encoded again: a late reading affects one snapshot, a closure those that start when it
begins or later. What depends on the whole window is computed for every forecast from the cache: the moments, and the
LSTM over all T snapshots, whose initial state comes from the oldest z and the current time.

The forecast equals that of a full forward pass. In fp32 they differ by rounding, because a matrix product with fewer
rows may sum in a different order: within 1e-5 of the largest forecast, or 1e-5 of the unit. On a GPU both are in bf16.

Device memory in bytes: T N (4 D + 5) while the roads do not change, at most three times that when they do, with 2 D
instead of 4 D under bf16; plus, for each topology in use, the gates (4 E per layer) and the kernel mean's weights. Host
memory: T N * 5. Chengdu, 3,192 nodes, T = 12, D = 64: 10 MB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.calendar import Steps, local_iso, utc_offsets_s, wall_clock
from frigate.city.city import City
from frigate.city.network import NodeId, Road, RoadNetwork, shut_nodes
from frigate.city.stream import make_stream
from frigate.city.timeline import Timeline
from frigate.demand.estimate import Demand
from frigate.demand.recent_days import PastDays
from frigate.demand.rerouting import Rerouted
from frigate.errors import CityError, SettingsError
from frigate.forecasting.edits import forecast_nodes
from frigate.forecasting.forecaster import NO_READING, Forecaster, short_window, split_on
from frigate.forecasting.plan import RoadChange, RoadPlan
from frigate.forecasting.result import Forecast, make_forecast, usable
from frigate.nn.forecast_model import RoadWeights
from frigate.nn.ops.cuda.recording import RecordedFunction
from frigate.nn.windows import Layout, RoadsOfWindows, roads_of_windows
from frigate.training.run import Run

ALWAYS_S = -(2**62)  # earlier than any snapshot
MAX_RECORDED = 4
WEIGHTS_KEPT = 32  # networks
WINDOWS_KEPT = 3  # encodings of so many windows: the roads as they are, as they were, and as they might be


@dataclass(frozen=True)
class _Snapshot:
    """The readings of one snapshot. Arrays are never modified: a late reading creates a new snapshot."""

    time_s: int
    values: NDArray[np.float32]  # [N] 0 where not observed
    observed: NDArray[np.bool_]  # [N] only at sensors

    def on(self, network: RoadNetwork) -> _Snapshot:
        """The snapshot without readings at nodes that were absent from the network it was measured on."""
        if not (self.observed & ~network.present).any():
            return self
        observed = self.observed & network.present
        return _Snapshot(self.time_s, np.where(observed, self.values, 0), observed)

    def same_readings(self, other: _Snapshot) -> bool:
        if self is other:
            return True
        return np.array_equal(self.observed, other.observed) and np.array_equal(self.values, other.values)


@dataclass(frozen=True)
class _Encoded:
    """A snapshot on the device, and its encoding."""

    snapshot: _Snapshot  # the readings that were encoded
    values: Tensor  # [N]
    observed: Tensor  # [N] bool
    clock: Tensor  # [3]
    z: Tensor  # [N,D]


# What an encoding depends on besides readings: its time, the network that messages pass on, and the one measured on
_Key = tuple[int, str, str]


class Live:
    """Collects the readings of one network as they arrive, and forecasts at any time. Not thread-safe.

    Step, unit and quantity are the run's. The model is copied, so further training has no effect here. Anchors are
    located on the first network and then fixed.

    Parameters
    ----------
    run : Run
        The run of a Frigate model.
    network : RoadNetwork or City, optional
        The initial roads; for a city, those of its last snapshot. Default: the city the run was trained on, from its
        folder.
    sensors : [N] bool or node ids, optional
        The nodes that may send readings; readings from others are ignored and counted in `left_out`. Default: the
        seen nodes of the run's split.
    timezone : str, optional
        Time zone of the calendar. Default: as in training.
    device : str, optional
        "cpu" or "cuda". Default: cuda if available.
    """

    def __init__(
        self,
        run: Run,
        network: RoadNetwork | City | None = None,
        *,
        sensors: NDArray[np.bool_] | Iterable[NodeId] | None = None,
        timezone: str | None = None,
        device: str | None = None,
    ) -> None:
        if not run.model.encodes_snapshots:
            raise SettingsError(
                f'a live forecast needs a Frigate model; the run\'s is "{run.settings.model.preset}", which encodes no '
                "snapshot by itself. Use frigate.Forecaster"
            )
        source = run.open_city() if network is None else network
        now = source.network if isinstance(source, City) else source
        self._sensors = split_on(run, now)[0] if sensors is None else _sensors(now, sensors)
        city = source if isinstance(source, City) else _without_readings(run, now)
        self._forecaster = Forecaster(run, city, sensors=self._sensors, device=device)
        self.device = self._forecaster.device
        self.encoded = 0  # number of snapshots encoded so far
        self.left_out = 0  # number of readings ignored because their node is not a sensor
        self._trained_on = run.trained_on
        self._task = run.settings.task
        self._views = self._forecaster.windows().views
        self._predictor = self._forecaster.predictor
        self._model = self._predictor.model
        self._timezone = run.trained_on.timezone if timezone is None else timezone
        self._window: deque[_Snapshot] = deque(maxlen=self._task.past)
        self._encodings: dict[_Key, _Encoded] = {}  # most recently used last
        self._weights: dict[str, RoadWeights] = {}  # by network; most recently used last
        self._recorded: dict[tuple[Any, ...], tuple[RecordedFunction, object]] = {}  # each holds GPU memory
        self._node_ids = now.node_ids
        self._days = self._forecaster.windows().days
        self._recent = self._views.recent_days(self._days)
        self._days_until_s = city.stream.end_s if city.stream.num_snapshots else ALWAYS_S
        self._left: list[_Snapshot] = []  # the window since, and not yet among the days
        self._roads = Timeline.of(now)

    @property
    def network(self) -> RoadNetwork:
        """The network of the last snapshot; before any snapshot, the initial network."""
        return self._roads.network_at(self._window[-1].time_s if self._window else ALWAYS_S)

    @property
    def usual_roads(self) -> RoadNetwork:
        """The roads that are open most of the time; detours start from them."""
        return self._forecaster.usual_roads

    @property
    def times_s(self) -> NDArray[np.int64]:
        """Start of each snapshot in the window (at most T), in seconds since 1970 UTC."""
        return np.array([snapshot.time_s for snapshot in self._window], np.int64)

    def push(self, time_s: int, values: NDArray[np.floating], observed: NDArray[np.bool_] | None = None) -> None:
        """Add one or more new snapshots. Snapshots skipped since the last one count as having no readings.

        Parameters
        ----------
        time_s : int
            Start of the first snapshot, in seconds since 1970 UTC.
        values : [N] or [S,N]
            NaN means no reading.
        observed : same shape, bool, optional
            Which values are readings. Default: all finite ones.
        """
        past = self._task.past
        rows = np.atleast_2d(_numbers(values))
        there = np.isfinite(rows) if observed is None else np.atleast_2d(np.asarray(observed, bool)) & np.isfinite(rows)
        N = len(self._sensors)
        if rows.shape[1:] != (N,) or there.shape != rows.shape:
            raise CityError(f"values are {np.shape(values)}, observed {there.shape}. Give [N] or [S,N], N = {N} nodes")
        self._refuse_time(time_s)
        if self._window and time_s <= (last_s := self._window[-1].time_s):
            raise CityError(
                f"snapshot {self._at(time_s)} is not after the last one, {self._at(last_s)}. "
                "Give readings of an older snapshot to `late`"
            )
        if len(rows) == 0:
            return
        before = list(self._window)
        self.left_out += int((there & ~self._sensors).sum())
        there = there & self._sensors
        if self._window:
            nothing = _Snapshot(0, np.zeros(N, np.float32), np.zeros(N, bool))
            skipped = self._steps(time_s).times_s(-past, 0)
            self._window.extend(replace(nothing, time_s=t) for t in skipped.tolist() if t > last_s)
        starts_s = self._steps(time_s).times_s(0, len(rows)).tolist()
        new = [
            _Snapshot(starts_s[k], np.where(there[k], rows[k], np.float32(0)), there[k].copy())
            for k in range(len(rows))
        ]
        self._window.extend(new)
        self._leave([*before, *new])
        self._forget()

    def restore(self, time_s: int, values: NDArray[np.floating], roads: Timeline, days: PastDays | None = None) -> None:
        """Replace the whole window, for example after a restart. Unchanged snapshots are not encoded again.

        Parameters
        ----------
        time_s, values
            The snapshots, as in `push`.
        roads
            The roads over time.
        days
            What was counted before the window, at the nodes of `counted`. Default: what was known of it.
        """
        for network in roads.networks:
            self._checked(network)
        before = [snapshot for snapshot in self._window if snapshot.time_s < time_s]
        self._roads = roads
        self._window.clear()
        self.push(time_s, values)
        if days is None:
            self._leave(before)
        else:
            self._left.clear()
            self._know(days)

    @property
    def counted(self) -> NDArray[np.int64]:
        """The rows of the sensors whose days before are asked; none without demand."""
        return self._days.sensors

    def _leave(self, snapshots: Sequence[_Snapshot]) -> None:
        """Keep what snapshots that are no longer in the window say of the days, once a slot of the day is over."""
        first_s = self._window[0].time_s
        usual = self._forecaster.usual_roads
        for snapshot in snapshots:
            if self._days_until_s <= snapshot.time_s < first_s and len(self._days.sensors):
                shut = shut_nodes(usual, self._roads.network_at(snapshot.time_s))
                self._left.append(replace(snapshot, observed=snapshot.observed & ~shut))
                self._days_until_s = snapshot.time_s + 1
        times_s = np.array([*(snapshot.time_s for snapshot in self._left), first_s], np.int64)
        slots = self._days.slots_of(times_s + utc_offsets_s(times_s, self._timezone))
        over = int((slots[:-1] < slots[-1:]).sum())
        if over and slots[over - 1] < slots[-1]:
            values, there = (
                np.stack([getattr(each, name) for each in self._left[:over]])[:, self._days.sensors]
                for name in ("values", "observed")
            )
            local_s = times_s[:over] + utc_offsets_s(times_s[:over], self._timezone)
            self._know(self._days.adding(local_s, values, there))
            del self._left[:over]

    def _know(self, days: PastDays) -> None:
        if days is not self._days:
            self._days = days
            self._recent = self._views.recent_days(days)
            self._encodings.clear()

    def _now_usual(self, layout: Layout, times_s: NDArray[np.int64], current_s: NDArray[np.int64]) -> Tensor | None:
        """[B,S,N] as `DemandTables.now_usual`, of snapshots [B,S] of windows whose last one is current [B,1]."""
        if self._recent is None:
            return None
        local_s, current = (each + utc_offsets_s(each, self._timezone) for each in (times_s, current_s))
        reach_s = (self._task.past - 1) * self._trained_on.step_s
        return layout.now_usual(self._recent.asked(local_s, current, reach_s=reach_s))

    def rerouted(self, network: RoadNetwork) -> Rerouted | None:
        """The effect of a network's roads on the usual flows; None without demand, or if the roads are as usual."""
        return self._forecaster.rerouted(network)

    def node_changes(self, networks: Sequence[RoadNetwork]) -> NDArray[np.float64]:
        """[H,N] the usual flow on each of these networks, relative to that on the usual roads."""
        return self._forecaster.node_changes(networks)

    def with_band(
        self,
        forecast: Forecast,
        changes: NDArray[np.float64],
        level: float,
        *,
        rows: NDArray[np.int64] | slice | None = None,
    ) -> Forecast:
        """A forecast with its intervals at a level in percent, from its `node_changes`; of some nodes, or of all."""
        return self._forecaster.with_band(forecast, changes, level, rows=rows)

    def road_flow(
        self, values: NDArray[np.floating], networks: Sequence[RoadNetwork], times_s: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """[S,E] the flow on the usual roads at S times, from the values [S,N] at the nodes and the network then."""
        return self._forecaster.road_flow(values, networks, times_s)

    @property
    def demand(self) -> Demand | None:
        """The demand calibrated to the sensors' usual counts; None for a model without demand."""
        return self._forecaster.demand

    def late(self, time_s: int, node_ids: Sequence[NodeId], values: Sequence[float] | NDArray[np.floating]) -> None:
        """Add or replace readings of a snapshot in the window.

        Parameters
        ----------
        time_s : int
            Start of the snapshot, in seconds since 1970 UTC.
        node_ids : sequence
            The nodes of the readings, each once.
        values : sequence of float
            NaN removes a reading.
        """
        self._refuse_time(time_s)
        index = next((i for i, snapshot in enumerate(self._window) if snapshot.time_s == time_s), None)
        if index is None:
            if not self._window:
                raise CityError(f"snapshot {self._at(time_s)}: there is none yet. Give it to `push`")
            first_s = self._window[0].time_s
            last_s = self._window[-1].time_s
            remedy = "Give it to `push`" if time_s > last_s else "A forecast reads nothing older: leave it out"
            raise CityError(
                f"snapshot {self._at(time_s)} is not in the window, {self._at(first_s)} to {self._at(last_s)}. {remedy}"
            )
        rows = self.network.rows_of(node_ids)
        readings = _numbers(values)
        if readings.shape != rows.shape or len(np.unique(rows)) != len(rows):
            raise CityError(f"{readings.size} values for {len(np.unique(rows))} nodes. Give one value for each node")
        sent = self._sensors[rows]
        old = self._window[index]
        self.left_out += int((~sent & np.isfinite(readings)).sum())
        rows = rows[sent]
        readings = readings[sent]
        new_values = old.values.copy()
        observed = old.observed.copy()
        observed[rows] = np.isfinite(readings)
        new_values[rows] = np.where(np.isfinite(readings), readings, 0)
        self._window[index] = replace(old, values=new_values, observed=observed)

    def change(self, network: RoadNetwork, *, since_s: int | None = None) -> None:
        """Change the roads. Replaces all changes planned for later.

        Parameters
        ----------
        network : RoadNetwork
            Must have the same nodes; absent nodes have `present` False.
        since_s : int, optional
            When it begins to hold. Default: from the next snapshot on.
        """
        if since_s is None:
            since_s = self._steps(self._window[-1].time_s).time_s(1) if self._window else ALWAYS_S
        self._roads = self._roads.changed(since_s, self._checked(network))

    def forecast(self, *, level: float | None = None) -> Forecast:
        """Forecast the `horizon` steps after the last snapshot, on the roads as they are and as they are planned.

        Parameters
        ----------
        level : float, optional
            Also give intervals at this level, in percent. Default: none.
        """
        return self._forecast(self.networks_ahead(), level)

    def what_if(
        self,
        network: RoadNetwork | None = None,
        *,
        close: Sequence[str | Road] = (),
        add: Sequence[str | Road] = (),
        changes: Sequence[RoadChange] = (),
        level: float | None = None,
    ) -> Forecast:
        """The forecast if the roads ahead were others. Does not change the live state.

        Parameters
        ----------
        network : RoadNetwork, optional
            The roads of all steps ahead; must have the same nodes, as in `change`. Default: as planned.
        close, add : sequence of "A,B" or (A, B)
            Roads to close and to add in all steps, as in `frigate.forecast`.
        changes : sequence of RoadChange
            Roads to close and to add from a time until another.
        level : float, optional
            Also give intervals at this level, in percent. Default: none.
        """
        return self._forecast(self.networks_ahead(network, close=close, add=add, changes=changes), level)

    def networks_ahead(
        self,
        network: RoadNetwork | None = None,
        *,
        close: Sequence[str | Road] = (),
        add: Sequence[str | Road] = (),
        changes: Sequence[RoadChange] = (),
    ) -> list[RoadNetwork]:
        """[H] the network of each step ahead; parameters as in `what_if`."""
        roads = self._roads if network is None else Timeline.of(network)
        begin_s = self._ahead_s()
        planned = [roads.network_at(time_s) for time_s in begin_s.tolist()]
        changes = [RoadChange(close, add), *changes]
        plan = RoadPlan.of(changes, now_s=int(begin_s[0]), timezone=self._timezone)
        return [self._checked(each) for each in plan.roads(planned, begin_s)]

    @torch.inference_mode()
    def _forecast(self, ahead: Sequence[RoadNetwork], level: float | None) -> Forecast:
        """The forecast on these roads ahead."""
        networks: dict[str, RoadNetwork] = {}
        measured = [self._roads.network_at(snapshot.time_s) for snapshot in self._window]
        snapshots = [snapshot.on(network) for snapshot, network in zip(self._window, measured, strict=True)]
        for network in (*measured, *ahead):
            networks.setdefault(network.fingerprint, network)
        prints = list(networks)
        of_print = {key: k for k, key in enumerate(networks)}
        roads = roads_of_windows(
            *(np.array([[of_print[each.fingerprint] for each in some]]) for some in (measured, ahead))
        )
        rows = [
            [(s.time_s, prints[on], prints[of]) for s, on, of in zip(snapshots, *pair, strict=True)]
            for pair in zip(roads.encoded_on.tolist(), roads.measured_on.tolist(), strict=True)
        ]
        encodings = self._encode(rows, {snapshot.time_s: snapshot for snapshot in snapshots}, networks)
        values, observed, clock, z = (
            torch.stack([torch.stack([getattr(encodings[key], name) for key in row]) for row in rows])
            for name in ("values", "observed", "clock", "z")
        )
        clock = torch.cat([clock, self._clock(self._ahead_s()).expand(len(rows), -1, -1)], dim=1)
        layout = Layout.of(roads, list(networks.values()), self._views)
        ahead_s = np.tile(np.concatenate([self.times_s, self._ahead_s()]), (len(rows), 1))
        recent = self._now_usual(layout, ahead_s, ahead_s[:, len(self._window) - 1 : len(self._window)])

        def ahead_of(
            values: Tensor, observed: Tensor, clock: Tensor, z: Tensor, recent: Tensor | None = None
        ) -> Tensor:
            with self._predictor.inference():
                batch = layout.batch(values, observed, clock, recent=recent)
                return batch.join(self._model.forecast_from(batch, z.movedim(2, 0)))[0]

        made = self._replay(ahead_of, layout, prints, values, observed, clock, z, *_if_any(recent))
        quantity = self._trained_on.quantity
        present = np.array([forecast_nodes(network, self.usual_roads, quantity) for network in ahead])
        used = np.any([snapshot.observed for snapshot in snapshots], axis=0) & ahead[0].present
        numbers, told = usable(self._predictor.to_array(made, present), present)
        forecast = make_forecast(
            self._trained_on,
            ahead[0],
            numbers,
            int(self._ahead_s()[0]),
            sensor=used,
            timezone=self._timezone,
            notices=self._notices(ahead, used) + told,
            city=self._forecaster.city,
        )
        return forecast if level is None else self._forecaster.with_intervals(forecast, ahead, level)

    @torch.inference_mode()
    def _encode(
        self, rows: Sequence[Sequence[_Key]], snapshots: dict[int, _Snapshot], networks: dict[str, RoadNetwork]
    ) -> dict[_Key, _Encoded]:
        """The encodings of the rows; only snapshots whose readings or roads have changed run the GNN."""
        wanted = list(dict.fromkeys(key for row in rows for key in row))
        stale = [
            key
            for key in wanted
            if key not in self._encodings or not self._encodings[key].snapshot.same_readings(snapshots[key[0]])
        ]
        if stale:
            self._encodings.update(zip(stale, self._run_gnn(stale, snapshots, networks), strict=True))
            self.encoded += len(stale)
        for key in wanted:
            self._encodings[key] = self._encodings.pop(key)
        found = {key: self._encodings[key] for key in wanted}
        for old in list(self._encodings)[: -WINDOWS_KEPT * self._task.past]:
            del self._encodings[old]
        return found

    def _run_gnn(
        self, keys: Sequence[_Key], snapshots: dict[int, _Snapshot], networks: dict[str, RoadNetwork]
    ) -> list[_Encoded]:
        """The GNN on these snapshots, as one window without steps ahead."""
        chosen = [snapshots[time_s] for time_s, _, _ in keys]
        values = torch.from_numpy(np.stack([snapshot.values for snapshot in chosen])).to(self.device)
        observed = torch.from_numpy(np.stack([snapshot.observed for snapshot in chosen])).to(self.device)
        times_s = np.array([snapshot.time_s for snapshot in chosen], np.int64)
        clock = self._clock(times_s)
        of_print = {key: k for k, key in enumerate(networks)}
        encoded_on = np.array([[of_print[encoded] for _, encoded, _ in keys]])
        measured_on = np.array([[of_print[measured] for _, _, measured in keys]])
        nothing = np.ones((1, 0), bool)
        roads = RoadsOfWindows(np.array([0]), measured_on[:, -1], measured_on, encoded_on, nothing)
        layout = Layout.of(roads, list(networks.values()), self._views)
        weights = [self._road_weights(list(networks.values())[k]) for k in np.unique(encoded_on).tolist()]

        recent = self._now_usual(layout, times_s[None], times_s[None])

        def encode(values: Tensor, observed: Tensor, clock: Tensor, recent: Tensor | None = None) -> Tensor:
            with self._predictor.inference():
                batch = layout.batch(values[None], observed[None], clock[None], recent=recent)
                return self._model.encode_snapshots(batch, weights=weights)[:, 0]

        z = self._replay(encode, (layout, weights), list(networks), values, observed, clock, *_if_any(recent))
        # Copies: a view would keep the whole tensor's memory alive.
        return [
            _Encoded(
                snapshot=snapshot,
                values=values[k].clone(),
                observed=observed[k].clone(),
                clock=clock[k].clone(),
                z=z[:, k].contiguous(),
            )
            for k, snapshot in enumerate(chosen)
        ]

    def _road_weights(self, network: RoadNetwork) -> RoadWeights:
        key = network.fingerprint
        if key in self._weights:
            self._weights[key] = self._weights.pop(key)
        else:
            with self._predictor.inference():
                self._weights[key] = self._model.road_weights(self._views.view(network).topology)
        for old in list(self._weights)[:-WEIGHTS_KEPT]:
            del self._weights[old]
        return self._weights[key]

    def _replay(
        self, function: Callable[..., Tensor], constants: object, networks: Sequence[str], *tensors: Tensor
    ) -> Tensor:
        """function(*tensors), as a CUDA graph on a GPU, unless the roads change in the window or ahead.

        `constants` are what the function reads besides; a graph keeps them alive.
        """
        if not self._model.can_record(self.device) or len(networks) > 1:
            return function(*tensors)
        key = (function.__name__, *networks, *(tensor.shape for tensor in tensors))
        if key not in self._recorded:
            self._recorded[key] = RecordedFunction(function, tensors, self.device), constants
            while len(self._recorded) > MAX_RECORDED:
                self._recorded.pop(next(iter(self._recorded)))
        return self._recorded[key][0](*tensors).clone()

    def _notices(self, ahead: Sequence[RoadNetwork], used: NDArray[np.bool_]) -> tuple[str, ...]:
        snapshots = len(self._window)
        past = self._task.past
        told = [short_window(snapshots, past)] if snapshots < past else []
        for network in {each.fingerprint: each for each in ahead}.values():
            told += self._views.view(network).notices
        return tuple(dict.fromkeys(told if used.any() else [*told, NO_READING]))

    def _checked(self, network: RoadNetwork) -> RoadNetwork:
        if not np.array_equal(network.node_ids, self._node_ids):
            raise CityError(
                f"the network has {network.num_nodes} nodes that are not the {len(self._node_ids)} of this live "
                "forecast, in their order. Start another with the whole table, absent nodes with present False"
            )
        return network

    def _ahead_s(self) -> NDArray[np.int64]:
        """[H] the start of each step ahead."""
        if not self._window:
            raise CityError("there is no snapshot to forecast from. Give one to `push`")
        return self._steps(self._window[-1].time_s).times_s(1, 1 + self._task.horizon)

    def _forget(self) -> None:
        """Drop what neither the window nor any later snapshot needs."""
        first_s = self._window[0].time_s
        self._encodings = {key: encoded for key, encoded in self._encodings.items() if key[0] >= first_s}
        self._roads = self._roads.since(first_s)

    def _refuse_time(self, time_s: int) -> None:
        step_s = self._trained_on.step_s
        if isinstance(time_s, bool) or not isinstance(time_s, int | np.integer) or abs(time_s) >= 2**36:
            raise CityError(f"snapshot {time_s!r}: give its start in whole seconds since 1970 UTC")
        steps = self._steps(self._window[-1].time_s if self._window else time_s)
        if steps.time_s(int(steps.snapshot_at(np.array([time_s]))[0])) != time_s:
            raise CityError(
                f"snapshot {self._at(time_s)} is not a whole number of steps of {step_s} s from "
                f"{self._at(self._window[-1].time_s)}. Bring the readings to the model's step"
            )

    def _steps(self, start_s: int) -> Steps:
        return Steps(int(start_s), self._trained_on.step_s, self._timezone)

    def _at(self, time_s: int) -> str:
        return local_iso(int(time_s), self._timezone)

    def _clock(self, times_s: NDArray[np.int64]) -> Tensor:
        """[...,3] the local times, on the device."""
        return torch.from_numpy(wall_clock(times_s + utc_offsets_s(times_s, self._timezone))).to(self.device)


def _if_any(tensor: Tensor | None) -> list[Tensor]:
    return [] if tensor is None else [tensor]


def _without_readings(run: Run, network: RoadNetwork) -> City:
    """A city of these roads, without any snapshot."""
    about = run.trained_on
    nothing = np.zeros((0, network.num_nodes))
    stream = make_stream(
        nothing,
        network,
        start_s=about.start_s,
        step_s=about.step_s,
        timezone=about.timezone,
        quantity=about.quantity,
        unit=about.unit,
    )
    return City(about.name, stream, folder=about.folder)


def _numbers(values: object) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # values too large for float32 become infinite, which counts as no reading
            return np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise CityError(f"values: {error}. Give numbers, NaN where there is no reading") from None


def _sensors(network: RoadNetwork, sensors: NDArray[np.bool_] | Iterable[NodeId]) -> NDArray[np.bool_]:
    """[N] from a mask or from node ids."""
    if isinstance(sensors, np.ndarray) and sensors.dtype == bool:
        if sensors.shape != (network.num_nodes,):
            raise CityError(f"sensors are {sensors.shape}. Give one of the {network.num_nodes} nodes, or their ids")
        return sensors.copy()
    mask = np.zeros(network.num_nodes, bool)
    mask[network.rows_of(sensors.tolist() if isinstance(sensors, np.ndarray) else sensors)] = True
    return mask
