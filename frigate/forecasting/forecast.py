"""Forecast with a run at one point in time: for the run's city or another, optionally with roads closed or added.

A forecast made at time X reads only snapshots that are complete at X.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.config import Task
from frigate.data.city import City
from frigate.data.network import SAME_PLACE_M, Road, RoadNetwork
from frigate.data.stream import RoadNetworkStream, local_iso, zone
from frigate.demand.rerouting import Rerouted, newly_cut_off
from frigate.errors import CityError, SettingsError
from frigate.forecasting.result import Forecast, make_forecast, usable
from frigate.nn.batch import Batch, Windows
from frigate.nn.demand_tables import DemandTables
from frigate.nn.device import best_device, memory_limit
from frigate.nn.predictor import Predictor
from frigate.nn.scaling import build_topologies
from frigate.training.run import Run, RunTrips

BYTES_PER_VALUE = 60  # memory per forecast value, including its demand and the result; measured
NO_READING = "no reading can be used: the forecast is made from the map and the clock alone."


@dataclass(frozen=True)
class Request:
    """One window as model input, and its forecast with the values still missing."""

    stream: RoadNetworkStream  # the window, with only the topologies it uses
    batch: Batch
    late: int  # steps between the end of the stream and the forecast
    forecast: Forecast  # all values NaN


def forecast(
    run: Run,
    network: RoadNetwork | None = None,
    stream: RoadNetworkStream | City | None = None,
    *,
    at: datetime | str | int | None = None,
    close: Sequence[str | Road] = (),
    add: Sequence[str | Road] = (),
    past: int | None = None,
    horizon: int | None = None,
    sensors: Literal["seen", "all"] = "seen",
    device: str | None = None,
    memory_gb: float | None = None,
    kernels: str = "auto",
) -> Forecast:
    """Forecast every node of a network for the `horizon` steps after `at`.

    Parameters
    ----------
    run : Run
        The trained model.
    network : RoadNetwork, optional
        Replaces the roads of every snapshot, as if they had always been so. Note that `city.network` has the roads of
        the last snapshot; for an earlier time, use `close` and `add`, which start from the roads of that time.
        Default: the roads as recorded.
    stream : RoadNetworkStream or City, optional
        The readings, of this or another city. Default: the city the run was trained on, from its folder.
    at : datetime, ISO-8601 text or seconds since 1970 UTC, optional
        Only snapshots complete at this time are read. A time without a zone is in the city's time zone. Default: the
        end of the stream.
    close, add : sequence of "A,B" or (A, B)
        One-way roads to close and to add ("A,B,120" gives the length in metres), relative to `network` or to the roads
        of the last snapshot complete at `at`.
    past, horizon : int, optional
        Number of snapshots to read and steps to forecast. Default: as in training.
    sensors : "seen" or "all"
        "all" also reads the nodes held out for testing (unseen in the run's split).
    device : str, optional
        "cpu" or "cuda". Default: cuda if available.
    memory_gb : float, optional
        Memory limit for activations; a network that needs more is forecast in blocks of nodes, with the same result up
        to rounding. Default: 4 on a CPU, most of the free memory on a GPU.
    kernels : "auto" or "reference"
        The fastest for the device, or the equations in plain torch operations, for comparison.

    Returns
    -------
    Forecast
        In the unit of the readings the model was trained on.
    """
    where, limits = best_device(device), replace(run.settings.train, memory_gb=memory_gb)  # validates memory_gb
    request = make_request(
        run, network, stream, at=at, close=close, add=add, past=past, horizon=horizon, sensors=sensors, device=where
    )
    now = request.stream.network
    predictor = Predictor(
        run.model, now, where, quantity=request.stream.quantity, memory_gb=limits.memory_gb, must_fit=True,
        kernels=kernels,
    )  # fmt: skip
    values, told = usable(predictor.to_array(predictor(request.batch)[0, request.late :], now), now.present)
    notices = request.forecast.notices + told
    if memory_gb is not None and run.model.reach is None:
        label = run.settings.model.label
        notices += (f"how far {label} looks is not known: the whole network was forecast at once.",)
    return replace(request.forecast, values=values, notices=notices)


def make_request(
    run: Run,
    network: RoadNetwork | None = None,
    source: RoadNetworkStream | City | None = None,
    *,
    at: datetime | str | int | None = None,
    close: Sequence[str | Road] = (),
    add: Sequence[str | Road] = (),
    past: int | None = None,
    horizon: int | None = None,
    sensors: Literal["seen", "all"] = "seen",
    device: torch.device | str = "cpu",
) -> Request:
    """The model input of `forecast` for the same arguments."""
    if sensors not in ("seen", "all"):
        raise SettingsError(f'sensors = "{sensors}": choose "seen" or "all"')
    trained_on, task = run.trained_on, run.settings.task
    task = Task(task.past if past is None else past, task.horizon if horizon is None else horizon)
    source = run.open_city() if source is None else source
    stream = source.stream if isinstance(source, City) else source
    notices = _check_stream(run, stream)
    at_s, more = _moment(stream, at, horizon=task.horizon)
    snapshots = stream.snapshot_at(at_s)
    stop = min(snapshots, stream.num_snapshots)
    late = snapshots - stop
    window = stream.slice(max(0, stop - task.past), stop)
    notices += more + _about_window(window, past=task.past, late=late) + _beyond_training(run, window, task)
    _refuse_too_many(late + task.horizon, network or window.network)
    if network is not None:
        notices += _not_of_that_time(network, window.network, stream.network)
    if len(close) or len(add):
        given = window.network if network is None else network
        notices += about_closed(given, close)
        network = edit_network(given, close=close, add=add)
    recorded = _used_topologies(window)
    if network is not None:
        notices += _left_out(window, network)
        window = window.on(network)
        notices += _cut_off(recorded.network, window.network)
    window = _used_topologies(window)
    now, inputs = window.network, _inputs(run, window, sensors)
    city = source if isinstance(source, City) else trained_on.folder
    topologies, more = build_topologies(window.topologies, run.scaling, sensors=inputs, city=city)
    notices += more
    if not (window.observed & inputs).any():
        notices.append(NO_READING)
    S, H = window.num_snapshots, late + task.horizon
    batch = Windows(window, topologies, device, ahead=H).batch(
        np.array([S - 1]), past=S, horizon=H, inputs=torch.from_numpy(inputs).to(device)
    )
    if run.scaling.demand is not None:
        batch, more = _with_demand(run, batch, stream.slice(0, stop), recorded, window, inputs, city)
        notices += more
    empty = np.full((task.horizon, now.num_nodes), np.nan)
    sensor = inputs & window.sensors & now.present
    made = make_forecast(
        trained_on, now, empty, at_s, sensor=sensor, timezone=stream.timezone, notices=notices,
        city=source if isinstance(source, City) else None,
    )  # fmt: skip
    return Request(window, batch, late, made)


def _used_topologies(window: RoadNetworkStream) -> RoadNetworkStream:
    """The window with only the topologies that its snapshots use."""
    used, topology_of = np.unique(window.topology_of, return_inverse=True)
    return replace(window, topologies=tuple(window.topologies[i] for i in used), topology_of=topology_of)


def _with_demand(
    run: Run,
    batch: Batch,
    past: RoadNetworkStream,
    recorded: RoadNetworkStream,
    window: RoadNetworkStream,
    inputs: NDArray[np.bool_],
    city: City | Path | None,
) -> tuple[Batch, list[str]]:
    """The batch with its demand, and notices.

    The readings were taken on the roads as `recorded`; the coming hour uses those of `window`, which may differ.
    """
    now, device = window.network, batch.values.device
    if not np.array_equal(past.node_ids, now.node_ids):  # a different table of nodes needs trips of its own
        past, recorded = past.on(now), window
    known, _ = split_on(run, past.main_network)
    unknown = replace(past, observed=past.observed & inputs & ~known)
    trips = RunTrips.of(run, past.main_network, city, past=unknown if unknown.observed.any() else None)
    demand = trips.demand(inputs)
    networks = [*recorded.topologies, now]
    rerouted = [trips.rerouted([demand], network)[0] for network in networks]
    roads = torch.from_numpy(np.array([[each.node_change for each in rerouted]]))
    past_on = torch.from_numpy(recorded.topology_of.copy()).to(device)[None]
    ahead_on = torch.full((1,), len(networks) - 1, device=device)
    shares = [[trips.sensor_shares(demand, now)]]
    tables = DemandTables.of([demand], device, step_s=window.step_s, roads=roads, shares=shares)
    return tables.apply(batch, torch.zeros_like(ahead_on), past_on, ahead_on), about_detours(rerouted[-1], now)


def about_detours(rerouted: Rerouted, now: RoadNetwork) -> list[str]:
    """Notices about rerouted trips."""
    notices = []
    nobody = now.node_ids[(rerouted.node_change == 0) & now.present]
    if len(nobody):
        notices.append(f"nobody can pass {_named(nobody.tolist())} any more: forecast as 0.")
    if rerouted.lost >= 0.001:
        notices.append(f"{rerouted.lost:.1%} of the vehicles can no longer get to where they were going.")
    return notices


def _not_of_that_time(network: RoadNetwork, then: RoadNetwork, last: RoadNetwork) -> list[str]:
    """A notice of roads that are open or closed as at the end of the stream, but were not at the forecast's time."""
    if then.fingerprint == last.fingerprint:
        return []
    given, open_then, open_last = (_road_ends(each) for each in (network, then, last))
    kinds = {
        "open, but closed at that time": sorted((given & open_last) - open_then),
        "closed, but open at that time": sorted(open_then - given - open_last),
    }
    found = [f"{_named(roads, 'road')} {what}" for what, roads in kinds.items() if roads]
    remedy = "To start from the roads of that time, leave the network out and name the roads to close or add."
    return [f"the network is used as given, with {' and '.join(found)}. {remedy}"] if found else []


def _road_ends(network: RoadNetwork) -> set[str]:
    ids = network.node_ids
    pairs = zip(ids[network.senders].tolist(), ids[network.receivers].tolist(), strict=True)
    return {f"{a},{b}" for a, b in pairs}


def _cut_off(old: RoadNetwork, new: RoadNetwork) -> list[str]:
    if not np.array_equal(old.node_ids, new.node_ids):
        return []
    away = new.node_ids[newly_cut_off(old, new)]
    return [f"no way leads from most of the network to {_named(away.tolist())} and back any more."] if len(away) else []


def _named(ids: Sequence[object], what: str = "node") -> str:
    first = (", " if what == "node" else "; ").join(map(str, ids[:3]))
    if len(ids) == 1:
        return f"{what} {first}"
    return f"{len(ids):,} {what}s ({first}{', ...' if len(ids) > 3 else ''})"


def _inputs(run: Run, window: RoadNetworkStream, sensors: str) -> NDArray[np.bool_]:
    """[N] the nodes to read; those of the run's split are matched by id and location, as anchors are."""
    seen, unseen = split_on(run, window.network)
    inputs = seen | window.sensors
    return inputs | unseen if sensors == "all" else inputs & ~unseen


def split_on(run: Run, network: RoadNetwork) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[N] which nodes of a network are seen, and which unseen, in the run's split; matched by id and location."""
    row = network.same_nodes(run.nodes)
    return run.split.seen[row] & (row >= 0), run.split.unseen[row] & (row >= 0)


def edit_network(
    network: RoadNetwork, *, close: Sequence[str | Road] = (), add: Sequence[str | Road] = ()
) -> RoadNetwork:
    """The network with roads closed and added.

    Parameters
    ----------
    network
        Nodes are intersections, or roads joined by turns.
    close
        One-way roads, each "A,B" or (A, B); or a node, which closes all its roads. In a city on roads a node is a
        road, and "A,B" also names it.
    add
        One-way roads, each "A,B", (A, B) or "A,B,metres".
    """
    roads, nodes = _to_close(network, close)
    new = [_new_road(road) for road in ([add] if isinstance(add, str) else add)]
    network = network.close(roads).close_nodes(nodes)
    return network.add(roads=[road for road, _ in new], length_m=[length_m for _, length_m in new])


def _to_close(network: RoadNetwork, close: Sequence[str | Road]) -> tuple[list[Road], list[str]]:
    """The edges to close, and the nodes to close with all their edges."""
    known, of_roads = {str(node_id) for node_id in network.node_ids.tolist()}, len(network.lines) > 0
    roads: list[Road] = []
    nodes: list[str] = []
    for item in [close] if isinstance(close, str) else close:
        text = item.strip() if isinstance(item, str) else ",".join(map(str, item))
        by_ends = ">".join(part.strip() for part in text.split(","))
        if text in known:
            nodes.append(text)
        elif of_roads and by_ends in known:
            nodes.append(by_ends)
        else:
            roads.append(_ends(item, "--close", of_roads=of_roads))
    return roads, nodes


def about_closed(network: RoadNetwork, close: Sequence[str | Road]) -> list[str]:
    """Notices about closing whole nodes, which are roads in a city on roads."""
    notices = []
    for node in _to_close(network, close)[1]:
        at, of_roads = network.row_of(node), len(network.lines) > 0
        count = int(((network.senders == at) | (network.receivers == at)).sum())
        parts = f"{count} turn{'s' * (count != 1)} into and out of it" if of_roads else f"{count} roads at it"
        notices.append(f"closed {'road' if of_roads else 'node'} {node}, with the {parts}.")
    return notices


def _ends(road: str | Road, option: str, *, of_roads: bool = False) -> Road:
    if not isinstance(road, str):
        return road  # the network checks it
    parts = [part.strip() for part in road.split(",")]
    if len(parts) != 2 or not all(parts):
        way = "its id, or a turn by its two roads, as" if of_roads else "its two end nodes, as"
        example = f'{option} "41>42", {option} "41>42,42>43"' if of_roads else f"{option} 41,42"
        raise CityError(f'{option} "{road}": name a one-way road by {way} {example}')
    return parts[0], parts[1]


def _new_road(road: str | Road) -> tuple[Road, float | None]:
    if not isinstance(road, str):
        return road, None
    ends, _, last = road.rpartition(",")
    if "," not in ends:
        return _ends(road, "--add"), None
    try:
        length_m = float(last)
    except ValueError:
        raise CityError(
            f'--add "{road}": "{last.strip()}" is not a length in metres. Give --add A,B or --add A,B,120'
        ) from None
    return _ends(ends, "--add"), length_m


def _check_stream(run: Run, stream: RoadNetworkStream) -> list[str]:
    run.trained_on.refuse_other_kind(stream)
    if stream.num_snapshots == 0:
        raise CityError("the stream has no snapshot to forecast from. Give a city, or a stream, that has readings")
    unit = run.trained_on.unit
    if stream.unit == unit:
        return []
    return [f'the stream\'s unit is "{stream.unit}"; the model reads and forecasts "{unit}".']


def _moment(stream: RoadNetworkStream, at: datetime | str | int | None, *, horizon: int) -> tuple[int, list[str]]:
    """The forecast's time in seconds since 1970 UTC, rounded down to a step of the stream; and notices."""
    end_s, steps = stream.end_s, stream.steps
    if at is None or at == "now":
        return end_s, []
    time_s, notices = _seconds(at, stream.timezone)
    first_s, last_s = steps.time_s(1), steps.time_s(stream.num_snapshots + horizon)
    if not first_s <= time_s <= last_s:
        raise SettingsError(
            f"at {local_iso(time_s, stream.timezone)}: a forecast can be made from "
            f"{local_iso(first_s, stream.timezone)}, when the stream's first snapshot is complete, until "
            f"{local_iso(last_s, stream.timezone)}, {horizon} steps after its end"
        )
    floored_s = steps.time_s(stream.snapshot_at(time_s))
    if floored_s != time_s:
        notices.append(
            f"{local_iso(time_s, stream.timezone)} is inside a step of {stream.step_s} s: "
            f"the forecast is made at {local_iso(floored_s, stream.timezone)}."
        )
    return floored_s, notices


def _seconds(at: datetime | str | int, timezone: str) -> tuple[int, list[str]]:
    not_a_time = SettingsError(
        f'at "{at}": not a time. Give ISO-8601, as 2024-03-04T08:00 (the city\'s time) or '
        "2024-03-04T07:00Z, or leave it out for the end of the stream"
    )
    try:
        when = datetime.fromisoformat(at.strip()) if isinstance(at, str) else at
        if isinstance(when, int | np.integer):
            when = datetime.fromtimestamp(int(when), UTC)
        if not isinstance(when, datetime) or not 1 < when.year < 9999:  # its local time must be a valid date too
            raise not_a_time
    except (ValueError, OverflowError, OSError):
        raise not_a_time from None
    if when.tzinfo is not None:
        return int(when.timestamp() // 1), []
    one, other = (when.replace(tzinfo=zone(timezone), fold=fold) for fold in (0, 1))
    time_s = int(one.timestamp() // 1)
    if one.utcoffset() == other.utcoffset():
        return time_s, []
    return time_s, [
        f"{when.isoformat()} is not one moment in {timezone}, where the clocks change then: "
        f"taken as {local_iso(time_s, timezone)}. Add a UTC offset to be exact."
    ]


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
    trained, notices = run.settings.task, []
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
    needed, limit = steps * network.num_nodes * BYTES_PER_VALUE, memory_limit(None, torch.device("cpu"))
    if needed > limit:
        raise SettingsError(
            f"horizon: {steps} steps at {network.num_nodes} nodes take about {needed / 2**30:.2g} GB, and "
            f"{limit / 2**30:.2g} GB are allowed. Forecast fewer steps"
        )


def short_window(snapshots: int, past: int) -> str:
    return f"{snapshots} snapshots are complete by then, not {past}: those are used."


def _left_out(window: RoadNetworkStream, network: RoadNetwork) -> list[str]:
    column = network.same_nodes(window.topologies[0])
    there = np.isin(np.arange(window.num_nodes), column[network.present])
    lost, all_ = int((window.sensors & ~there).sum()), int(window.sensors.sum())
    where = f"are not on this network, by id and place (within {SAME_PLACE_M:g} m)"
    return [f"{lost} of {all_} nodes with readings {where}: left out."] if lost else []
