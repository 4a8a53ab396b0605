"""Live forecasts: the encodings of past snapshots are cached, so that a new snapshot costs one GNN pass instead of T.

In both presets a snapshot's encoding z depends only on its own readings, topology and calendar. Only the snapshots for
which one of these changes are encoded again: a late reading affects one snapshot, a closure those that start when it
begins or later. What depends on the whole window is computed for every forecast from the cache: the moments, and the
LSTM over all T snapshots, whose initial state comes from the oldest z and the current time.

The forecast equals that of a full forward pass. In fp32 they differ by rounding, because a matrix product with fewer
rows may sum in a different order: within 1e-5 of the largest forecast, or 1e-5 of the unit. On a GPU both are in bf16.

Device memory in bytes: T N (4 D + 5), with 2 D instead of 4 D under bf16; plus, for each topology in use, the gates
(4 E per layer) and the kernel mean's weights. Host memory: T N * 5. Chengdu, 3,192 nodes, T = 12, D = 64: 10 MB.
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

from frigate.data.folder import City
from frigate.data.network import NodeId, RoadNetwork
from frigate.data.stream import Steps, calendar, local_iso, utc_offsets_s
from frigate.demand.estimate import Demand
from frigate.demand.rerouting import Rerouted
from frigate.errors import CityError, SettingsError
from frigate.forecasting.forecast import NO_READING, about_detours, short_window, split_on
from frigate.forecasting.result import Forecast, make_forecast, usable
from frigate.graph.positions import locate_anchors
from frigate.nn.batch import Batch
from frigate.nn.demand_tables import DemandTables
from frigate.nn.device import best_device
from frigate.nn.forecaster import Fixed
from frigate.nn.ops.cuda.recording import RecordedFunction
from frigate.nn.predictor import Predictor
from frigate.nn.scaling import build_topologies
from frigate.nn.topology import Topology
from frigate.training.run import Run, RunTrips

ALWAYS_S = -(2**62)  # earlier than any snapshot
MAX_RECORDED = 4


@dataclass(frozen=True)
class _NetworkView:
    """A network as model input."""

    network: RoadNetwork
    topology: Topology
    fixed: Fixed
    flow_change: Tensor  # [N] multiplier of the usual flow
    demand: DemandTables | None  # with this network's sensor shares
    notice: str


@dataclass(frozen=True)
class _Snapshot:
    """The readings of one snapshot. Arrays are never modified: a late reading creates a new snapshot."""

    time_s: int
    values: NDArray[np.float32]  # [N] 0 where not observed
    observed: NDArray[np.bool_]  # [N] only at sensors, even if their node is absent from the network

    def on(self, network: RoadNetwork) -> _Snapshot:
        """The snapshot without readings at nodes absent from the network."""
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
    """A snapshot on the device, and its encoding on one network."""

    snapshot: _Snapshot  # the readings that were encoded
    network: str  # fingerprint
    values: Tensor  # [N]
    observed: Tensor  # [N] bool
    calendar: Tensor  # [C]
    z: Tensor  # [N,D]


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
        kernels: str = "auto",
    ) -> None:
        if not run.model.encodes_snapshots:
            raise SettingsError(
                f'a live forecast needs a Frigate model; the run\'s is "{run.settings.model.preset}", which encodes no '
                "snapshot by itself. Use frigate.forecasting.forecast"
            )
        source = run.open_city() if network is None else network
        network = source.network if isinstance(source, City) else source
        self.device = best_device(device)
        self.encoded = 0  # number of snapshots encoded so far
        self.left_out = 0  # number of readings ignored because their node is not a sensor
        self._trained_on, self._task = run.trained_on, run.settings.task
        self._predictor = Predictor(run.model, network, self.device, quantity=run.trained_on.quantity, kernels=kernels)
        self._model, self._kernels = self._predictor.model, kernels
        self._city = source if isinstance(source, City) else None
        self._features_of = source if isinstance(source, City) else run.trained_on.folder
        self._timezone = run.trained_on.timezone if timezone is None else timezone
        self._sensors = split_on(run, network)[0] if sensors is None else _sensors(network, sensors)
        anchors, self._notice = (
            (None, "") if run.scaling.anchors is None else locate_anchors(network, run.scaling.anchors)
        )
        self._scaling = replace(run.scaling, anchors=anchors)
        self._window: deque[_Snapshot] = deque(maxlen=self._task.past)
        self._encodings: dict[int, _Encoded] = {}  # by time
        self._recorded: dict[tuple[Any, ...], RecordedFunction] = {}  # each holds GPU memory
        self._node_ids = network.node_ids
        self._trips: RunTrips | None = None
        if run.scaling.demand is not None:
            usual_roads = source.stream.main_network if isinstance(source, City) else network
            self._trips = RunTrips.of(run, usual_roads, self._features_of)
            self._demand = self._trips.demand(self._sensors)
        self._tried: _NetworkView | None = None  # the last what-if, which may be asked for again
        self._changes: list[tuple[int, _NetworkView]] = []  # (start time, roads), in time order
        self._changes.append((ALWAYS_S, self._roads(network)))

    @property
    def network(self) -> RoadNetwork:
        """The network of the last snapshot; before any snapshot, the initial network."""
        return self._roads_at(self._window[-1].time_s if self._window else ALWAYS_S).network

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
        self.left_out += int((there & ~self._sensors).sum())
        there = there & self._sensors
        if self._window:
            nothing = _Snapshot(0, np.zeros(N, np.float32), np.zeros(N, bool))
            skipped = self._steps(time_s).times_s(-past, 0)
            self._window.extend(replace(nothing, time_s=t) for t in skipped.tolist() if t > last_s)
        starts_s = self._steps(time_s).times_s(0, len(rows)).tolist()
        for k in range(max(0, len(rows) - past), len(rows)):
            readings = np.where(there[k], rows[k], np.float32(0))
            self._window.append(_Snapshot(starts_s[k], readings, there[k].copy()))
        self._forget()

    def restore(self, time_s: int, values: NDArray[np.floating], networks: Sequence[tuple[int, RoadNetwork]]) -> None:
        """Replace the whole window, for example after a restart. Unchanged snapshots are not encoded again.

        Parameters
        ----------
        time_s, values
            The snapshots, as in `push`.
        networks
            The roads in time order: (start time, network). The first also applies to earlier times.
        """
        (_, first), *later = [(since_s, self._roads(network)) for since_s, network in networks]
        self._changes = [(ALWAYS_S, first), *later]
        self._window.clear()
        self.push(time_s, values)

    def rerouted(self, network: RoadNetwork) -> Rerouted | None:
        """The effect of a network's roads on the usual flows at nodes and roads; None without demand."""
        return None if self._trips is None else self._trips.rerouted([self._demand], network)[0]

    @property
    def demand(self) -> Demand | None:
        """The demand calibrated to the sensors' usual counts; None for a model without demand."""
        return None if self._trips is None else self._demand

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
            first_s, last_s = self._window[0].time_s, self._window[-1].time_s
            remedy = "Give it to `push`" if time_s > last_s else "A forecast reads nothing older: leave it out"
            raise CityError(
                f"snapshot {self._at(time_s)} is not in the window, {self._at(first_s)} to {self._at(last_s)}. {remedy}"
            )
        rows, readings = self.network.rows_of(node_ids), _numbers(values)
        if readings.shape != rows.shape or len(np.unique(rows)) != len(rows):
            raise CityError(f"{readings.size} values for {len(np.unique(rows))} nodes. Give one value for each node")
        sent, old = self._sensors[rows], self._window[index]
        self.left_out += int((~sent & np.isfinite(readings)).sum())
        rows, readings = rows[sent], readings[sent]
        new_values, observed = old.values.copy(), old.observed.copy()
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
            Applies to every snapshot that starts at this time or later. Default: from the next snapshot on.
        """
        if since_s is None:
            since_s = self._steps(self._window[-1].time_s).time_s(1) if self._window else ALWAYS_S
        roads = self._roads(network)
        self._changes = [(since, before) for since, before in self._changes if since < since_s] + [(since_s, roads)]

    def forecast(self) -> Forecast:
        """Forecast the `horizon` steps after the last snapshot."""
        roads = [self._roads_at(snapshot.time_s) for snapshot in self._window]
        encodings = self._encode(roads)
        self._encodings = {encoding.snapshot.time_s: encoding for encoding in encodings}
        return self._finish(roads, encodings)

    def what_if(self, network: RoadNetwork) -> Forecast:
        """The forecast if this were the network in every snapshot of the window. Does not change the live state.

        Parameters
        ----------
        network : RoadNetwork
            Must have the same nodes, as in `change`.
        """
        self._tried = self._roads(network)
        roads = [self._tried] * len(self._window)
        measured = [self._roads_at(snapshot.time_s) for snapshot in self._window]
        return self._finish(roads, self._encode(roads), measured)

    @torch.inference_mode()
    def _encode(self, roads: Sequence[_NetworkView]) -> list[_Encoded]:
        """Encode the window on these networks; only snapshots whose readings or roads have changed run the GNN."""
        if not self._window:
            raise CityError("there is no snapshot to forecast from. Give one to `push`")
        seen = [snapshot.on(on.network) for snapshot, on in zip(self._window, roads, strict=True)]
        found = [self._encodings.get(snapshot.time_s) for snapshot in seen]
        valid: dict[int, _Encoded] = {}
        for k, (old, snapshot, on) in enumerate(zip(found, seen, roads, strict=True)):
            if old and old.network == on.network.fingerprint and old.snapshot.same_readings(snapshot):
                valid[k] = old
        stale = [k for k in range(len(seen)) if k not in valid]
        if stale:
            made = self._run_gnn([seen[k] for k in stale], [roads[k] for k in stale])
            valid.update(zip(stale, made, strict=True))
            self.encoded += len(stale)
        return [valid[k] for k in range(len(seen))]

    def _run_gnn(self, snapshots: list[_Snapshot], roads: list[_NetworkView]) -> list[_Encoded]:
        """The GNN on these snapshots, in one pass."""
        times_s = np.array([snapshot.time_s for snapshot in snapshots], np.int64)
        values = torch.from_numpy(np.stack([snapshot.values for snapshot in snapshots])).to(self.device)
        observed = torch.from_numpy(np.stack([snapshot.observed for snapshot in snapshots])).to(self.device)
        clock = self._calendar(times_s)

        def encoded(values: Tensor, observed: Tensor, clock: Tensor) -> Tensor:
            batch, distinct = self._batch(values, observed, clock, roads, clock[:0])
            with self._predictor.inference():
                fixed = [on.fixed for on in distinct]
                return self._model.encode_snapshots(batch, fixed=fixed, kernels=self._kernels)[:, 0]

        z = self._replay(encoded, roads, values, observed, clock)
        # Copies: a view would keep the whole tensor's memory alive.
        return [
            _Encoded(
                snapshot=snapshot,
                network=on.network.fingerprint,
                values=values[k].clone(),
                observed=observed[k].clone(),
                calendar=clock[k].clone(),
                z=z[:, k].contiguous(),
            )
            for k, (snapshot, on) in enumerate(zip(snapshots, roads, strict=True))
        ]

    @torch.inference_mode()
    def _finish(
        self,
        roads: Sequence[_NetworkView],
        encodings: Sequence[_Encoded],
        measured: Sequence[_NetworkView] | None = None,
    ) -> Forecast:
        """Forecast from the encodings. `measured` are the networks the readings were taken on, if different."""
        now, steps = roads[-1].network, self._steps(encodings[-1].snapshot.time_s)
        at_s, times_s = steps.time_s(1), steps.times_s(1, 1 + self._task.horizon)
        values, observed, clock, z = (
            torch.stack([getattr(encoding, name) for encoding in encodings])
            for name in ("values", "observed", "calendar", "z")
        )

        def ahead(values: Tensor, observed: Tensor, clock: Tensor, z: Tensor, future: Tensor) -> Tensor:
            batch, _ = self._batch(values, observed, clock, roads, future, measured)
            with self._predictor.inference():
                return self._model.forecast_from(batch, z.transpose(0, 1)[:, None], kernels=self._kernels)[0]

        made = self._replay(ahead, roads, values, observed, clock, z, self._calendar(times_s))
        used = np.any([encoding.snapshot.observed for encoding in encodings], axis=0) & now.present
        numbers, told = usable(self._predictor.to_array(made, now), now.present)
        return make_forecast(
            self._trained_on, now, numbers, at_s,
            sensor=used, timezone=self._timezone, notices=self._notices(roads[-1], used) + told, city=self._city,
        )  # fmt: skip

    def _replay(self, function: Callable[..., Tensor], roads: Sequence[_NetworkView], *tensors: Tensor) -> Tensor:
        """function(*tensors), as a CUDA graph on a GPU, unless the roads change in the window or it is a what-if."""
        networks = {on.network.fingerprint for on in roads}
        can_record = self._model.can_record(self.device, self._kernels)
        if not can_record or len(networks) > 1 or roads[0] is self._tried:
            return function(*tensors)
        key = (function.__name__, *networks, *(tensor.shape for tensor in tensors))
        if key not in self._recorded:
            self._recorded[key] = RecordedFunction(function, tensors, self.device)
            while len(self._recorded) > MAX_RECORDED:
                self._recorded.pop(next(iter(self._recorded)))
        return self._recorded[key](*tensors).clone()

    def _batch(
        self,
        values: Tensor,
        observed: Tensor,
        past: Tensor,
        roads: Sequence[_NetworkView],
        future: Tensor,
        measured: Sequence[_NetworkView] | None = None,
    ) -> tuple[Batch, list[_NetworkView]]:
        """A batch of one window, and the distinct networks of its snapshots in the order of its topologies."""
        distinct = list({on.network.fingerprint: on for on in roads}.values())
        order = [on.network.fingerprint for on in distinct]
        which = torch.tensor([order.index(on.network.fingerprint) for on in roads])
        topologies = tuple(on.topology for on in distinct)
        batch = Batch.of_window(values, observed, past, future, topologies, which)
        demand = roads[-1].demand
        if demand is None:
            return batch, distinct
        changes = [on.flow_change for on in [*(measured or roads), roads[-1]]]
        tables = replace(demand, roads=torch.stack(changes)[None])
        steps = torch.arange(len(changes), device=self.device)
        return tables.apply(batch, torch.zeros_like(steps[:1]), steps[None, :-1], steps[-1:]), distinct

    def _notices(self, now: _NetworkView, used: NDArray[np.bool_]) -> tuple[str, ...]:
        snapshots, past = len(self._window), self._task.past
        short = short_window(snapshots, past) if snapshots < past else ""
        notices = (short, self._notice, now.notice, "" if used.any() else NO_READING)
        return tuple(notice for notice in notices if notice)

    def _roads(self, network: RoadNetwork) -> _NetworkView:
        """The network as model input; positions and road features are computed once per network."""
        if not np.array_equal(network.node_ids, self._node_ids):
            raise CityError(
                f"the network has {network.num_nodes} nodes that are not the {len(self._node_ids)} of this live "
                "forecast, in their order. Start another with the whole table, absent nodes with present False"
            )
        tried = [] if self._tried is None else [self._tried]
        for known in [roads for _, roads in self._changes] + tried:
            if known.network.fingerprint == network.fingerprint:
                return known
        (topology,), notices = build_topologies([network], self._scaling, sensors=self._sensors, city=self._features_of)
        topology = topology.to(self.device)
        change, demand = torch.ones(network.num_nodes, device=self.device), None
        if self._trips is not None:
            (rerouted,) = self._trips.rerouted([self._demand], network)
            change = torch.from_numpy(rerouted.node_change).to(self.device)
            shares = [[self._trips.sensor_shares(self._demand, network)]]
            demand = DemandTables.of([self._demand], self.device, step_s=self._trained_on.step_s, shares=shares)
            notices = [*notices, *about_detours(rerouted, network)]
        with self._predictor.inference():
            return _NetworkView(network, topology, self._model.fixed(topology), change, demand, " ".join(notices))

    def _roads_at(self, time_s: int) -> _NetworkView:
        return next(roads for since_s, roads in reversed(self._changes) if since_s <= time_s)

    def _forget(self) -> None:
        """Drop what neither the window nor any later snapshot needs."""
        first_s = self._window[0].time_s
        self._encodings = {time_s: encoded for time_s, encoded in self._encodings.items() if time_s >= first_s}
        begun = [k for k, (since_s, _) in enumerate(self._changes) if since_s <= first_s]
        self._changes = self._changes[begun[-1] :]

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

    def _calendar(self, times_s: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(calendar(times_s + utc_offsets_s(times_s, self._timezone))).to(self.device)


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
