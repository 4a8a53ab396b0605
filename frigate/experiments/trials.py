"""Trials: a recipe fitted and scored on the test period, as it is or with its input changed. Each is done once.

    RESULTS/runs/RECIPE/checkpoint-0024/    of a trained recipe; training resumes here
    RESULTS/runs/RECIPE/facts.json          parameters, steps, seconds, settings, hardware
    RESULTS/runs/RECIPE/CHANGE.npz          the sums of errors, from which every measure and interval is made

A file is written beside and renamed into place: what is there is whole, and is not done again.
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
from frigate.baselines.naive import Forecaster, fit_own_median, naive_baselines, seen_median
from frigate.config import PRESETS, Settings
from frigate.data.files import replacing_file, write_file
from frigate.data.split import Split, make_split, windows_in
from frigate.errors import SettingsError
from frigate.evaluation.evaluate import NONE, OWN, ZERO, score, share_of_sensor, terciles, windows_at_once
from frigate.evaluation.metrics import Measure, Scores, Summary
from frigate.experiments.ablated_model import without
from frigate.experiments.plan import ALL, NAIVE, Plan, Recipe
from frigate.experiments.table import as_json
from frigate.graph.feature_cache import features_of
from frigate.nn.batch import Windows
from frigate.nn.device import best_device
from frigate.nn.scaling import build_topologies, fit_scaling
from frigate.training.environment import environment
from frigate.training.run import Build, Run, build_model
from frigate.training.train import train
from frigate.training.trainer import OnStep

SCORED_AT_ONCE = 16  # windows, for forecasters that are no networks


@dataclass(frozen=True)
class Fitted:
    """A fitted recipe, ready to be scored."""

    forecast: Forecaster
    windows: Windows  # the city as the forecaster sees it
    split: Split
    settings: Settings
    batch_size: int
    run: Run | None = None  # of a trained recipe


@dataclass(frozen=True)
class Change:
    """What happens to the input of a trial; this one: nothing."""

    @property
    def name(self) -> str:
        return "test"

    def apply(self, fitted: Fitted, plan: Plan, recipe: Recipe) -> Fitted:
        return fitted


@dataclass(frozen=True)
class Trial:
    recipe: Recipe
    change: Change = Change()


def settings_of(plan: Plan, recipe: Recipe) -> Settings:
    """A recipe's own settings; for what is not trained, those that say what is forecast."""
    return plan.settings(recipe if recipe.trained else replace(recipe, model=PRESETS[0]))


def split_of(plan: Plan, recipe: Recipe) -> Split:
    """The same for every recipe with the same share and seed."""
    settings = settings_of(plan, recipe)
    return make_split(
        plan.city.stream,
        seen=plan.sensors(recipe),
        seed=recipe.seed,
        validation_share=settings.train.validation_share,
        past=settings.task.past,
        horizon=settings.task.horizon,
    )


def carry_out(plan: Plan, recipe: Recipe, changes: Iterable[Change], on_step: OnStep | None = None) -> None:
    """Fit the recipe and score it under each of the changes, whatever of it is not there yet."""
    missing = [change for change in changes if not _sums_path(plan, Trial(recipe, change)).exists()]
    if not missing:
        return
    plan.folder(recipe).mkdir(parents=True, exist_ok=True)
    fitted = fit(plan, recipe, on_step)
    for change in missing:
        changed = change.apply(fitted, plan, recipe)
        _save(plan, Trial(recipe, change), _score(plan, changed))


def fit(plan: Plan, recipe: Recipe, on_step: OnStep | None) -> Fitted:
    device = best_device(plan.device)
    began = time.perf_counter()
    fitted = _trained(plan, recipe, device, on_step) if recipe.trained else _not_trained(plan, recipe, device)
    if not _facts_path(plan, recipe).exists():
        _keep_facts(plan, recipe, fitted, device, time.perf_counter() - began)
    return fitted


def _trained(plan: Plan, recipe: Recipe, device: torch.device, on_step: OnStep | None) -> Fitted:
    folder, settings = plan.folder(recipe), plan.settings(recipe)
    begun = any(folder.glob("checkpoint-*"))
    run = train(
        plan.city,
        seen=None if begun else plan.sensors(recipe),
        settings=settings,
        folder=folder,
        resume=begun,
        device=str(device),
        on_step=on_step,
        build=build_of(recipe),
    )
    if not run.progress.finished:
        raise KeyboardInterrupt
    here = run.on(plan.city)
    predictor = here.predictor(device)
    return Fitted(predictor, here.windows(device), here.split, settings, windows_at_once(here, predictor), run)


def build_of(recipe: Recipe) -> Build:
    return without(recipe.without) if recipe.without else build_model


def _not_trained(plan: Plan, recipe: Recipe, device: torch.device) -> Fitted:
    settings, split = settings_of(plan, recipe), split_of(plan, recipe)
    city, stream = plan.city, plan.city.stream
    features = features_of([stream.network], city)[0] if recipe.model == "lightgbm" else None
    scaling = fit_scaling(stream, split, settings.model, features=features, seed=recipe.seed)
    topologies, _ = build_topologies(stream.topologies, scaling, sensors=split.seen, city=city)
    windows = Windows(stream, topologies, device)
    return Fitted(_simple(plan, recipe, split, windows, settings), windows, split, settings, SCORED_AT_ONCE)


def _simple(plan: Plan, recipe: Recipe, split: Split, windows: Windows, settings: Settings) -> Forecaster:
    stream, task = plan.city.stream, settings.task
    if recipe.model == OWN:
        return fit_own_median(stream, split, otherwise=seen_median(stream, split))
    if recipe.model in NAIVE:
        return naive_baselines(stream, split)[recipe.model]
    if recipe.model == "kriging":
        return fit_kriging(stream, split, windows, past=task.past, horizon=task.horizon)
    if recipe.model == "lightgbm":
        return fit_trees(
            stream,
            split,
            windows,
            past=task.past,
            horizon=task.horizon,
            seed=recipe.seed,
            trees=plan.effort.trees,
            n_jobs=torch.get_num_threads(),  # idle threads of LightGBM wait by spinning: never more than torch's
        )
    raise SettingsError(f'no model "{recipe.model}"')


def _score(plan: Plan, fitted: Fitted) -> Scores:
    task, stride = fitted.settings.task, plan.effort.stride
    return score(
        {"it": fitted.forecast}, fitted.windows, fitted.split, past=task.past, horizon=task.horizon, stride=stride,
        batch_size=fitted.batch_size,
    )["it"]  # fmt: skip


def _sums_path(plan: Plan, trial: Trial) -> Path:
    return plan.folder(trial.recipe) / f"{trial.change.name}.npz"


def _facts_path(plan: Plan, recipe: Recipe) -> Path:
    return plan.folder(recipe) / "facts.json"


def _save(plan: Plan, trial: Trial, scores: Scores) -> None:
    path = _sums_path(plan, trial)
    with replacing_file(path) as new, new.open("wb") as file:
        np.savez_compressed(file, cells=scores.cell_sums.astype(np.float32), hours=scores.hour_sums.astype(np.float32))


def _keep_facts(plan: Plan, recipe: Recipe, fitted: Fitted, device: torch.device, seconds: float) -> None:
    facts: dict[str, Any] = {"model": recipe.label, "seen": recipe.seen, "seed": recipe.seed, "seconds": seconds}
    if fitted.run is not None:
        run = fitted.run
        settings = run.settings
        at = windows_in(fitted.split.train, past=settings.task.past, horizon=settings.task.horizon)
        whole = math.ceil(len(at) / settings.train.batch_size)
        steps = min(whole, settings.train.steps_per_epoch or whole)  # of an epoch
        facts |= {
            "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
            "epochs": run.progress.epoch,
            "best_epoch": run.progress.best_epoch,
            "steps": run.progress.epoch * steps,
            "best_step": run.progress.best_epoch * steps,
            "best_validation_mae": run.progress.best_mae,
            "seconds": run.progress.seconds,
            "settings": run.settings.to_json(),
        }
    write_file(_facts_path(plan, recipe), as_json(facts | environment(device)))


class Scored:
    """What trials have found so far, read from their files."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._splits: dict[tuple[float, int], Split] = {}
        self._scores: dict[Trial, Scores] = {}
        self.left_out: dict[str, str] = {}  # recipes that could not be done, and why

    def has(self, trial: Trial) -> bool:
        return _sums_path(self.plan, trial).exists()

    def settled(self, trial: Trial) -> bool:
        """Whether there is nothing to wait for."""
        return self.has(trial) or trial.recipe.name in self.left_out

    def scores(self, trial: Trial) -> Scores:
        if trial not in self._scores:
            path, stream = _sums_path(self.plan, trial), self.plan.city.stream
            with np.load(path) as data:
                self._scores[trial] = Scores.from_sums(
                    data["cells"], data["hours"], step_s=stream.step_s, quantity=stream.quantity
                )
        return self._scores[trial]

    def found(self, trials: Iterable[Trial], models: Container[str] = ALL) -> Iterator[tuple[Trial, Summary]]:
        """The trials of these models that are there and scored, with their errors at unseen nodes."""
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

    def by_tercile(self, trial: Trial, names: tuple[str, ...]) -> dict[str, Summary]:
        split = self.split(trial.recipe)
        group = terciles(self.plan.city.stream, split, split.unseen)
        return self.scores(trial).by_group(group, names, seed=trial.recipe.seed)

    def share(self, trial: Trial) -> Measure | None:
        """Of a sensor recovered; the yardsticks of its split have to be scored too."""
        none, own = (beside(trial, name) for name in (NONE, OWN))
        split = self.split(trial.recipe)
        return share_of_sensor(
            self.scores(trial), self.scores(none), self.scores(own), split.unseen, seed=trial.recipe.seed
        )

    def of_zero(self, trial: Trial) -> float | None:
        zero, mine = self.summary(beside(trial, ZERO)), self.summary(trial)
        if zero is None or mine is None or not zero.mae.value > 0:
            return None
        return mine.mae.value / zero.mae.value


def beside(trial: Trial, model: str) -> Trial:
    """Another model, plain, with the same sensors."""
    return Trial(Recipe(model, trial.recipe.seen, trial.recipe.seed))


def yardsticks(plan: Plan, **recipe: Any) -> list[Trial]:
    """What `share` and `of_zero` need."""
    return [Trial(plan.recipe(name, **recipe)) for name in (ZERO, NONE, OWN)]
