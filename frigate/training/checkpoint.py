"""A run on disk: never a pickle, never half-written.

    RUN/metrics.jsonl               a line for each epoch
    RUN/checkpoint-0012/            the last finished epoch, renamed into place as one
        weights.safetensors         the best weights so far: what forecasts are made with
        state.safetensors           the current weights and the optimiser's moments, to go on from
        run.json                    settings, scales, anchors, split, network, versions, progress

The random state is not stored: every epoch draws from a generator seeded with (seed, epoch).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from frigate.baselines.deep import DeepBaseline, build_baseline
from frigate.config import BaselineSettings, Settings
from frigate.data.city import City, open_city
from frigate.data.network import SAME_PLACE_M, Edges, RoadNetwork, haversine_m
from frigate.data.split import Period, Split
from frigate.data.stream import RoadNetworkStream
from frigate.errors import CheckpointError, FrigateError, SettingsError
from frigate.graph.road_features import FEATURE_WIDTH
from frigate.nn.model import Frigate, default, paper
from frigate.nn.scaling import Scaling
from frigate.training.environment import versions

FORMAT = 3
PREFIX = "checkpoint-"
MUST_MATCH_ON_RESUME = ("network", "changes", "start_s", "snapshots", "timezone", "readings")  # of a city
WEIGHTS, STATE, DESCRIPTION = "weights.safetensors", "state.safetensors", "run.json"


@dataclass(frozen=True)
class Run:
    """A trained model with all that it needs to forecast."""

    model: Model
    settings: Settings
    scaling: Scaling
    split: Split
    city: City  # the one trained on; opened without it: its sensors alone, without roads or readings
    folder: Path | None
    progress: TrainingState


@dataclass(frozen=True)
class TrainingState:
    """How far training has come."""

    epoch: int = 0  # finished epochs
    best_epoch: int = 0
    best_mae: float = float("inf")  # at the validation nodes and times
    seconds: float = 0.0
    finished: bool = False


Model = Frigate | DeepBaseline
Build = Callable[[Settings, Scaling], Model]


def build_model(settings: Settings, scaling: Scaling) -> Model:
    model = settings.model
    if isinstance(model, BaselineSettings):
        return build_baseline(model, settings.task, scaling)
    scales = {
        "value_offset": scaling.value_offset,
        "value_scale": scaling.value_scale,
        "length_scale_m": scaling.length_scale_m,
    }
    return default(model, road_features=FEATURE_WIDTH, **scales) if model.roads else paper(model, **scales)


def save_checkpoint(folder: Path, run: Run, *, weights: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """Write the epoch beside, rename it into place, then drop the older ones. No epoch is written twice."""
    name = f"{PREFIX}{run.progress.epoch:04d}"
    beside = folder / f".{name}.writing"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f".{PREFIX}*.writing"):  # of a training that was killed
            shutil.rmtree(left)
        beside.mkdir()
        save_file({k: v.detach().cpu().contiguous() for k, v in weights.items()}, beside / WEIGHTS)
        save_file({k: v.detach().cpu().contiguous() for k, v in state.items()}, beside / STATE)
        text = json.dumps(_run_json(run), indent=1, allow_nan=False)
        (beside / DESCRIPTION).write_text(text, encoding="utf-8")
        for path in (*beside.iterdir(), beside):
            _sync(path)
        os.replace(beside, folder / name)
        _sync(folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the epoch cannot be written: {error}. Make room, then go on") from None
    for old in _checkpoints(folder)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def load_run(
    folder: str | Path,
    *,
    city: str | Path | City | None = None,
    without_city: bool = False,
    build: Build = build_model,
) -> Run:
    """Open a run for forecasting, on the CPU. `city` replaces the folder that the run was trained on.

    `without_city` opens it with none, wherever that folder is: to forecast on the streams of other cities. `build` is
    what the run was trained with.
    """
    if without_city and city is not None:
        raise SettingsError("without_city: leave out the city, or open the run with it")
    run, weights, _ = _load(Path(folder), city, without_city=without_city, build=build)
    run.model.load_state_dict(weights)
    run.model.eval()
    return run


def load_checkpoint(
    folder: Path, *, city: str | Path | City | None = None, build: Build = build_model
) -> tuple[Run, dict[str, Tensor], dict[str, Tensor]]:
    """To go on training: the run with an unfilled model, its best weights, and the state to go on from."""
    run, weights, at = _load(folder, city, build=build)
    then, now = _read_description(at)["city"], _city_json(run.city)
    changed = [name for name in MUST_MATCH_ON_RESUME if then.get(name) != now[name]]
    if "network" in changed:
        changed.remove("changes")  # which lead to the network, so that they are others too
    if changed:
        raise CheckpointError(
            f"{at / DESCRIPTION}: the city has changed since ({', '.join(changed)}). Give it as it was, or train into "
            "another folder"
        )
    state = _read_tensors(at / STATE)
    _same_tensors(at / STATE, run.model, {k[6:]: v for k, v in state.items() if k.startswith("model.")})
    return run, weights, state


def load_settings_of(folder: str | Path) -> Settings:
    """The settings of the run in a folder."""
    at = _last_checkpoint(Path(folder))
    with _whole(at / DESCRIPTION):
        return Settings.from_json(_read_description(at)["settings"])


def _load(
    folder: Path, city: str | Path | City | None, *, without_city: bool = False, build: Build
) -> tuple[Run, dict[str, Tensor], Path]:
    """The run with an unfilled model, its best weights, and the checkpoint's folder."""
    at = _last_checkpoint(folder)
    data = _read_description(at)
    with _whole(at / DESCRIPTION):
        settings = Settings.from_json(data["settings"])
        scaling = Scaling.from_json(data["scaling"])
        told = {**data["progress"]}
        progress = TrainingState(**told | {"best_mae": math.inf if told["best_mae"] is None else told["best_mae"]})
        where, step_s, start_s, quantity = (data["city"][name] for name in ("folder", "step_s", "start_s", "quantity"))
        sensors = _sensors(data)
    if without_city:
        city = sensors
    elif city is None:
        city = _own_city(where and folder / where, at)
    elif not isinstance(city, City):
        city = open_city(city)
    stream = city.stream
    for name, trained, here in (("step_s", step_s, stream.step_s), ("quantity", quantity, stream.quantity)):
        if trained != here:
            raise CheckpointError(
                f"{folder}: trained on {name} = {trained!r}, but the city has {here!r}. Use another run, or train again"
            )
    with _whole(at / DESCRIPTION):
        split = Split.from_json(data["split"], stream.node_ids)
        split = _shifted(split, (start_s - stream.start_s) // step_s)  # the city may have lost or won early readings
    away_m = _away_m(sensors.network, city.network)
    if not away_m <= SAME_PLACE_M:
        raise CheckpointError(
            f"{folder}: the nodes it was trained on are {away_m:,.0f} m away from those of the same ids in this city. "
            "Use the run's own city, or train on this one"
        )
    run = Run(build(settings, scaling), settings, scaling, split, city, folder, progress)
    weights = _read_tensors(at / WEIGHTS)
    _same_tensors(at / WEIGHTS, run.model, weights)
    return run, weights, at


def _sensors(data: dict[str, Any]) -> City:
    """What a run knows of its city by itself: the nodes of its split, and how their readings were taken."""
    told, split = data["city"], data["split"]
    lon, lat = (np.array(told[name], np.float64) for name in ("lon", "lat"))
    node_ids = np.array([*split["seen"], *split["unseen"]])
    if not lon.shape == lat.shape == node_ids.shape:
        raise ValueError(f"{len(node_ids)} nodes in the split, {len(lon)} lon, {len(lat)} lat")
    none = np.zeros(0, np.int64)
    stream = RoadNetworkStream(
        np.zeros((0, len(lon)), np.float32), np.zeros((0, len(lon)), bool),
        (RoadNetwork(node_ids, lon, lat, Edges.none()),), none, told["start_s"], told["step_s"], none,
        told["timezone"], told["quantity"], told["unit"],
    )  # fmt: skip
    return City(told["name"], stream)


def _away_m(then: RoadNetwork, now: RoadNetwork) -> float:
    """How far nodes have moved, half of them at most: ids alone do not tell one town from another."""
    row = now.rows_of(then.node_ids.tolist())
    return float(np.median(haversine_m(then.lon, then.lat, now.lon[row], now.lat[row])))


def _shifted(split: Split, snapshots: int) -> Split:
    def later(period: Period) -> Period:
        return period[0] + snapshots, period[1] + snapshots

    return replace(split, train=later(split.train), validate=later(split.validate), test=later(split.test))


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """What a damaged description lacks is said with its path."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, SettingsError) as error:
        raise CheckpointError(f"{path}: {type(error).__name__}: {error}. It is damaged; train again") from None


def _same_tensors(path: Path, model: Model, tensors: dict[str, Tensor]) -> None:
    if {k: v.shape for k, v in tensors.items()} != {k: v.shape for k, v in model.state_dict().items()}:
        raise CheckpointError(f"{path}: its tensors are not those of this version's model. Train again")


def _own_city(folder: Path | None, at: Path) -> City:
    if folder is None:
        raise CheckpointError(f"{at / 'run.json'}: it was trained on a city in memory. Pass the city with --city CITY")
    try:
        return open_city(folder)
    except FrigateError as error:
        raise CheckpointError(
            f"{at / 'run.json'}: its city cannot be opened: {error}. Pass another with --city CITY"
        ) from error


def _checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    found = [path for path in folder.glob(f"{PREFIX}*") if path.is_dir() and path.name[len(PREFIX) :].isdigit()]
    return sorted(found, key=lambda path: int(path.name[len(PREFIX) :]))


def _last_checkpoint(folder: Path) -> Path:
    remedy = "Name the folder that `frigate train -o` wrote"
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: {'not a folder' if folder.exists() else 'there is no such folder'}. {remedy}")
    found = _checkpoints(folder)
    if not found:
        raise CheckpointError(f"{folder}: no finished epoch ({PREFIX}NNNN) in it. {remedy}, or train without --resume")
    return found[-1]


def _city_json(city: City) -> dict[str, Any]:
    stream = city.stream
    return {
        "name": city.name,
        "network": city.network.fingerprint,
        "changes": _changes_digest(stream),
        "readings": stream.digest,
        "start_s": stream.start_s,
        "step_s": stream.step_s,
        "snapshots": stream.num_snapshots,
        "quantity": stream.quantity,
        "unit": stream.unit,
        "timezone": stream.timezone,
    }


def _changes_digest(stream: RoadNetworkStream) -> str:
    """Sixteen hex digits that change with the topologies and with the times at which one follows another."""
    prints = np.array([network.fingerprint for network in stream.topologies])[stream.topology_of]  # [S]
    turns = np.flatnonzero(prints[1:] != prints[:-1]) + 1
    course = [*prints[:1].tolist(), *(f"{stream.times_s[turn]} {prints[turn]}" for turn in turns)]
    return hashlib.sha256("\n".join(course).encode()).hexdigest()[:16]


def _run_json(run: Run) -> dict[str, Any]:
    where = None
    if run.city.folder is not None and run.folder is not None:
        where = os.path.relpath(run.city.folder.resolve(), run.folder.resolve())
    best_mae = run.progress.best_mae if math.isfinite(run.progress.best_mae) else None  # JSON has no infinity
    network = run.city.network
    nodes = np.concatenate([np.flatnonzero(run.split.seen), np.flatnonzero(run.split.unseen)])  # as in "split"
    return {
        "format": FORMAT,
        "settings": run.settings.to_json(),
        "scaling": run.scaling.to_json(),
        "split": run.split.to_json(run.city.stream.node_ids),
        "progress": vars(run.progress) | {"best_mae": best_mae},
        "city": {
            "folder": where,
            **_city_json(run.city),
            "lon": network.lon[nodes].tolist(),
            "lat": network.lat[nodes].tolist(),
        },
        "versions": versions(),
    }


def _read_description(at: Path) -> dict[str, Any]:
    path = at / DESCRIPTION
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}. Train again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: not a run's description. Train again")
    if data.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format {data.get('format')!r}, this version reads {FORMAT}. Train again")
    return data


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cut short or damaged ({error}). Train again") from None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
