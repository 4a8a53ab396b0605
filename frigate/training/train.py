"""Train a model on a city, or go on with a run. The loop itself is in `trainer`.

`python -m frigate.training.train CITY RUN` does it where only numpy, scipy, torch and safetensors are installed.
Started by torchrun, the processes train one model together.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frigate.config import Settings, change, load_settings, preset
from frigate.data.city import City, open_city
from frigate.data.split import Seen, Split, make_split, parse_seen, read_seen_file
from frigate.errors import FrigateError, SettingsError
from frigate.graph.feature_cache import ensure_road_features
from frigate.graph.positions import locate_anchors
from frigate.nn.batch import Windows
from frigate.nn.scaling import build_topologies, fit_scaling
from frigate.training.checkpoint import Build, Run, TrainingState, build_model, load_checkpoint, load_settings_of
from frigate.training.distributed import Group, joined, only_the_first_speaks
from frigate.training.trainer import StepReport, Trainer, epoch_line

Left = tuple[dict[str, Tensor], dict[str, Tensor]]  # of a run: its best weights, and the state to go on from


def train(
    city: City,
    *,
    seen: Seen = None,
    mode: str = "random",
    settings: Settings | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    device: str | None = None,
    on_step: Callable[[StepReport], None] | None = None,
    build: Build = build_model,
    kernels: str = "auto",
) -> Run:
    """Train a model on a city. With a folder every epoch is kept there, and `resume` goes on from the last one.

    Ctrl-C ends training after the last finished epoch and returns what there is. What is said beside `resume` has to
    agree with the run that is there. Another model than the settings' is made by `build`, here and to open the run.
    Among processes that torchrun has started, the first alone writes and calls `on_step`; all return the same run.
    """
    where = None if folder is None else Path(folder)

    def begin() -> tuple[Run, Left | None]:
        if resume:
            return _old_run(city, seen, mode, settings, where, build)
        chosen = settings or preset("default")
        return new_run(city, seen=seen, mode=mode, settings=chosen, folder=where, build=build), None

    with joined() as group:
        on = group.agree(lambda: best_device(group.device_name(device)))
        run, left = group.in_turn(begin)
        if group.size > 1:
            group.require_same(_facts(run, on))
        trainer = group.agree(lambda: Trainer(run, run_windows(run, on), group=group, kernels=kernels))
        if left is not None:
            trainer.restore(*left)
        return trainer.fit(on_step)


def _old_run(
    city: City, seen: Seen, mode: str, settings: Settings | None, folder: Path | None, build: Build
) -> tuple[Run, Left]:
    """The run to go on with, and how it was left."""
    if folder is None:
        raise SettingsError("resume: name the folder of the run to go on with")
    run, best, state = load_checkpoint(folder, city=city, build=build)
    _refuse_another(run, seen, mode, settings)
    if run.scaling.roads is not None:
        run = replace(run, city=ensure_road_features(run.city))
    return run, (best, state)


def _facts(run: Run, device: torch.device) -> str:
    """What all processes that train a run must have alike."""
    stream = run.city.stream
    prints = [network.fingerprint for network in stream.topologies]
    split, epoch = run.split.to_json(stream.node_ids), run.progress.epoch
    return json.dumps([run.settings.to_json(), split, prints, stream.digest, epoch, device.type])


def new_run(
    city: City,
    *,
    settings: Settings,
    seen: Seen = None,
    mode: str = "random",
    folder: Path | None = None,
    build: Build = build_model,
) -> Run:
    """A run before its first step: the split, what is kept with the model, and its first weights."""
    if folder is not None:
        _refuse_folder(folder)
    seed = settings.train.seed
    split = _split(city, seen, mode, settings)
    if settings.train.validation == "unseen" and not split.unseen.any():
        raise SettingsError('validation = "unseen": every sensor is seen. Leave some out, or use "seen"')
    if folder is not None:
        _make_folder(folder)
    features = None
    if settings.model.roads:
        city = ensure_road_features(city)
        features = city.road_features[int(city.stream.topology_of[-1])]
    scaling = fit_scaling(city.stream, split, settings.model, features=features, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = build(settings, scaling)
    return Run(model, settings, scaling, split, city, folder, TrainingState())


def _split(city: City, seen: Seen, mode: str, settings: Settings) -> Split:
    task, train = settings.task, settings.train
    share = train.validation_share if train.validation == "seen" else 0.0  # the paper trains on every seen node
    return make_split(
        city.stream, seen=seen, seed=train.seed, validation_share=share, mode=mode, past=task.past, horizon=task.horizon
    )


def _refuse_folder(folder: Path) -> None:
    if folder.is_file():
        raise SettingsError(f"{folder}: that is a file. Name a folder for the run")
    if any(folder.glob("checkpoint-*")):
        raise SettingsError(f"{folder}: there is a run in it already. Go on with --resume, or name another folder")
    if (folder / "city.toml").exists() or (folder / "cache.json").exists():
        raise SettingsError(f"{folder}: that is a city. Name another folder for the run")


def _make_folder(folder: Path) -> None:
    """Before anything is computed, so that a folder that cannot be made is said at once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{folder}: cannot be made: {error.strerror}. Name another folder for the run") from None


def _refuse_another(run: Run, seen: Seen, mode: str, settings: Settings | None) -> None:
    mine = run.settings.to_json()
    for part, values in (settings or run.settings).to_json().items():
        for name, value in values.items():
            if value != mine[part][name]:
                raise SettingsError(
                    f"resume: {name} = {value!r}, but the run in {run.folder} has {mine[part][name]!r}. "
                    "Leave it out to go on with that run, or train into another folder"
                )
    if seen is None and mode == "random":
        return
    if not np.array_equal(_split(run.city, seen, mode, run.settings).seen, run.split.seen):
        raise SettingsError(
            f"resume: the run in {run.folder} has {int(run.split.seen.sum())} other sensors. "
            "Leave out --seen and --split to go on with it, or train into another folder"
        )


def run_windows(run: Run, device: torch.device | str) -> Windows:
    """The run's city as its model sees it."""
    city = run.city if run.scaling.roads is None else ensure_road_features(run.city)
    features = city.road_features if run.scaling.roads is not None else None
    topologies, _ = build_topologies(city.stream.topologies, run.scaling, sensors=run.split.seen, features=features)
    return Windows(city.stream, topologies, device)


def run_notices(run: Run) -> list[str]:
    """What a reader must know where a run's city is not the one that it was trained on."""
    said = []
    if run.scaling.anchors is not None:
        said.append(locate_anchors(run.city.network, run.scaling.anchors)[1])
    if run.scaling.roads is not None:
        features = ensure_road_features(run.city).road_features
        said.append(run.scaling.roads.notice(features[int(run.city.stream.topology_of[-1])]))
    return [text for text in said if text]


def best_device(name: str | None) -> torch.device:
    """The named device, or a GPU where there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    remedy = "Use cpu, or cuda on a machine with a GPU"
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise SettingsError(f'device "{name}" is not known. {remedy}')
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # where kernels are launched
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise SettingsError(f'device "{name}" cannot be used: {reason}. {remedy}') from None
    return device


def settings_from(
    *, preset_name: str | None, file: str | Path | None, said: dict[str, dict[str, Any]], resume: str | Path | None
) -> Settings:
    """What a user said, over a preset or over the settings of the run to go on with. None in `said` is not said."""
    settings = preset(preset_name or "default") if resume is None else load_settings_of(resume)
    if preset_name not in (None, settings.model.preset):
        raise SettingsError(
            f'resume: preset "{preset_name}", but the run in {resume} has "{settings.model.preset}". Leave it out'
        )
    if file is not None:
        settings = load_settings(file, settings)
    told = {part: {k: v for k, v in values.items() if v is not None} for part, values in said.items()}
    return change(settings, told)


def seen_from(text: str | None, city: City) -> Seen:
    """What a user means by --seen: a share, all, a file of node ids, or nothing."""
    parsed = None if text is None else parse_seen(text)
    return read_seen_file(parsed, city.network) if isinstance(parsed, Path) else parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m frigate.training.train`: what `frigate train` does, with nothing installed but the compute path."""
    parser = ArgumentParser(prog="python -m frigate.training.train", description="Train a model on a city.")
    parser.add_argument("city", metavar="CITY", help="a city folder, or its cache")
    parser.add_argument("run", metavar="RUN", help="the folder to write")
    parser.add_argument("--seen", help="30%%, 0.3, a file of node ids, or all; 80 %% if not said")
    parser.add_argument("--preset", help="default, paper, or a baseline such as dcrnn")
    parser.add_argument("--settings", metavar="FILE", help="TOML with [task], [model], [train]")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    parser.add_argument("--device", help="cpu or cuda; what there is if not said")
    with only_the_first_speaks(), joined() as group:
        try:
            run = _train(parser.parse_args(arguments), group)
        except FrigateError as error:
            print(f"frigate: {error}", file=sys.stderr)
            return 2
        print(told(run))
        return 0 if run.progress.finished else 130


def _train(said: Namespace, group: Group) -> Run:
    settings = group.agree(
        lambda: settings_from(
            preset_name=said.preset,
            file=said.settings,
            said={"train": {"seed": said.seed}},
            resume=said.run if said.resume else None,
        )
    )
    city = group.in_turn(lambda: open_city(said.city))  # which keeps a cache
    seen = group.agree(lambda: seen_from(said.seen, city))
    return train(
        city, seen=seen, settings=settings, folder=said.run, resume=said.resume, device=said.device,
        on_step=_print_epoch,
    )  # fmt: skip


def _print_epoch(tick: StepReport) -> None:
    if tick.metrics is not None:
        print(epoch_line(tick.metrics), file=sys.stderr)


def told(run: Run) -> str:
    """How training ended, in one line."""
    progress, stopped = run.progress, "" if run.progress.finished else " (stopped; go on with --resume)"
    if progress.epoch == 0:
        return "Stopped before the first epoch was finished: nothing was kept"
    if progress.best_epoch == 0:
        return f"No epoch of {progress.epoch} gave a finite error{stopped}. Lower learning_rate: {run.folder}"
    where = " at the test nodes" if run.settings.train.validation == "unseen" else ""
    best = f"Validation MAE{where} {progress.best_mae:.4g} after epoch {progress.best_epoch} of {progress.epoch}"
    return f"{best}{stopped}: {run.folder}"


if __name__ == "__main__":
    sys.exit(main())
