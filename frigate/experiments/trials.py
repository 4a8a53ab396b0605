"""Trials: a recipe fitted and scored on the test period, on its input as is or changed. Each is done once.

    RESULTS/runs/RECIPE/checkpoint-0024/    of a trained recipe; training resumes here
    RESULTS/runs/RECIPE/facts.json          parameters, steps, seconds, settings, hardware
    RESULTS/runs/RECIPE/CHANGE.npz          sums of errors, from which all measures and intervals are computed

Files are renamed into place when complete, so an existing file is a finished one.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from frigate.baselines.boosted_trees import fit_trees
from frigate.baselines.kriging import fit_kriging
from frigate.baselines.naive import Baseline, fit_own_median, naive_baselines, seen_median
from frigate.city.split import Split, make_split, windows_in
from frigate.config import Settings, preset
from frigate.errors import SettingsError
from frigate.evaluation.evaluate import (
    NONE,
    OWN,
    TERCILES,
    ZERO,
    demand_alone,
    forecaster_of,
    score,
    share_of_sensor,
    terciles,
    windows_at_once,
    windows_without_demand,
)
from frigate.evaluation.metrics import Measure, Scores, Summary
from frigate.experiments.ablated_model import without
from frigate.experiments.plan import ALL, NAIVE, NEED_DEMAND, Plan, Recipe
from frigate.experiments.table import as_json
from frigate.nn.device import best_device
from frigate.nn.scaling import fit_scaling
from frigate.nn.windows import Windows
from frigate.reading.files import replacing_file, write_file
from frigate.roads.feature_cache import features_of
from frigate.training.environment import environment
from frigate.training.hidden_sensors import training_masks, training_windows
from frigate.training.run import Run, build_model
from frigate.training.train import new_run, train
from frigate.training.trainer import OnStep

SCORED_AT_ONCE = 16  # windows, for forecasters that are not neural networks


@dataclass(frozen=True)
class Fitted:
    """A fitted recipe, ready to be scored."""

    forecast: Baseline
    windows: Windows  # the city as the forecaster sees it
    split: Split
    settings: Settings
    batch_size: int
    run: Run | None = None  # of a trained recipe


@dataclass(frozen=True)
class InputChange:
    """A change to the input of a trial; this one changes nothing."""

    @property
    def name(self) -> str:
        return "test"

    def apply(self, fitted: Fitted, plan: Plan, recipe: Recipe) -> Fitted:
        return fitted


@dataclass(frozen=True)
class Trial:
    recipe: Recipe
    change: InputChange = InputChange()


def split_of(plan: Plan, recipe: Recipe) -> Split:
    """The split of a recipe: the same for all recipes with the same share and seed."""
    settings = plan.settings(recipe)
    return make_split(
        plan.city.stream,
        seen=plan.sensors(recipe),
        seed=recipe.seed,
        past=settings.task.past,
        horizon=settings.task.horizon,
        validation_share=settings.train.validation_share,
        detectors=plan.city.detectors,
    )


def carry_out(plan: Plan, recipe: Recipe, changes: Iterable[InputChange], on_step: OnStep | None = None) -> None:
    """Fit the recipe and score it under each of the changes, unless that is already done."""
    missing = [change for change in changes if not _sums_path(plan, Trial(recipe, change)).exists()]
    if not missing:
        return
    fitted = fit(plan, recipe, on_step)
    for change in missing:
        scores = _score(plan, change.apply(fitted, plan, recipe))
        with replacing_file(_sums_path(plan, Trial(recipe, change))) as new, new.open("wb") as file:
            cells = scores.cell_sums.astype(np.float32)
            hours = scores.hour_sums.astype(np.float32)
            np.savez_compressed(file, cells=cells, hours=hours)


def fit(plan: Plan, recipe: Recipe, on_step: OnStep | None) -> Fitted:
    """Train the recipe (or resume) or fit it, and write facts.json."""
    device = best_device(plan.device)
    began = time.perf_counter()
    fitted = _trained(plan, recipe, device, on_step) if recipe.trained else _not_trained(plan, recipe, device)
    path = _facts_path(plan, recipe)
    if not path.exists():
        facts = {"model": recipe.label, "seen": recipe.seen, "seed": recipe.seed}
        facts |= {"seconds": time.perf_counter() - began, **_training_facts(fitted), **environment(device)}
        write_file(path, as_json(facts))
    return fitted


def _trained(plan: Plan, recipe: Recipe, device: torch.device, on_step: OnStep | None) -> Fitted:
    folder = plan.folder(recipe)
    settings = plan.settings(recipe)
    begun = any(folder.glob("checkpoint-*"))
    run = train(
        plan.city,
        seen=None if begun else plan.sensors(recipe),
        settings=settings,
        folder=folder,
        resume=begun,
        device=str(device),
        on_step=on_step,
        build=without(recipe.without) if recipe.without else build_model,
    )
    if not run.progress.finished:
        raise KeyboardInterrupt
    run_on_city = run.on(plan.city)
    forecaster = forecaster_of(run_on_city, device)
    size = windows_at_once(plan.city.stream, settings.task, forecaster.predictor)
    return Fitted(forecaster.predictor, forecaster.windows(), run_on_city.split, settings, size, run)


def _not_trained(plan: Plan, recipe: Recipe, device: torch.device) -> Fitted:
    settings = plan.settings(recipe)
    split = split_of(plan, recipe)
    city = plan.city
    stream = plan.city.stream
    if recipe.model in NEED_DEMAND:
        return _of_demand(plan, recipe, settings, device)
    usual = stream.usual_network(split.train)
    features = features_of([usual.map], city)[0] if recipe.model.startswith("lightgbm") else None
    scaling = fit_scaling(stream, split, settings.model, features=features, seed=recipe.seed)
    windows = windows_without_demand(city, split, scaling, device)
    return Fitted(_simple(plan, recipe, split, windows, settings), windows, split, settings, SCORED_AT_ONCE)


def _of_demand(plan: Plan, recipe: Recipe, settings: Settings, device: torch.device) -> Fitted:
    """Demand as in `default`, without its neural network."""
    of_default = replace(preset("default"), task=settings.task)
    # Early stopping of the trees needs nodes that demand has not seen.
    validation = "seen" if recipe.model == "lightgbm-demand" else of_default.train.validation
    of_default = replace(of_default, train=replace(of_default.train, seed=recipe.seed, validation=validation))
    run_on_city = new_run(plan.city, settings=of_default, seen=plan.sensors(recipe))
    forecast: Baseline = demand_alone
    if recipe.model == "lightgbm-demand":
        windows = training_windows(run_on_city, device)
        masks = training_masks(run_on_city)
        trees = plan.effort.trees
        forecast = fit_trees(windows, run_on_city.split, settings.task, seed=recipe.seed, trees=trees, masks=masks)
    return Fitted(forecast, run_on_city.windows(device), run_on_city.split, settings, SCORED_AT_ONCE)


def _simple(plan: Plan, recipe: Recipe, split: Split, windows: Windows, settings: Settings) -> Baseline:
    stream = plan.city.stream
    if recipe.model == OWN:
        return fit_own_median(stream, split, otherwise=seen_median(stream, split))
    if recipe.model in NAIVE:
        return naive_baselines(stream, split)[recipe.model]
    if recipe.model == "kriging":
        return fit_kriging(windows, split, settings.task)
    if recipe.model in ("lightgbm", "lightgbm-map"):
        readings = recipe.model == "lightgbm"
        trees = plan.effort.trees
        return fit_trees(windows, split, settings.task, seed=recipe.seed, trees=trees, readings=readings)
    raise SettingsError(f'unknown model "{recipe.model}"')


def _score(plan: Plan, fitted: Fitted) -> Scores:
    of_one = {"it": fitted.forecast}
    task = fitted.settings.task
    size = fitted.batch_size
    return score(of_one, fitted.windows, fitted.split, task, stride=plan.effort.stride, batch_size=size)["it"]


def _sums_path(plan: Plan, trial: Trial) -> Path:
    return plan.folder(trial.recipe) / f"{trial.change.name}.npz"


def _facts_path(plan: Plan, recipe: Recipe) -> Path:
    return plan.folder(recipe) / "facts.json"


def _training_facts(fitted: Fitted) -> dict[str, Any]:
    if fitted.run is None:
        return {}
    run = fitted.run
    settings = fitted.settings
    progress = fitted.run.progress
    at = windows_in(fitted.split.train, past=settings.task.past, horizon=settings.task.horizon)
    whole = math.ceil(len(at) / settings.train.batch_size)
    steps = min(whole, settings.train.steps_per_epoch or whole)  # per epoch
    return {
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch,
        "steps": progress.epoch * steps,
        "best_step": progress.best_epoch * steps,
        "best_validation_mae": progress.best_mae,
        "seconds": progress.seconds,
        "settings": settings.to_json(),
    }


class Scored:
    """The results of the trials so far, read from their files."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._splits: dict[tuple[float, int], Split] = {}
        self._scores: dict[Trial, Scores] = {}
        self.left_out: dict[str, str] = {}  # recipes that failed, and why

    def has(self, trial: Trial) -> bool:
        return _sums_path(self.plan, trial).exists()

    def settled(self, trial: Trial) -> bool:
        """Whether the trial is done or has failed."""
        return self.has(trial) or trial.recipe.name in self.left_out

    def scores(self, trial: Trial) -> Scores:
        if trial not in self._scores:
            stream = self.plan.city.stream
            with np.load(_sums_path(self.plan, trial)) as data:
                sums = data["cells"], data["hours"]
            self._scores[trial] = Scores.from_sums(*sums, step_s=stream.step_s, quantity=stream.quantity)
        return self._scores[trial]

    def found(self, trials: Iterable[Trial], models: Container[str] = ALL) -> Iterator[tuple[Trial, Summary]]:
        """The finished trials of these models, with their errors at unseen nodes."""
        for trial in trials:
            if trial.recipe.model in models and self.has(trial) and (summary := self.summary(trial)) is not None:
                yield trial, summary

    def facts(self, recipe: Recipe) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(_facts_path(self.plan, recipe).read_text(encoding="utf-8"))
        return facts

    def split(self, recipe: Recipe) -> Split:
        key = (recipe.seen, recipe.seed)
        if key not in self._splits:
            self._splits[key] = split_of(self.plan, recipe)
        return self._splits[key]

    def summary(self, trial: Trial, *, at_sensors: bool = False) -> Summary | None:
        split = self.split(trial.recipe)
        return self.scores(trial).summary(split.seen if at_sensors else split.unseen, seed=trial.recipe.seed)

    def by_step(self, trial: Trial) -> tuple[Summary | None, ...]:
        return self.scores(trial).by_step(self.split(trial.recipe).unseen, seed=trial.recipe.seed)

    def by_tercile(self, trial: Trial) -> dict[str, Summary]:
        """Errors by traffic volume in training."""
        split = self.split(trial.recipe)
        group = terciles(self.plan.city.stream, split, split.unseen)
        return self.scores(trial).by_group(group, TERCILES, seed=trial.recipe.seed)

    def share(self, trial: Trial) -> Measure | None:
        """Share of a sensor recovered; needs the yardsticks of the same split."""
        mine, none, own = (self.scores(each) for each in (trial, beside(trial, NONE), beside(trial, OWN)))
        return share_of_sensor(mine, none, own, self.split(trial.recipe).unseen, seed=trial.recipe.seed)

    def of_zero(self, trial: Trial) -> float | None:
        """MAE divided by the MAE of forecasting zero."""
        return self._relative(trial, ZERO)

    def more_percent(self, trial: Trial) -> float | None:
        """By how many % the MAE exceeds that of the unchanged model on the true input."""
        ratio = self._relative(trial, trial.recipe.model)
        return None if ratio is None else 100 * (ratio - 1)

    def _relative(self, trial: Trial, model: str) -> float | None:
        plain = beside(trial, model)
        base = self.summary(plain) if self.has(plain) else None
        mine = self.summary(trial)
        return mine.mae.value / base.mae.value if mine and base and base.mae.value > 0 else None


def beside(trial: Trial, model: str) -> Trial:
    """A trial of another model, unchanged, with the same sensors."""
    return Trial(Recipe(model, trial.recipe.seen, trial.recipe.seed))


def yardsticks(plan: Plan, **recipe: Any) -> list[Trial]:
    """The trials that `share` and `of_zero` need."""
    return [Trial(plan.recipe(name, **recipe)) for name in (ZERO, NONE, OWN)]
