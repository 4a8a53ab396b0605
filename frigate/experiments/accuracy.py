"""The paper's accuracy table (tbl:giant): all models and simple baselines, at nodes without a sensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frigate.config import BASELINES
from frigate.evaluation.evaluate import OWN
from frigate.evaluation.metrics import Measure
from frigate.experiments import plots
from frigate.experiments.plan import FITTED, NAIVE, Plan, Recipe
from frigate.experiments.table import ResultTable, Row, number_or
from frigate.experiments.trials import Scored, Trial, yardsticks

BEST_BASELINES = 2  # are also trained with the hiding and road features of `default`


def first_trials(plan: Plan) -> list[Trial]:
    """All but the best baselines with roads: these trials decide which are best."""
    models = plan.wanted(*NAIVE, *FITTED, *BASELINES, "paper", "default")
    seeds = plan.effort.seeds
    trials = [trial for seed in seeds for trial in yardsticks(plan, seed=seed)]
    trials += [Trial(plan.recipe(model, seed=seed)) for model in models for seed in seeds]
    return list(dict.fromkeys(trials))  # some yardsticks are also naive models


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    first = first_trials(plan)
    if not all(scored.settled(trial) for trial in first if trial.recipe.model in BASELINES):
        return first
    best = best_baselines(plan, scored)
    seeds = plan.effort.seeds
    return [*first, *(Trial(plan.recipe(model, seed=seed, roads=True)) for model in best for seed in seeds)]


def best_baselines(plan: Plan, scored: Scored) -> list[str]:
    """The baselines with the lowest MAE at unseen nodes, over all seeds."""
    mae = {}
    for model in plan.wanted(*BASELINES):
        seeds = [Trial(plan.recipe(model, seed=seed)) for seed in plan.effort.seeds]
        if all(scored.has(trial) for trial in seeds):
            summaries = [scored.summary(trial) for trial in seeds]
            mae[model] = np.mean([np.inf if summary is None else summary.mae.value for summary in summaries])
    return sorted(mae, key=lambda model: float(mae[model]))[:BEST_BASELINES]


def measure(plan: Plan, scored: Scored) -> ResultTable:
    groups: dict[str, list[Trial]] = {}
    for trial in trials(plan, scored):
        if scored.has(trial):
            groups.setdefault(trial.recipe.label, []).append(trial)
    rows = [_row(scored, these) for these in groups.values()]
    rows.sort(key=lambda row: (row["kind"] == "yardstick", -number_or(np.inf, row["mae"])))
    more = {"runs": [_run(scored, trial) for these in groups.values() for trial in these]}
    return ResultTable.make("accuracy", rows, more, seen=plan.seen, seeds=len(plan.effort.seeds))


def _row(scored: Scored, trials: Sequence[Trial]) -> Row:
    """Means over the seeds of one model."""
    unseen, sensors = ([scored.summary(trial, at_sensors=at) for trial in trials] for at in (False, True))
    recipe = trials[0].recipe
    row: Row = {"model": recipe.label, "kind": kind(recipe)}
    for name in ("mae", "rmse", "smape"):
        measures: list[Measure] = [getattr(summary, name) for summary in unseen if summary is not None]
        for end, part in (("", "value"), ("_low", "low"), ("_high", "high")):
            row[name + end] = _mean([getattr(measure, part) for measure in measures])
        if name == "mae":
            row["mae_spread"] = float(np.std([m.value for m in measures], ddof=1)) if len(measures) > 1 else None
    row["of_zero"] = _mean([scored.of_zero(trial) for trial in trials])
    row["share_of_sensor"] = _mean([None if share is None else share.value for share in map(scored.share, trials)])
    row["mae_at_sensors"] = _mean([None if summary is None else summary.mae.value for summary in sensors])
    row["seeds"] = len(trials)
    row["steps"] = _mean([scored.facts(trial.recipe)["best_step"] for trial in trials]) if recipe.trained else None
    return row


def kind(recipe: Recipe) -> str:
    if recipe.model == OWN:
        return "yardstick"
    return "naive" if recipe.model in NAIVE else "ours" if recipe.model in ("paper", "default") else "baseline"


def _run(scored: Scored, trial: Trial) -> dict[str, object]:
    """One seed of one model, for the JSON file."""
    unseen, sensors = (scored.summary(trial, at_sensors=at) for at in (False, True))
    return {
        "model": trial.recipe.label,
        "seed": trial.recipe.seed,
        "unseen": unseen and unseen.to_json(),
        "at_sensors": sensors and sensors.to_json(),
        "of_zero": scored.of_zero(trial),
        "facts": scored.facts(trial.recipe),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are not None."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def draw(table: ResultTable) -> plots.Figure:
    rows = [row for row in table.rows if row["mae"] is not None]
    figure, (ax,) = plots.figure(7.5, 0.6 + 0.32 * len(rows))
    plots.mae_bars(ax, [str(row["model"]) for row in rows], rows)
    ax.set_xlabel(f"MAE at nodes without a sensor ({table.unit})")
    return figure
