"""A run on disk: never a pickle, never half-written.

    RUN/.frigate-training           who trains here; locked while training lasts
    RUN/metrics.jsonl               a line for each epoch
    RUN/checkpoint-0012/            the last finished epoch, renamed into place as one
        weights.safetensors         the best weights so far: what forecasts are made with
        state.safetensors           the current weights and the optimiser's moments, to resume from
        usual_counts.safetensors    of the sensors, by kind of day and hour: what demand is calibrated with
        run.json                    settings, scaling, split, the city trained on, versions, progress

The random state is not stored: every epoch draws from a generator seeded with (seed, epoch).
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from frigate.config import Settings
from frigate.data.city import City
from frigate.data.files import sync
from frigate.data.network import Edges, RoadNetwork
from frigate.data.split import Split
from frigate.errors import CheckpointError, SettingsError
from frigate.nn.scaling import Scaling
from frigate.training.environment import versions
from frigate.training.run import Build, Model, Run, RunOnCity, TrainedOn, TrainingState, build_model

FORMAT = 4
PREFIX = "checkpoint-"
MUST_MATCH_ON_RESUME = ("network", "changes", "start_s", "snapshots", "timezone", "readings")  # of a city
WEIGHTS, STATE, DESCRIPTION = "weights.safetensors", "state.safetensors", "run.json"
USUAL_COUNTS = "usual_counts.safetensors"
TRAINING, METRICS = ".frigate-training", "metrics.jsonl"
T = TypeVar("T")


@contextmanager
def training_in(folder: Path) -> Iterator[None]:
    """Keep a folder to one training. Where nothing came of it, a new folder is removed again."""
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / TRAINING, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise SettingsError(f"{folder}: cannot be made: {error.strerror}. Name another folder for the run") from None
    try:
        _lock(lock, folder)
        yield
        made = False
    finally:
        os.close(lock)
        if made and [path.name for path in folder.iterdir()] == [TRAINING]:
            shutil.rmtree(folder, ignore_errors=True)


def _lock(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 200).decode("utf-8", "replace")
        raise SettingsError(
            f"{folder}: training is under way in it ({holder}). Wait for its end, or name another folder"
        ) from None
    except OSError:
        pass  # a file system without locks
    os.ftruncate(lock, 0)
    since = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    os.write(lock, f"process {os.getpid()} on {socket.gethostname()}, since {since}".encode())


def is_run(folder: Path) -> bool:
    """Whether a folder holds what Frigate wrote to a run, and nothing else."""
    known = {
        TRAINING,
        METRICS,
        "tensorboard",
        "forecast.parquet",
    }  # the last: where `frigate forecast` writes by itself
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
    return all(name in known or name.lstrip(".").startswith((PREFIX, f"{METRICS}.frigate-")) for name in names)


def save_checkpoint(folder: Path, run: Run, *, weights: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """Write the epoch beside, rename it into place, then drop the older ones. No epoch is written twice."""
    name = f"{PREFIX}{run.progress.epoch:04d}"
    beside = folder / f".{name}.writing"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f".{PREFIX}*.writing"):  # of a killed training
            shutil.rmtree(left)
        beside.mkdir()
        save_file({k: v.detach().cpu().contiguous() for k, v in weights.items()}, beside / WEIGHTS)
        save_file({k: v.detach().cpu().contiguous() for k, v in state.items()}, beside / STATE)
        if run.usual_counts is not None and run.usual_medians is not None:
            usual = {"mean": run.usual_counts, "median": run.usual_medians}
            save_file({k: torch.from_numpy(v).contiguous() for k, v in usual.items()}, beside / USUAL_COUNTS)
        text = json.dumps(_run_json(run, folder), indent=1, allow_nan=False)
        (beside / DESCRIPTION).write_text(text, encoding="utf-8")
        for path in (*beside.iterdir(), beside):
            sync(path)
        os.replace(beside, folder / name)
        sync(folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the epoch cannot be written: {error}. Make room, then resume") from None
    for old in _checkpoints(folder)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def load_run(folder: str | Path, *, build: Build = build_model) -> Run:
    """Open a run for forecasting, on the CPU. No city is opened.

    Parameters
    ----------
    folder : path
        The run folder that `train` wrote.
    build : callable
        What the run was trained with, where that was not the model of its settings.

    Returns
    -------
    Run
        With the best weights so far.
    """
    run, weights, _ = _of_last(Path(folder), lambda at: _load(at, build))
    run.model.load_state_dict(weights)
    run.model.eval()
    return run


def load_checkpoint(
    folder: Path, *, city: City | str | Path | None = None, build: Build = build_model
) -> tuple[RunOnCity, dict[str, Tensor], dict[str, Tensor]]:
    """To resume training: the run with an unfilled model, its best weights, and the state to resume from."""
    run, weights, at = _of_last(folder, lambda at: _load(at, build))
    here = run.on(city)
    now = TrainedOn.of(here.city)
    changed = [name for name in MUST_MATCH_ON_RESUME if getattr(run.trained_on, name) != getattr(now, name)]
    if "network" in changed:
        changed.remove("changes")  # which lead to the network, so that they are others too
    if changed:
        raise CheckpointError(
            f"{at / DESCRIPTION}: the city has changed since ({', '.join(changed)}). Give it as it was, or train into "
            "another folder"
        )
    state = _read_tensors(at / STATE)
    for prefix in ("model.", "averaged.") if run.settings.train.average else ("model.",):
        tensors = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        _require_tensors_of(run.model, tensors, at / STATE)
    return here, weights, state


def load_settings_of(folder: str | Path) -> Settings:
    """The settings of the run in a folder."""

    def read(at: Path) -> Settings:
        with _damage_named(at / DESCRIPTION):
            return Settings.from_json(_read_description(at)["settings"])

    return _of_last(Path(folder), read)


def is_finished(folder: Path) -> bool:
    """Whether the run in a folder has come to its end: then there is nothing to resume."""

    def read(at: Path) -> bool:
        with _damage_named(at / DESCRIPTION):
            return bool(_read_description(at)["progress"]["finished"])

    return _of_last(folder, read)


def _of_last(folder: Path, read: Callable[[Path], T]) -> T:
    """What is read of the last finished epoch: of a later one, where training has replaced it meanwhile."""
    while True:
        at = _last_checkpoint(folder)
        try:
            return read(at)
        except CheckpointError:
            if _last_checkpoint(folder) == at:
                raise


def _load(at: Path, build: Build) -> tuple[Run, dict[str, Tensor], Path]:
    """The run with an unfilled model, its best weights, and the checkpoint's folder."""
    folder, data = at.parent, _read_description(at)
    with _damage_named(at / DESCRIPTION):
        settings = Settings.from_json(data["settings"])
        scaling = Scaling.from_json(data["scaling"])
        best_mae = data["progress"]["best_mae"]
        progress = TrainingState(**data["progress"] | {"best_mae": math.inf if best_mae is None else best_mae})
        facts, split = {**data["city"]}, data["split"]
        lon, lat = (np.array(facts.pop(name), np.float64) for name in ("lon", "lat"))
        node_ids = np.array([*split["seen"], *split["unseen"]])
        if not lon.shape == lat.shape == node_ids.shape:
            raise ValueError(f"{len(node_ids)} nodes in the split, {len(lon)} lon, {len(lat)} lat")
        nodes = RoadNetwork(node_ids, lon, lat, Edges.none())
        of_nodes = Split.from_json(split, node_ids)
        where = None if facts["folder"] is None else folder / facts["folder"]
        trained_on = TrainedOn(**facts | {"folder": where})
    run = Run(build(settings, scaling), settings, scaling, nodes, of_nodes, trained_on, folder, progress)
    if scaling.demand is not None:
        usual = _read_tensors(at / USUAL_COUNTS)
        run = replace(run, usual_counts=usual["mean"].numpy(), usual_medians=usual["median"].numpy())
    weights = _read_tensors(at / WEIGHTS)
    _require_tensors_of(run.model, weights, at / WEIGHTS)
    return run, weights, at


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """What a damaged description lacks is reported with its path."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, SettingsError) as error:
        raise CheckpointError(f"{path}: {type(error).__name__}: {error}. It is damaged; train again") from None


def _require_tensors_of(model: Model, tensors: dict[str, Tensor], path: Path) -> None:
    if {k: v.shape for k, v in tensors.items()} != {k: v.shape for k, v in model.state_dict().items()}:
        raise CheckpointError(f"{path}: its tensors are not those of this version's model. Train again")


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


def _run_json(run: Run, folder: Path) -> dict[str, Any]:
    city = run.trained_on.folder
    # As seen from the run, so that both can be moved together.
    where = None if city is None else os.path.relpath(city.resolve(), folder.resolve())
    best_mae = run.progress.best_mae if math.isfinite(run.progress.best_mae) else None  # JSON has no infinity
    return {
        "format": FORMAT,
        "settings": run.settings.to_json(),
        "scaling": run.scaling.to_json(),
        "split": run.split.to_json(run.nodes.node_ids),
        "progress": vars(run.progress) | {"best_mae": best_mae},
        "city": vars(run.trained_on) | {"folder": where, "lon": run.nodes.lon.tolist(), "lat": run.nodes.lat.tolist()},
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
