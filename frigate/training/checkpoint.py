"""A run on disk: no pickles, never half-written.

    RUN/.frigate-training           lock file: the process that is training here
    RUN/metrics.jsonl               one line per epoch
    RUN/intervals.json              how sure forecasts are, measured after the last epoch
    RUN/checkpoint-0012/            the last finished epoch, renamed into place atomically
        weights.safetensors         the best weights so far, used for forecasts
        state.safetensors           the current weights and the optimiser's moments, to resume from
        usual_counts.safetensors    the sensors' usual counts by kind of day and hour, to calibrate demand
        run.json                    settings, scaling, split, the city trained on, versions, progress, digests

The random state is not stored: each epoch uses a generator seeded with (seed, epoch).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from frigate.calendar import BINS, WEEK_PARTS
from frigate.city.city import City
from frigate.config import Settings, require
from frigate.errors import CheckpointError, FrigateError, SettingsError
from frigate.reading.files import sync, write_file
from frigate.training.description import (
    DESCRIPTION,
    damage_named,
    digest,
    parse_progress,
    parse_run,
    parse_settings,
    read_description,
    sealed,
    write_description,
)
from frigate.training.intervals import Intervals
from frigate.training.run import Build, Model, Run, RunOnCity, TrainedOn, build_model

PREFIX = "checkpoint-"
MUST_MATCH_ON_RESUME = ("network", "changes", "start_s", "snapshots", "timezone", "excluded", "readings")  # TrainedOn
WEIGHTS, STATE, USUAL_COUNTS = "weights.safetensors", "state.safetensors", "usual_counts.safetensors"
TRAINING, METRICS, INTERVALS = ".frigate-training", "metrics.jsonl", "intervals.json"
INTERVALS_FORMAT = 2
T = TypeVar("T")


@contextmanager
def training_in(folder: Path) -> Iterator[None]:
    """Lock a run folder for training. A folder created here is removed again if training fails with nothing in it."""
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
        pass  # the file system does not support locks
    os.ftruncate(lock, 0)
    since = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    os.write(lock, f"process {os.getpid()} on {socket.gethostname()}, since {since}".encode())


def is_run(folder: Path) -> bool:
    """Whether a folder contains only files that Frigate writes to a run."""
    known = {
        TRAINING,
        METRICS,
        INTERVALS,
        "tensorboard",
        "forecast.parquet",
    }  # forecast.parquet: the default output of `frigate forecast`
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
    return all(name in known or name.lstrip(".").startswith((PREFIX, f"{METRICS}.frigate-")) for name in names)


def save_checkpoint(folder: Path, run: Run, *, weights: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """Write the epoch to a temporary folder, rename it into place, then delete older ones. Never overwrites one."""
    name = f"{PREFIX}{run.progress.epoch:04d}"
    beside = folder / f".{name}.writing"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f".{PREFIX}*.writing"):  # left by a killed process
            shutil.rmtree(left)
        beside.mkdir()
        save_file({k: v.detach().cpu().contiguous() for k, v in weights.items()}, beside / WEIGHTS)
        save_file({k: v.detach().cpu().contiguous() for k, v in state.items()}, beside / STATE)
        if run.usual_counts is not None and run.usual_medians is not None:
            usual = {"mean": run.usual_counts, "median": run.usual_medians}
            if run.usual_week is not None:
                usual["week"] = run.usual_week
            save_file({k: torch.from_numpy(v).contiguous() for k, v in usual.items()}, beside / USUAL_COUNTS)
        write_description(run, beside, folder)
        for path in (*beside.iterdir(), beside):
            sync(path)
        os.replace(beside, folder / name)
        sync(folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the epoch cannot be written: {error}. Make room, then resume") from None
    for old in _checkpoints(folder)[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def save_intervals(folder: Path, intervals: Intervals) -> None:
    """Write the intervals of the run's last checkpoint."""
    at = _last_checkpoint(folder)
    weights = digest((at / WEIGHTS).read_bytes())
    data = {"format": INTERVALS_FORMAT, "weights": weights, "intervals": intervals.to_json()}
    try:
        write_file(folder / INTERVALS, json.dumps(sealed(data), allow_nan=False))
    except OSError as error:
        raise CheckpointError(
            f"{folder / INTERVALS}: cannot be written: {error.strerror}. Make room, then resume"
        ) from None


def _load_intervals(folder: Path, run: Run, weights: str) -> Intervals | None:
    """The intervals that were measured with these weights; None if there are none."""
    path = folder / INTERVALS
    if not path.exists():
        return None
    remedy = "Remove it, and measure intervals again with frigate train CITY -o RUN --resume"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        kept = data.pop("digest", None)
        if sealed(data)["digest"] != kept:
            raise CheckpointError(f"{path}: damaged, or changed since it was written. {remedy}")
        if data["format"] not in range(1, INTERVALS_FORMAT + 1):  # those before are measured again
            this = f"this version reads {INTERVALS_FORMAT}"
            raise CheckpointError(f"{path}: format {data['format']!r}, {this}. {remedy}")
        if data["weights"] != weights or data["format"] != INTERVALS_FORMAT:
            return None
        seen = int(run.split.seen.sum())
        return Intervals.from_json(data["intervals"], nodes=seen, quantity=run.trained_on.quantity)
    except CheckpointError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, FrigateError) as error:
        raise CheckpointError(f"{path}: cannot be read: {str(error)[:200]}. {remedy}") from None


def load_run(folder: str | Path, *, build: Build = build_model) -> Run:
    """Load a run for forecasting, on the CPU. No city is opened.

    Parameters
    ----------
    folder : path
        The run folder written by `train`.
    build : callable
        The `build` that was passed to `train`, if any.

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
    """For resuming: the run with its weights not yet loaded, the best weights, and the training state."""
    run, weights, at = _of_last(folder, lambda at: _load(at, build))
    run_on_city = run.on(city)
    now = TrainedOn.of(run_on_city.city, run_on_city.split.train)
    changed = [name for name in MUST_MATCH_ON_RESUME if getattr(run.trained_on, name) != getattr(now, name)]
    if "network" in changed:
        changed.remove("changes")  # implied by a different network
    if "excluded" in changed and "readings" in changed:
        changed.remove("readings")
    if changed:
        raise CheckpointError(
            f"{at / DESCRIPTION}: the city has changed since ({', '.join(changed)}). Give it as it was, or train into "
            "another folder"
        )
    state = _read_tensors(at, STATE, read_description(at))
    for prefix in ("model.", "averaged.") if run.settings.train.average else ("model.",):
        tensors = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        _require_tensors_of(run.model, tensors, at / STATE)
    return run_on_city, weights, state


def load_settings_of(folder: str | Path) -> Settings:
    """The settings of the run in a folder."""

    def read(at: Path) -> Settings:
        with damage_named(at / DESCRIPTION):
            return parse_settings(read_description(at))

    return _of_last(Path(folder), read)


def is_finished(folder: Path) -> bool:
    """Whether the run in a folder has finished training, so that there is nothing to resume."""

    def read(at: Path) -> bool:
        with damage_named(at / DESCRIPTION):
            return parse_progress(read_description(at)).finished

    return _of_last(folder, read)


def _of_last(folder: Path, read: Callable[[Path], T]) -> T:
    """Read the last finished epoch; try again if training has replaced it in the meantime."""
    while True:
        at = _last_checkpoint(folder)
        try:
            return read(at)
        except CheckpointError:
            if _last_checkpoint(folder) == at:
                raise


def _load(at: Path, build: Build) -> tuple[Run, dict[str, Tensor], Path]:
    """The run with its weights not yet loaded, the best weights, and the checkpoint's folder."""
    data = read_description(at)
    with damage_named(at / DESCRIPTION):
        known = parse_run(data, at.parent)
        weights = _read_tensors(at, WEIGHTS, data)
        settings = known["settings"]
        scaling = known["scaling"]
        # Forged sizes could exhaust memory: build on the meta device first and compare with the weights.
        require(settings.model.layers <= len(weights), "layers", settings.model.layers, "more than the weights are of")
        with torch.device("meta"):
            empty = build(settings, scaling)
    _require_tensors_of(empty, weights, at / WEIGHTS)
    with damage_named(at / DESCRIPTION):
        for name in ("value_offset", "value_scale"):  # also stored with the weights, as buffers
            agree = torch.tensor(float(getattr(scaling, name))) == weights[name]
            require(bool(agree), name, getattr(scaling, name), f"the weights have {float(weights[name]):g}")
    run = Run(build(settings, scaling), **known)
    if scaling.demand is not None:
        usual = _read_tensors(at, USUAL_COUNTS, data)
        n = run.nodes.num_nodes
        sizes = {"mean": (BINS, n), "median": (BINS, n)}
        if "week" in usual:  # runs of 0.1.0 have none
            sizes["week"] = (WEEK_PARTS, n)
        if {k: v.shape for k, v in usual.items()} != sizes:
            raise CheckpointError(f"{at / USUAL_COUNTS}: not of the nodes of this run. Train again")
        week = usual["week"].numpy() if "week" in usual else None
        run = replace(run, usual_counts=usual["mean"].numpy(), usual_medians=usual["median"].numpy(), usual_week=week)
    intervals = _load_intervals(at.parent, run, data["files"][WEIGHTS])
    return replace(run, intervals=intervals), weights, at


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


def _read_tensors(at: Path, name: str, description: dict[str, Any]) -> dict[str, Tensor]:
    path = at / name
    try:
        content = path.read_bytes()
        tensors = load(content)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cut short or damaged ({error}). Train again") from None
    with damage_named(at / DESCRIPTION):
        kept = description["files"][name]
    if digest(content) != kept:
        raise CheckpointError(f"{path}: damaged, or changed since it was written. Copy the run again, or train again")
    return tensors
