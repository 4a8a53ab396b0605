"""Train a model on a city, or resume a run. The loop itself is in `trainer`.

Under torchrun, all processes train one model together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from frigate.city.city import City
from frigate.city.split import Seen, Split, make_split, parse_seen, read_seen_file
from frigate.config import Settings, change, load_settings, preset
from frigate.demand.trip_model import doubted_sensors, fit_trips
from frigate.draws import Draw, seed_of
from frigate.errors import SettingsError
from frigate.nn.model import Frigate
from frigate.nn.scaling import fit_scaling
from frigate.progress import Progress, plain_progress, print_line
from frigate.roads.feature_cache import ensure_road_features
from frigate.training.checkpoint import (
    METRICS,
    TRAINING,
    is_finished,
    load_checkpoint,
    load_settings_of,
    save_intervals,
    training_in,
)
from frigate.training.distributed import joined
from frigate.training.hidden_sensors import training_windows
from frigate.training.intervals import Intervals
from frigate.training.out_of_fold import measured_intervals
from frigate.training.predictive import NotFittedError
from frigate.training.run import Build, Run, RunOnCity, build_model, has_demand
from frigate.training.trainer import OnStep, Trainer, report_steps

Saved = tuple[dict[str, Tensor], dict[str, Tensor]]  # best weights, and the training state to resume from


def train(
    city: City,
    *,
    seen: Seen = None,
    mode: str = "random",
    settings: Settings | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device | None = None,
    on_step: OnStep | None = None,
    on_fold: Progress | None = None,
    progress: bool = False,
    build: Build = build_model,
    trust_all: bool = False,
    on_notice: Callable[[str], None] | None = None,
) -> Run:
    """Train a model on a city.

    Ctrl-C stops training and returns the run as of the last finished epoch. Under torchrun, only the first process
    writes files and calls `on_step`; all return the same run.

    Parameters
    ----------
    city : City
        Readings and roads to train on.
    seen : float, "all" or node ids, optional
        The sensors to use: a share of the nodes with readings, all of them, or their ids. The others are held out for
        testing. Default: 80 %.
    mode : "random" or "region"
        Hold out nodes anywhere, or in one contiguous area.
    settings : Settings, optional
        What to forecast, the model, and how to train it. Default: `preset("default")`.
    folder : path, optional
        Where to save a checkpoint after every epoch. Default: nothing is saved.
    resume : bool
        Resume the run in the folder. Other arguments must agree with that run, except that more epochs extend it: the
        learning rate then follows the longer schedule.
    device : str or torch.device, optional
        "cpu" or "cuda". Default: cuda if available.
    on_step : callable, optional
        Called with a `StepReport` after every step and every epoch.
    on_fold : callable, optional
        Called with the folds done and the total while intervals are measured, after training.
    progress : bool
        Print a line after every epoch, and the time left if epochs are slow. Ignored if `on_step` is given.
    build : callable
        Builds a custom model from settings and scaling; pass it to `load_run` as well.
    trust_all : bool
        With demand, use every seen sensor. Default: those that the others contradict, or that are broken by their own
        record, are left out (`run.split.left_out`).
    on_notice : callable, optional
        Called with a sentence about each sensor that is left out. Default: printed, if `progress` is.

    Returns
    -------
    Run
        With the best weights, and intervals of its forecasts (`Run.intervals`). It does not contain the city.
    """
    where = None if folder is None else Path(folder)

    def begin() -> tuple[RunOnCity, Saved | None]:
        if resume:
            return _saved_run(city, seen, mode, settings, where, build)
        chosen = settings or preset("default")
        made = new_run(
            city,
            seen=seen,
            mode=mode,
            settings=chosen,
            folder=where,
            build=build,
            trust_all=trust_all,
            on_notice=on_notice or (print_line if progress and on_step is None else None),
        )
        return made, None

    def hold() -> None:
        if where is None or not group.leads:
            return
        if resume and is_finished(where) and not _more_epochs(settings, load_settings_of(where)):
            return
        if not resume:
            _refuse_folder(where)
        held.enter_context(training_in(where))

    with joined() as group, ExitStack() as held:
        device = group.agree(partial(group.device, device))
        group.agree(hold)
        run_on_city, saved = group.leader_first(begin)
        if group.size > 1:
            group.require_same(_must_be_the_same(run_on_city, device))
        windows = group.agree(partial(training_windows, run_on_city, device))
        trainer = group.agree(lambda: Trainer(run_on_city, windows, group=group))
        if saved is not None:
            trainer.restore(*saved)
        if progress and on_step is None:
            on_step = report_steps(plain_progress("Training", print_line), print_line)
            on_fold = plain_progress("Measuring intervals", print_line)
        trained = trainer.fit(on_step)
        on_city = replace(run_on_city, run=trained)
        measured = group.agree(lambda: _intervals(on_city, device, on_fold) if group.leads else None)
        return replace(trained, intervals=group.gather(measured)[0])


def _intervals(run: RunOnCity, device: torch.device, on_fold: Progress | None) -> Intervals | None:
    """The intervals of a trained run, measured unless they are known; written to the run's folder.

    None if training has not finished or has learned nothing that can be used, and after Ctrl-C.
    """
    if run.run.intervals is not None or not run.progress.finished or not math.isfinite(run.progress.best_mae):
        return run.run.intervals
    try:
        intervals = measured_intervals(run, device, progress=on_fold)
    except (KeyboardInterrupt, NotFittedError):
        return None
    if intervals is not None and run.run.folder is not None:
        save_intervals(run.run.folder, intervals)
    return intervals


def _saved_run(
    city: City, seen: Seen, mode: str, settings: Settings | None, folder: Path | None, build: Build
) -> tuple[RunOnCity, Saved]:
    """The run to resume, and its saved tensors."""
    if folder is None:
        raise SettingsError("resume: name the folder of the run to resume")
    run_on_city, best, state = load_checkpoint(folder, city=city, build=build)
    if _more_epochs(settings, run_on_city.settings):
        longer = change(run_on_city.settings, {"train": {"epochs": settings.train.epochs}})
        progress = replace(run_on_city.progress, finished=False)
        run_on_city = replace(run_on_city, run=replace(run_on_city.run, settings=longer, progress=progress))
    if not run_on_city.progress.finished:
        run_on_city = replace(run_on_city, run=replace(run_on_city.run, intervals=None))
    _refuse_another(run_on_city, seen, mode, settings)
    if run_on_city.scaling.roads is not None:
        run_on_city = replace(run_on_city, city=ensure_road_features(run_on_city.city, run_on_city.usual_roads))
    return run_on_city, (best, state)


def _more_epochs(wanted: Settings | None, recorded: Settings) -> TypeGuard[Settings]:
    """Whether the settings ask for more epochs than the recorded run."""
    return wanted is not None and wanted.train.epochs > recorded.train.epochs


def _must_be_the_same(run_on_city: RunOnCity, device: torch.device) -> str:
    """What all processes that train one model must agree on, as JSON."""
    stream = run_on_city.city.stream
    prints = [network.fingerprint for network in stream.networks]
    split = run_on_city.split.to_json(stream.node_ids)
    epoch = run_on_city.run.progress.epoch
    return json.dumps([run_on_city.settings.to_json(), split, prints, stream.digest, epoch, device.type])


def new_run(
    city: City,
    *,
    settings: Settings,
    seen: Seen = None,
    mode: str = "random",
    folder: Path | None = None,
    build: Build = build_model,
    trust_all: bool = False,
    on_notice: Callable[[str], None] | None = None,
) -> RunOnCity:
    """A run before its first step: with split, scaling and initial weights."""
    if folder is not None:
        _refuse_folder(folder)
    seed = settings.train.seed
    split = _split(city, seen, mode, settings)
    if settings.train.validation == "unseen" and not split.unseen.any():
        raise SettingsError('validation = "unseen": every sensor is seen. Leave some out, or use "seen"')
    if settings.train.epochs == 0 and not has_demand(settings, city.stream):
        raise SettingsError(
            "epochs = 0 keeps what demand forecasts, and there is no demand: it takes counts and the preset default. "
            "Train for at least one epoch"
        )
    features = None
    usual = city.stream.usual_network(split.train)
    if settings.model.roads:
        city = ensure_road_features(city, usual)
        features = city.road_features[usual.map.fingerprint]
    if has_demand(settings, city.stream) and not trust_all:
        split = _without_doubted(city, split, on_notice)
    scaling = fit_scaling(city.stream, split, settings.model, features=features, seed=seed)
    if has_demand(settings, city.stream):
        demand = fit_trips(city, split.training, period=split.train, seed=seed).settings
        scaling = replace(scaling, demand=demand)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, Draw.WEIGHTS))
        model = build(settings, scaling)
    return RunOnCity.untrained(city, split, settings, scaling, model, folder)


def _without_doubted(city: City, split: Split, on_notice: Callable[[str], None] | None) -> Split:
    """The split without the sensors that nothing should be learned from.

    Validation nodes have no say in which training nodes these are: they are as places without a sensor.
    """
    doubts = [doubted_sensors(city, split.training, period=split.train)]
    left_out = split.training & ~doubts[0].without(split.training)
    if split.validation.any():
        doubts.append(doubted_sensors(city, split.seen & ~left_out, period=split.train))
        left_out |= split.validation & ~doubts[1].without(split.validation)
        if not (split.validation & ~left_out).any():
            left_out &= ~split.validation
    for sentence in dict.fromkeys(notice for each in doubts for notice in each.notices):
        if on_notice is not None:
            on_notice(sentence)
    return split.leaving_out(left_out)


def _split(city: City, seen: Seen, mode: str, settings: Settings) -> Split:
    task = settings.task
    train = settings.train
    share = train.validation_share if train.validation == "seen" else 0.0
    return make_split(
        city.stream,
        seen=seen,
        seed=train.seed,
        validation_share=share,
        mode=mode,
        past=task.past,
        horizon=task.horizon,
        detectors=city.detectors,
    )


def _refuse_folder(folder: Path) -> None:
    if folder.is_file():
        raise SettingsError(f"{folder}: that is a file. Name a folder for the run")
    if any(folder.glob("checkpoint-*")):
        raise SettingsError(f"{folder}: there is a run in it already. Resume it with --resume, or name another folder")
    if (folder / "city.toml").exists() or (folder / "cache.json").exists():
        raise SettingsError(f"{folder}: that is a city. Name another folder for the run")
    if (folder / METRICS).exists() and not (folder / TRAINING).exists():
        raise SettingsError(f"{folder}: {METRICS} in it is not of a training. Name another folder for the run")


def _refuse_another(run_on_city: RunOnCity, seen: Seen, mode: str, settings: Settings | None) -> None:
    recorded = run_on_city.settings.to_json()
    folder = run_on_city.run.folder
    for part, values in (settings or run_on_city.settings).to_json().items():
        for name, value in values.items():
            if value != recorded[part][name]:
                raise SettingsError(
                    f"resume: {name} = {value!r}, but the run in {folder} has {recorded[part][name]!r}. "
                    "Leave it out to resume that run, or train into another folder"
                )
    if seen is None and mode == "random":
        return
    recorded_seen = run_on_city.split.seen | run_on_city.split.left_out
    if not np.array_equal(_split(run_on_city.city, seen, mode, run_on_city.settings).seen, recorded_seen):
        raise SettingsError(
            f"resume: the run in {folder} has {int(run_on_city.split.seen.sum())} other sensors. "
            "Leave out --seen and --split to resume it, or train into another folder"
        )


def settings_from(
    *, preset_name: str | None, file: str | Path | None, said: dict[str, dict[str, Any]], resume: str | Path | None
) -> Settings:
    """The user's choices (None: not given), laid over a preset or over the settings of the run to resume."""
    settings = preset(preset_name or "default") if resume is None else load_settings_of(resume)
    if preset_name not in (None, settings.model.preset):
        raise SettingsError(
            f'resume: preset "{preset_name}", but the run in {resume} has "{settings.model.preset}". Leave it out'
        )
    if file is not None:
        settings = load_settings(file, settings)
    given = {part: {k: v for k, v in values.items() if v is not None} for part, values in said.items()}
    return change(settings, given)


def seen_from(text: str | None, city: City) -> Seen:
    """Interpret --seen: a share, "all", a file of node ids, or None."""
    parsed = None if text is None else parse_seen(text)
    return read_seen_file(parsed, city.network) if isinstance(parsed, Path) else parsed


def summary_line(run: Run) -> str:
    """The outcome of training, in one line."""
    progress = run.progress
    stopped = "" if run.progress.finished else " (stopped; resume with --resume)"
    if progress.epoch == 0 and progress.finished:
        more = "Learn what demand leaves over with --resume --epochs 8"
        return f"Demand alone, nothing learned: MAE at hidden sensors {progress.best_mae:.4g}. {more}: {run.folder}"
    if progress.epoch == 0:
        return "Stopped before the first epoch was finished: nothing was kept"
    if progress.best_epoch == 0:
        return f"No epoch of {progress.epoch} gave a finite error{stopped}. Lower learning_rate: {run.folder}"
    where = {"none": " at hidden sensors", "seen": "", "unseen": " at the test nodes"}[run.settings.train.validation]
    best = f"Validation MAE{where} {progress.best_mae:.4g} after epoch {progress.best_epoch} of {progress.epoch}"
    if isinstance(run.model, Frigate) and run.model.corrects_demand:
        best += f", with {float(run.model.trust):.0%} of the learned correction"
    return f"{best}{stopped}: {run.folder}"
