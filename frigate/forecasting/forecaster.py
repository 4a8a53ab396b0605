"""A run on a city: the one object that every forecast is asked of.

It keeps apart the network that each past snapshot was measured on and the network of each step ahead. A road is open or
closed in a snapshot, or a step, as it is when that begins; a change inside the horizon applies from its step on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.calendar import DAY_S, local_iso, utc_offsets_s, wall_clock
from frigate.city.city import City
from frigate.city.network import Road, RoadNetwork
from frigate.city.periods import When, time_from
from frigate.city.stream import RoadNetworkStream
from frigate.config import Task
from frigate.demand.count_profiles import usual_counts
from frigate.demand.detour_totals import DetourTotals
from frigate.demand.estimate import Demand
from frigate.demand.rerouting import Rerouted, newly_cut_off
from frigate.demand.trip_model import TripModel
from frigate.errors import CityError, SettingsError
from frigate.forecasting.edits import forecast_nodes
from frigate.forecasting.plan import RoadChange, RoadPlan
from frigate.forecasting.result import Forecast, make_forecast, usable
from frigate.forecasting.road_flow import closed_roads, road_flows
from frigate.nn.batch import Batch
from frigate.nn.device import best_device, memory_limit
from frigate.nn.network_views import NetworkViews, named
from frigate.nn.predictor import Predictor
from frigate.nn.windows import Edit, Windows
from frigate.roads.nearest_sensors import hops_to
from frigate.training.intervals import Surroundings
from frigate.training.predictive import Cells
from frigate.training.run import Run

MAX_AHEAD_S = 14 * DAY_S
BYTES_PER_VALUE = 60  # memory per forecast value, including its demand and the result; measured
NO_READING = "no reading can be used: the forecast is made from the map and the clock alone."

Floats = NDArray[np.float32]
Floats64 = NDArray[np.float64]
Ints = NDArray[np.int64]
Sensors = Literal["seen", "all"] | NDArray[np.bool_]


@dataclass(frozen=True)
class Request:
    """One window as model input, and its forecast with the values still missing."""

    batch: Batch
    late: int  # steps between the last snapshot and the forecast
    stop: int  # the snapshot after the last one that is read
    networks: tuple[RoadNetwork, ...]  # [H] at each step of the forecast
    forecast: Forecast  # all values NaN


class Forecaster:
    """A trained run on a city, ready to forecast at any time, on its roads or others.

    What depends on roads and sensors is computed when first needed, and kept for later forecasts.

    Parameters
    ----------
    run : Run
        The trained model.
    city : City or RoadNetworkStream, optional
        Readings and roads, of this or another city. Default: the city the run was trained on, from its folder.
    sensors : "seen", "all" or [N] bool
        The nodes to read. "seen": all but those held out for testing; "all": also these.
    device : str, optional
        "cpu" or "cuda". Default: cuda if available.
    memory_gb : float, optional
        Memory limit for activations; a network that needs more is forecast in blocks of nodes, with the same result up
        to rounding. Default: 4 on a CPU, most of the free memory on a GPU.
    """

    def __init__(
        self,
        run: Run,
        city: City | RoadNetworkStream | None = None,
        *,
        sensors: Sensors = "seen",
        device: str | torch.device | None = None,
        memory_gb: float | None = None,
    ) -> None:
        source = run.open_city() if city is None else city
        self.run = run
        self.city = source if isinstance(source, City) else None  # its detectors are named in forecasts
        self.stream = source.stream if isinstance(source, City) else source
        self.device = best_device(device)
        self._files_of: City | Path | None = self.city or run.trained_on.folder  # for stored features and trips
        self._memory_gb = replace(run.settings.train, memory_gb=memory_gb).memory_gb  # validates it
        self.notices = _about_stream(run, self.stream)
        self._seen, unseen = split_on(run, self.stream.network)
        left_out = left_out_on(run, self.stream.network)
        self.notices += _about_left_out(self.stream, left_out)
        # Sensors that the run does not know are read from their first reading on; those that are named, always.
        self._from = np.full(len(unseen), self.stream.num_snapshots)
        if isinstance(sensors, str):
            if sensors not in ("seen", "all"):
                raise SettingsError(f'sensors = "{sensors}": choose "seen" or "all"')
            others = self.stream.sensors & ~self._seen & ~left_out & (~unseen | (sensors == "all"))
            if others.any():
                self._from[others] = self.stream.observed[:, others].argmax(axis=0)
        else:
            self._from[sensors & ~self._seen] = -1
            self._seen = sensors & self._seen
        self._windows: tuple[int, Windows] | None = None  # and the snapshot before which sensors were known
        self._around: tuple[Windows, Surroundings] | None = None

    @cached_property
    def usual_roads(self) -> RoadNetwork:
        """The roads that are open most of the time; detours start from them."""
        return self.run.usual_roads(self.stream)

    @cached_property
    def predictor(self) -> Predictor:
        return Predictor(
            self.run.model,
            self.usual_roads,
            self.device,
            quantity=self.stream.quantity,
            memory_gb=self._memory_gb,
        )

    def inputs(self, stop: int | None = None) -> NDArray[np.bool_]:
        """[N] the sensors that are known before a snapshot; default: at the end of the record."""
        return self._seen | (self._from < (self.stream.num_snapshots if stop is None else stop))

    def windows(self, stop: int | None = None) -> Windows:
        """The city as model input, with the sensors that are known before a snapshot (default: at the end)."""
        stop = self.stream.num_snapshots if stop is None or not (self.inputs() & ~self._seen).any() else stop
        if self._windows is None or self._windows[0] != stop:
            trips, demands = self._demand(stop)
            views = NetworkViews.of_scaling(
                self.run.scaling,
                self.usual_roads,
                self.device,
                sensors=self.inputs(stop),
                city=self._files_of,
                trips=trips,
                demands=demands,
                step_s=self.stream.step_s,
                quantity=self.run.trained_on.quantity,
                follow_closures=self.run.follows_closures,
            )
            self._windows = stop, Windows(self.stream, views)
        return self._windows[1]

    def _demand(self, stop: int) -> tuple[TripModel | None, list[Demand]]:
        if self.run.scaling.demand is None:
            return None, []
        unknown = self.inputs(stop) & ~self._seen
        more = None
        if unknown.any():
            more = usual_counts(self.stream, unknown, (0, stop))
        trips = self.run.trips_on(self.usual_roads, self._files_of, more=more)
        return trips, [trips.demand(self.inputs(stop))]

    @property
    def roads_notices(self) -> tuple[str, ...]:
        """Notices about the usual roads as the model sees them."""
        return self.windows().views.view(self.usual_roads).notices

    @property
    def demand(self) -> Demand | None:
        """The demand calibrated to the sensors' usual counts; None for a model without demand."""
        demands = self.windows().views.demands
        return demands[0] if demands else None

    def rerouted(self, network: RoadNetwork) -> Rerouted | None:
        """The effect of a network's roads on the usual flows; None without demand, or if the roads are as usual."""
        return self.windows().views.view(network).rerouted

    def detour_totals(self, network: RoadNetwork) -> DetourTotals:
        """What a network's roads mean for the trips. Needs demand."""
        views = self.windows().views
        assert views.trips is not None
        return views.trips.detour_totals(views.demands[0], network)

    def closed(self, network: RoadNetwork) -> NDArray[np.bool_]:
        """[E] the usual roads that a network lacks."""
        return closed_roads(self.usual_roads, network)

    def road_flow(self, values: NDArray[np.floating], networks: Sequence[RoadNetwork], times_s: Ints) -> Floats:
        """[S,E] the flow on the usual roads at S times, from the values [S,N] at the nodes and the network then."""
        clock = wall_clock(times_s + utc_offsets_s(times_s, self.stream.timezone))
        return road_flows(
            values,
            networks,
            self.usual_roads,
            demand=self.demand,
            rerouted=self.rerouted,
            clock=clock,
            closed=0.0 if self.stream.quantity == "count" else np.nan,
        )

    def batch(
        self, current: Ints, *, past: int | None = None, horizon: int | None = None, edit: Edit | None = None
    ) -> Batch:
        """The windows whose last past snapshot is `current`, as model input; `edit` changes the roads ahead."""
        task = self.run.settings.task
        stop = int(np.min(current, initial=self.stream.num_snapshots)) + 1
        return self.windows(stop).batch(
            current,
            past=task.past if past is None else past,
            horizon=task.horizon if horizon is None else horizon,
            inputs=torch.from_numpy(self.inputs(stop)).to(self.device),
            edit=edit,
        )

    def values(self, current: Ints, *, edit: Edit | None = None) -> Floats:
        """[B,H,N] the forecasts of these windows; NaN at absent nodes, and of a gauge on closed roads."""
        batch = self.batch(current, edit=edit)
        made = batch.join(self.predictor(batch)).float().cpu().numpy()
        for k, snapshot in enumerate(np.asarray(current).tolist()):
            for h, network in enumerate(self.networks_ahead(snapshot, edit=edit)):
                made[k, h, ~self._forecast_nodes(network)] = np.nan
        return np.asarray(made, np.float32)

    def bands(self, current: Ints, values: Floats, level: float, *, edit: Edit | None = None) -> tuple[Floats, Floats]:
        """[B,H,N] the lower and upper ends of the intervals of `values`, the forecasts of these windows."""
        intervals = self.run.require_intervals(level)
        ends = []
        for snapshot, made in zip(np.asarray(current).tolist(), values, strict=True):
            ends.append(intervals.band(*self.cells(snapshot, made, edit=edit), level)[:2])
        lower, upper = (np.asarray(of, np.float32).reshape(values.shape) for of in zip(*ends, strict=True))
        return lower, upper

    def cells(self, current: int, values: Floats, *, edit: Edit | None = None) -> tuple[Cells, NDArray[np.bool_]]:
        """What intervals of `values` [H,N], the forecast of this window, depend on; and which nodes have a sensor."""
        stop = current + 1
        changes = self.node_changes(self.networks_ahead(current, edit=edit), stop=stop)
        around = self._surroundings(stop)
        clock = self._clock(self.stream.steps.times_s(stop, stop + len(values)))
        return around.cells(np.asarray(values, np.float64), clock, changes), around.sensor

    def _clock(self, times_s: Ints) -> Ints:
        return wall_clock(times_s + utc_offsets_s(times_s, self.stream.timezone))

    def _forecast_nodes(self, network: RoadNetwork) -> NDArray[np.bool_]:
        return forecast_nodes(network, self.usual_roads, self.stream.quantity)

    def networks_ahead(self, current: int, *, edit: Edit | None = None) -> list[RoadNetwork]:
        """[H] the network at each step after a snapshot."""
        return self.windows().networks_ahead(current, self.run.settings.task.horizon, edit)

    def forecast(
        self,
        at: When | None = None,
        *,
        network: RoadNetwork | None = None,
        close: Sequence[str | Road] = (),
        add: Sequence[str | Road] = (),
        changes: Sequence[RoadChange] = (),
        past: int | None = None,
        horizon: int | None = None,
        level: float | None = None,
    ) -> Forecast:
        """Forecast every node for the `horizon` steps after `at`; parameters as in `frigate.forecast`.

        `network` must have the nodes of the city.
        """
        if level is not None:
            self.run.require_intervals(level)
        request = self.request(at, network=network, close=close, add=add, changes=changes, past=past, horizon=horizon)
        return self.answer(request, level=level)

    def answer(self, request: Request, *, level: float | None = None) -> Forecast:
        """The forecast of a request, with intervals at a level in percent."""
        made = request.batch.join(self.predictor(request.batch, must_fit=True))[0, request.late :]
        present = np.array([self._forecast_nodes(network) for network in request.networks])
        values, told = usable(self.predictor.to_array(made, present), present)
        notices = request.forecast.notices + told
        if self._memory_gb is not None and self.run.model.reach is None:
            label = self.run.settings.model.label
            notices += (f"how far {label} looks is not known: the whole network was forecast at once.",)
        made_here = replace(request.forecast, values=values, notices=notices)
        if level is None:
            return made_here
        return self.with_intervals(made_here, request.networks, level, stop=request.stop, first_step=1 + request.late)

    def with_intervals(
        self,
        forecast: Forecast,
        networks: Sequence[RoadNetwork],
        level: float,
        *,
        stop: int | None = None,
        first_step: int = 1,
    ) -> Forecast:
        """A forecast of this city with its intervals at a level in percent.

        Parameters
        ----------
        forecast
            With its values.
        networks
            [H] at each step.
        level
            Of the intervals, such as 90.
        stop
            The snapshot before which sensors were known. Default: the end of the record.
        first_step
            How many steps ahead of the last snapshot the first one is.
        """
        changes = self.node_changes(networks, stop=stop)
        return self.with_band(forecast, changes, level, stop=stop, first_step=first_step)

    def node_changes(self, networks: Sequence[RoadNetwork], *, stop: int | None = None) -> NDArray[np.float64]:
        """[H,N] the usual flow on each of these networks, relative to that on the usual roads."""
        views = self.windows(stop).views
        ones = np.ones(self.stream.num_nodes)
        found = [views.view(network).rerouted for network in networks]
        return np.stack([ones if each is None else each.node_change for each in found]).astype(np.float64)

    def with_band(
        self,
        forecast: Forecast,
        changes: Floats64,
        level: float,
        *,
        rows: Ints | slice | None = None,
        stop: int | None = None,
        first_step: int = 1,
    ) -> Forecast:
        """As `with_intervals`, where `node_changes` are known; of the nodes `rows`, by default of all."""
        values = np.asarray(forecast.values, np.float64)
        lower, upper, told = self._band(
            values, forecast.times_s, changes, level, rows=rows, stop=stop, first_step=first_step
        )
        some = forecast if rows is None else forecast.at(rows)
        return replace(some, lower=lower, upper=upper, level=float(level), notices=(*some.notices, *told))

    def _band(
        self,
        values: Floats64,
        times_s: Ints,
        changes: Floats64,
        level: float,
        *,
        rows: Ints | slice | None = None,
        stop: int | None = None,
        first_step: int = 1,
    ) -> tuple[NDArray[np.floating], NDArray[np.floating], tuple[str, ...]]:
        intervals = self.run.require_intervals(level)
        around = self._surroundings(stop)
        clock = self._clock(times_s)
        cells = around.cells(values, clock, changes, first_step=first_step)
        sensor = around.sensor
        if rows is not None:
            cells, sensor = cells.of_nodes(rows), sensor[rows]
        return intervals.band(cells, sensor, level)

    def _surroundings(self, stop: int | None) -> Surroundings:
        windows = self.windows(stop)
        if self._around is None or self._around[0] is not windows:
            sensors = self.inputs(stop)
            row = self.stream.network.same_nodes(self.run.nodes)
            own = np.zeros(self.run.nodes.num_nodes)
            if self.run.intervals is not None:
                own[self.run.split.seen] = self.run.intervals.own
            demands = windows.views.demands
            around = Surroundings.of(
                sensors,
                hops_to(self.usual_roads, sensors),
                demands[0] if demands else None,
                step_s=self.stream.step_s,
                own=np.where(row >= 0, own[row], 0),
            )
            self._around = windows, around
        return self._around[1]

    def steps_between(self, begin: When | None, end: When | None) -> int:
        """How many steps a period has; default: as many as in training, from the end of the readings."""
        begin_s, _ = _moment(self.stream, begin)
        if end is None:
            return self.run.settings.task.horizon
        end_s, _ = time_from(end, self.stream.timezone, now_s=begin_s, where="end")
        first, stop = (int(self.stream.steps.snapshot_at(np.array([each]))[0]) for each in (begin_s, end_s))
        if stop <= first:
            timezone = self.stream.timezone
            raise SettingsError(
                f"end {local_iso(end_s, timezone)}: it must be at least a step after the begin, "
                f"{local_iso(begin_s, timezone)}"
            )
        return stop - first

    def request(
        self,
        at: When | None = None,
        *,
        network: RoadNetwork | None = None,
        close: Sequence[str | Road] = (),
        add: Sequence[str | Road] = (),
        changes: Sequence[RoadChange] = (),
        past: int | None = None,
        horizon: int | None = None,
    ) -> Request:
        """The model input of `forecast` for the same arguments."""
        run = self.run
        stream = self.stream
        task = Task(
            run.settings.task.past if past is None else past, run.settings.task.horizon if horizon is None else horizon
        )
        if stream.num_snapshots == 0:
            raise CityError("the stream has no snapshot to forecast from. Give a city, or a stream, that has readings")
        at_s, more = _moment(stream, at)
        snapshots = stream.snapshot_at(at_s)
        stop = min(snapshots, stream.num_snapshots)
        late = snapshots - stop
        read = min(task.past, stop)
        window = stream.slice(stop - read, stop)
        notices = self.notices + more + _about_window(window, past=task.past, late=late)
        notices += _beyond_training(run, window, task)
        _refuse_too_many(late + task.horizon, self.usual_roads)
        plan = RoadPlan.of([RoadChange(close, add), *changes], now_s=at_s, timezone=stream.timezone)
        edit, told = self._edit(stop - 1, late + task.horizon, network, plan)
        if network is not None:
            notices += _not_of_that_time(network, window.network, stream.network)
        batch = self.batch(np.array([stop - 1]), past=read, horizon=late + task.horizon, edit=edit)
        windows = self.windows(stop)
        networks = windows.networks_ahead(stop - 1, late + task.horizon, edit)[late:]
        seen = {network.fingerprint: windows.views.view(network) for network in networks}
        notices += told + [notice for view in seen.values() for notice in view.notices]
        inputs = self.inputs(stop)
        if not (window.observed & inputs).any():
            notices.append(NO_READING)
        made = make_forecast(
            run.trained_on,
            networks[0],
            np.full((task.horizon, stream.num_nodes), np.nan),
            at_s,
            sensor=inputs & window.sensors & networks[0].present,
            timezone=stream.timezone,
            notices=dict.fromkeys(notices),
            city=self.city,
        )
        return Request(batch, late, stop, tuple(networks), made)

    def _edit(
        self, current: int, steps: int, network: RoadNetwork | None, plan: RoadPlan
    ) -> tuple[Edit | None, list[str]]:
        """How the recorded networks ahead are changed, and notices."""
        if network is None and not plan:
            return None, []
        first = current + 1
        begin_s = self.stream.steps.times_s(first, first + steps)
        recorded = self.windows(first).networks_ahead(current, steps)
        given = recorded if network is None else [network] * steps
        edited = plan.roads(given, begin_s)
        notices = [*plan.notices, *plan.about(given, begin_s)]
        changed = {(a.fingerprint, b.fingerprint): (a, b) for a, b in zip(recorded, edited, strict=True)}
        for before, after in changed.values():
            if before is not after and np.array_equal(before.node_ids, after.node_ids):
                notices += _cut_off(before, after)
        of_step = dict(zip(begin_s.tolist(), edited, strict=True))
        return lambda _, begin_s: of_step[begin_s], notices


def split_on(run: Run, network: RoadNetwork) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[N] which nodes of a network are seen, and which unseen, in the run's split; matched by id and location."""
    row = network.same_nodes(run.nodes)
    return run.split.seen[row] & (row >= 0), run.split.unseen[row] & (row >= 0)


def left_out_on(run: Run, network: RoadNetwork) -> NDArray[np.bool_]:
    """[N] the nodes of a network whose readings the run never uses."""
    row = network.same_nodes(run.nodes)
    left_out: NDArray[np.bool_] = run.split.left_out[row] & (row >= 0)
    return left_out


def _about_left_out(stream: RoadNetworkStream, left_out: NDArray[np.bool_]) -> list[str]:
    ids = stream.node_ids[left_out & stream.sensors].tolist()
    return [f"readings of {named(ids)} are not used: training found them contradicted, or broken."] if ids else []


def _about_stream(run: Run, stream: RoadNetworkStream) -> list[str]:
    run.trained_on.refuse_other_kind(stream)
    unit = run.trained_on.unit
    if stream.unit == unit:
        return []
    return [f'the stream\'s unit is "{stream.unit}"; the model reads and forecasts "{unit}".']


def _not_of_that_time(network: RoadNetwork, then: RoadNetwork, last: RoadNetwork) -> list[str]:
    """A notice of roads that are open or closed as at the end of the stream, but were not at the forecast's time."""
    if then.fingerprint == last.fingerprint:
        return []
    given, open_then, open_last = (_road_ends(each) for each in (network, then, last))
    kinds = {
        "open, but closed at that time": sorted((given & open_last) - open_then),
        "closed, but open at that time": sorted(open_then - given - open_last),
    }
    found = [f"{named(roads, 'road')} {what}" for what, roads in kinds.items() if roads]
    remedy = "To start from the roads of that time, leave the network out and name the roads to close or add."
    return [f"the network is used as given, with {' and '.join(found)}. {remedy}"] if found else []


def _road_ends(network: RoadNetwork) -> set[str]:
    ids = network.node_ids
    pairs = zip(ids[network.senders].tolist(), ids[network.receivers].tolist(), strict=True)
    return {f"{a},{b}" for a, b in pairs}


def _cut_off(old: RoadNetwork, new: RoadNetwork) -> list[str]:
    away = new.node_ids[newly_cut_off(old, new)]
    return [f"no way leads from most of the network to {named(away.tolist())} and back any more."] if len(away) else []


def _moment(stream: RoadNetworkStream, at: When | None) -> tuple[int, list[str]]:
    """The forecast's time in seconds since 1970 UTC, rounded down to a step of the stream; and notices."""
    end_s = stream.end_s
    steps = stream.steps
    if at is None or at == "now":
        return end_s, []
    time_s, notices = time_from(at, stream.timezone, now_s=end_s, where="at")
    first_s = steps.time_s(1)
    last_s = end_s + MAX_AHEAD_S
    if not first_s <= time_s <= last_s:
        raise SettingsError(
            f"at {local_iso(time_s, stream.timezone)}: a forecast can be made from "
            f"{local_iso(first_s, stream.timezone)}, when the stream's first snapshot is complete, until "
            f"{local_iso(last_s, stream.timezone)}, {MAX_AHEAD_S // DAY_S} days after its end"
        )
    floored_s = steps.time_s(stream.snapshot_at(time_s))
    if floored_s != time_s:
        notices.append(
            f"{local_iso(time_s, stream.timezone)} is inside a step of {stream.step_s} s: "
            f"the forecast is made at {local_iso(floored_s, stream.timezone)}."
        )
    return floored_s, notices


def _about_window(window: RoadNetworkStream, *, past: int, late: int) -> list[str]:
    notices = [short_window(window.num_snapshots, past)] if window.num_snapshots < past else []
    if late:
        notices.append(
            f"the stream ends at {local_iso(window.end_s, window.timezone)}, {late} steps before the forecast: "
            "its last readings are that old."
        )
    return notices


def _beyond_training(run: Run, window: RoadNetworkStream, task: Task) -> list[str]:
    """Notices about windows longer than in training: the model accepts them, but its accuracy is unknown."""
    trained = run.settings.task
    notices = []
    if window.num_snapshots > trained.past:
        notices.append(
            f"{window.num_snapshots} past snapshots are read; the model was trained with {trained.past}, and has not "
            "been tested with more."
        )
    if task.horizon > trained.horizon:
        notices.append(
            f"the model was trained to forecast {trained.horizon} steps ahead; steps {trained.horizon + 1} to "
            f"{task.horizon} go beyond that, and may be far off."
        )
    return notices


def _refuse_too_many(steps: int, network: RoadNetwork) -> None:
    needed = steps * network.num_nodes * BYTES_PER_VALUE
    limit = memory_limit(None, torch.device("cpu"))
    if needed > limit:
        raise SettingsError(
            f"horizon: {steps} steps at {network.num_nodes} nodes take about {needed / 2**30:.2g} GB, and "
            f"{limit / 2**30:.2g} GB are allowed. Forecast fewer steps"
        )


def short_window(snapshots: int, past: int) -> str:
    return f"{snapshots} snapshots are complete by then, not {past}: those are used."
