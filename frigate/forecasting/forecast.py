"""Forecast from a run at one moment: the run's city or another, as it is or with roads closed and added.

A forecast made at X reads only snapshots that are complete at X. It goes out with the user's own node ids.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.config import Task
from frigate.data.city import City
from frigate.data.network import SAME_PLACE_M, Road, RoadNetwork
from frigate.data.stream import RoadNetworkStream, calendar, local_iso, utc_offsets_s, zone
from frigate.errors import CityError, SettingsError
from frigate.graph.feature_cache import ensure_road_features
from frigate.graph.road_features import road_features
from frigate.nn.batch import Batch, Topology
from frigate.nn.scaling import build_topologies
from frigate.training.checkpoint import Run
from frigate.training.partition import in_blocks, reach_of
from frigate.training.train import best_device
from frigate.training.trainer import memory_limit

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = (".csv", ".parquet", ".geojson", ".json")


@dataclass(frozen=True)
class Forecast:
    """Forecasts of H steps at N nodes, in the user's unit. NaN at a node that is absent from the network."""

    node_ids: NDArray[np.generic]  # [N]
    lon: NDArray[np.float64]  # [N]
    lat: NDArray[np.float64]  # [N]
    times_s: NDArray[np.int64]  # [H] start of each forecast interval, seconds since 1970 UTC
    values: NDArray[np.float64]  # [H,N]
    sensor: NDArray[np.bool_]  # [N] nodes whose readings were used
    at_s: int  # the moment of the forecast: everything used was known then
    step_s: int
    timezone: str
    quantity: str
    unit: str
    notices: tuple[str, ...] = ()  # what a reader must be told

    @property
    def horizon(self) -> int:
        return len(self.times_s)

    def local_times(self) -> list[str]:
        """[H] ISO-8601 in the city's time zone."""
        return [local_iso(time_s, self.timezone) for time_s in self.times_s.tolist()]

    def to_frame(self) -> pl.DataFrame:
        """A long table, a row for each node and step: node_id, time (UTC), local_time, step_ahead, value."""
        import polars as pl

        H, N = self.values.shape
        step = np.tile(np.arange(H), N)
        return pl.DataFrame(
            {
                "node_id": np.repeat(self.node_ids, H),
                "time": pl.Series(self.times_s[step] * 1_000_000, dtype=pl.Datetime("us", "UTC")),
                "local_time": np.array(self.local_times())[step],
                "step_ahead": step + 1,
                "value": pl.Series(self.values.T.ravel(), nan_to_null=True),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """The same with one list of values for each node; null where it is absent."""
        columns = zip(*self._rows(), strict=True)
        names = ("node_id", "lon", "lat", "sensor", "values")
        return {**self._about(), "nodes": [dict(zip(names, column, strict=True)) for column in columns]}

    def to_geojson(self) -> dict[str, Any]:
        """A point for each node, with properties step_1 .. step_H: plain numbers, which any map program can colour."""
        features = [
            {
                "type": "Feature",
                "id": node_id,
                "geometry": {"type": "Point", "coordinates": [lon, lat]},
                "properties": {
                    "node_id": node_id,
                    "sensor": sensor,
                    **{f"step_{step}": value for step, value in enumerate(values, start=1)},
                },
            }
            for node_id, lon, lat, sensor, values in zip(*self._rows(), strict=True)
        ]
        return {"type": "FeatureCollection", **self._about(), "features": features}

    def summary(self) -> str:
        """What is forecast, in one line."""
        H, N = self.values.shape
        sensors = int(self.sensor.sum())
        return (
            f"{N} nodes from {sensors} sensors, {H} steps of {self.step_s} s from {local_iso(self.at_s, self.timezone)}"
        )

    def write(self, path: str | Path, *, suffix: str | None = None) -> Path:
        """Write a .csv, .parquet, .geojson or .json file, by the path's suffix where none is given."""
        path = Path(path)
        form = (path.suffix if suffix is None else suffix).lower()
        if form not in SUFFIXES:
            raise SettingsError(f'{path}: "{form}" is not a form of forecast. Use {", ".join(SUFFIXES)}')
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._file(form))
        except OSError as error:
            remedy = "Name a file in a folder that can be written"
            raise SettingsError(f"{path}: cannot be written: {error.strerror}. {remedy}") from None
        return path

    def _file(self, form: str) -> bytes:
        if form == ".csv":
            return self._csv().encode()
        if form == ".parquet":
            held = io.BytesIO()
            self.to_frame().write_parquet(held)
            return held.getvalue()
        data = self.to_geojson() if form == ".geojson" else self.to_json()
        return json.dumps(data, ensure_ascii=False, allow_nan=False).encode()

    def _csv(self) -> str:
        """The table of `to_frame`, without polars: a bare machine has none."""
        utc = [datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for time_s in self.times_s.tolist()]
        steps = list(zip(utc, self.local_times(), range(1, self.horizon + 1), strict=True))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("node_id", "time", "local_time", "step_ahead", "value"))
        for node_id, values in zip(self.node_ids.tolist(), self.values.T.tolist(), strict=True):
            cells = ("" if math.isnan(value) else value for value in values)
            writer.writerows((node_id, *step, value) for step, value in zip(steps, cells, strict=True))
        return text.getvalue()

    def _rows(self) -> tuple[list[Any], ...]:
        values = [[None if math.isnan(x) else round(x, 4) for x in row] for row in self.values.T.tolist()]
        return (self.node_ids.tolist(), self.lon.tolist(), self.lat.tolist(), self.sensor.tolist(), values)

    def _about(self) -> dict[str, Any]:
        return {
            "at": local_iso(self.at_s, self.timezone),
            "times": self.local_times(),
            "step_s": self.step_s,
            "timezone": self.timezone,
            "quantity": self.quantity,
            "unit": self.unit,
            "notices": list(self.notices),
        }


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
) -> Forecast:
    """Forecast the `horizon` steps after `at` (the end of the stream where nothing is said).

    A `network` stands in for the topology of every snapshot: what if it had been so all along. So does the topology
    of the last snapshot complete at `at` with roads closed and added, "A,B" or (A, B) each. A time without zone is
    the city's own. Nodes held out as test (unseen in the run's split) are not read unless `sensors` is "all".
    Where activations would take more than `memory_gb` (4 on a CPU, most of what is free on a GPU where nothing is
    said) the network is forecast in blocks of nodes, with the same result up to rounding.
    """
    if sensors not in ("seen", "all"):
        raise SettingsError(f'sensors = "{sensors}": choose "seen" or "all"')
    source = run.city if stream is None else stream
    stream = source.stream if isinstance(source, City) else source
    notices = _check_stream(run, stream)
    task = Task(
        run.settings.task.past if past is None else past,
        run.settings.task.horizon if horizon is None else horizon,
    )
    at_s, said = _moment(stream, at, horizon=task.horizon)
    stop = min((at_s - stream.start_s) // stream.step_s, stream.num_snapshots)
    late = (at_s - stream.start_s) // stream.step_s - stop  # steps between the last reading and the forecast
    window = stream.slice(max(0, stop - task.past), stop)
    notices += said + _about_window(stream, window, past=task.past, late=late)
    if len(close) or len(add):
        network = edit_network(window.network if network is None else network, close=close, add=add)
    if network is not None:
        notices += _left_out(window, network)
        window = window.on(network)
    city = source if network is None and isinstance(source, City) else None
    window, topologies, inputs, more = _as_model_sees(run, window, sensors, city=city)
    times_s = at_s + stream.step_s * np.arange(-late, task.horizon, dtype=np.int64)
    where = best_device(device)
    limit = memory_limit(replace(run.settings.train, memory_gb=memory_gb), where)
    values = _run_model(run, window, topologies, inputs, times_s, device=where, limit=limit)[late:]
    if memory_gb is not None and reach_of(run.model) is None:
        more.append(f"how far {run.settings.model.label} looks is not known: the whole network was forecast at once.")
    now = window.network
    return Forecast(
        node_ids=now.node_ids,
        lon=now.lon,
        lat=now.lat,
        times_s=times_s[late:],
        values=np.where(now.present, np.maximum(values, 0) if stream.quantity == "count" else values, np.nan),
        sensor=inputs & window.sensors & now.present,
        at_s=at_s,
        step_s=stream.step_s,
        timezone=stream.timezone,
        quantity=stream.quantity,
        unit=run.city.stream.unit,
        notices=tuple(notices + more),
    )


def edit_network(
    network: RoadNetwork, *, close: Sequence[str | Road] = (), add: Sequence[str | Road] = ()
) -> RoadNetwork:
    """The network with roads closed and added, each one way: "A,B" or (A, B), or to add "A,B,metres"."""
    close, add = ([roads] if isinstance(roads, str) else roads for roads in (close, add))
    network = network.close([_ends(road, "--close") for road in close])
    new = [_new_road(road) for road in add]
    return network.add(roads=[road for road, _ in new], length_m=[length_m for _, length_m in new])


def _ends(road: str | Road, option: str) -> Road:
    if not isinstance(road, str):
        return road  # the network checks it
    parts = [part.strip() for part in road.split(",")]
    if len(parts) != 2 or not all(parts):
        raise CityError(f'{option} "{road}": name a one-way road by its two end nodes, as {option} 41,42')
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
    trained = run.city.stream
    if stream.step_s != trained.step_s:
        raise SettingsError(
            f"the stream's step is {stream.step_s} s, the model was trained on steps of {trained.step_s} s. "
            "Bring the readings to that step, or train on this stream"
        )
    if stream.quantity != trained.quantity:
        raise SettingsError(
            f'the stream\'s quantity is "{stream.quantity}", the model was trained on "{trained.quantity}". '
            "Use a model trained on that quantity"
        )
    if stream.num_snapshots == 0:
        raise CityError("the stream has no snapshot to forecast from. Give a city, or a stream, that has readings")
    if stream.unit != trained.unit:
        return [f'the stream\'s unit is "{stream.unit}"; the model reads and forecasts "{trained.unit}".']
    return []


def _moment(stream: RoadNetworkStream, at: datetime | str | int | None, *, horizon: int) -> tuple[int, list[str]]:
    """Seconds since 1970 UTC, on a step of the stream."""
    end_s = stream.start_s + stream.num_snapshots * stream.step_s
    if at is None or at == "now":
        return end_s, []
    time_s, notices = _seconds(at, stream.timezone)
    first_s, last_s = stream.start_s + stream.step_s, end_s + horizon * stream.step_s
    if not first_s <= time_s <= last_s:
        raise SettingsError(
            f"at {local_iso(time_s, stream.timezone)}: a forecast can be made from "
            f"{local_iso(first_s, stream.timezone)}, when the stream's first snapshot is complete, until "
            f"{local_iso(last_s, stream.timezone)}, {horizon} steps after its end"
        )
    floored_s = time_s - (time_s - stream.start_s) % stream.step_s
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
        if not isinstance(when, datetime) or not 1 < when.year < 9999:  # its local time is in a calendar, too
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


def _about_window(stream: RoadNetworkStream, window: RoadNetworkStream, *, past: int, late: int) -> list[str]:
    said = []
    if window.num_snapshots < past:
        said.append(f"{window.num_snapshots} snapshots are complete by then, not {past}: those are used.")
    if late:
        end_s = window.start_s + window.num_snapshots * window.step_s
        said.append(
            f"the stream ends at {local_iso(end_s, stream.timezone)}, {late} steps before the forecast: "
            "its last readings are that old."
        )
    return said


def _left_out(window: RoadNetworkStream, network: RoadNetwork) -> list[str]:
    column = network.same_nodes(window.topologies[0])
    there = np.isin(np.arange(window.num_nodes), column[network.present])
    lost, all_ = int((window.sensors & ~there).sum()), int(window.sensors.sum())
    where = f"are not on this network, by id and place (within {SAME_PLACE_M:g} m)"
    return [f"{lost} of {all_} nodes with readings {where}: left out."] if lost else []


def _as_model_sees(
    run: Run, window: RoadNetworkStream, sensors: str, *, city: City | None
) -> tuple[RoadNetworkStream, tuple[Topology, ...], NDArray[np.bool_], list[str]]:
    """The window with only the topologies it uses, those as the model sees them, the nodes to read [N], notices.

    `city` is the one that the window is of, which may keep the features of its roads; None for another network.
    """
    used, topology_of = np.unique(window.topology_of, return_inverse=True)
    networks = [window.topologies[i] for i in used]
    notices = []
    features: list[NDArray[np.float32]] | None = None
    if run.scaling.roads is not None:
        if city is None:
            features = [road_features(network) for network in networks]
        else:
            ready = ensure_road_features(city).road_features
            features = [ready[i] for i in used]
        if city is not run.city:
            notices.append(run.scaling.roads.notice(features[-1]))
    seen, unseen = _split_here(run, networks[-1])
    inputs = seen | window.sensors
    inputs = inputs | unseen if sensors == "all" else inputs & ~unseen
    topologies, said = build_topologies(networks, run.scaling, sensors=inputs, features=features)
    notices.append(said)
    if not (window.observed & inputs).any():
        notices.append("no reading can be used: the forecast is made from the map and the clock alone.")
    window = RoadNetworkStream(
        window.values, window.observed, tuple(networks), topology_of, window.start_s, window.step_s,
        window.utc_offset_s, window.timezone, window.quantity, window.unit,
    )  # fmt: skip
    return window, topologies, inputs, [notice for notice in notices if notice]


def _split_here(run: Run, network: RoadNetwork) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[N] which nodes are the seen, and the unseen, of the run's split: by id and place, as anchors are."""
    row = network.same_nodes(run.city.stream.topologies[0])
    return run.split.seen[row] & (row >= 0), run.split.unseen[row] & (row >= 0)


@torch.inference_mode()
def _run_model(
    run: Run,
    window: RoadNetworkStream,
    topologies: tuple[Topology, ...],
    inputs: NDArray[np.bool_],
    times_s: NDArray[np.int64],
    *,
    device: torch.device,
    limit: int,
) -> NDArray[np.float64]:
    """[H,N] in the user's unit, not clamped."""
    held, where = next(run.model.parameters()).device, device
    there = where.type == held.type and where.index in (None, held.index)
    ready = there and not run.model.training
    model = run.model if ready else copy.deepcopy(run.model).to(where).eval()  # the run's own stays where and as it is
    observed = window.observed & inputs
    future = calendar(times_s + utc_offsets_s(times_s, window.timezone))
    batch = Batch(
        values=torch.from_numpy(window.values * observed)[None].to(where),
        observed=torch.from_numpy(observed)[None].to(where),
        calendar_past=torch.from_numpy(window.calendar)[None].to(where),
        calendar_future=torch.from_numpy(future)[None].to(where),
        topologies=tuple(topology.to(where) for topology in topologies),
        topology_of=torch.from_numpy(window.topology_of)[None],
    )
    with torch.autocast(where.type, torch.bfloat16, enabled=where.type == "cuda"):
        values = in_blocks(model, batch, lon=window.network.lon, lat=window.network.lat, limit=limit, must_fit=True)[0]
    return np.asarray(values.double().cpu().numpy())
