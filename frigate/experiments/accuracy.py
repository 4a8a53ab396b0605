"""The paper's accuracy table (tbl:giant): every model beside every simple one, at nodes without a sensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frigate.config import BASELINES
from frigate.evaluation.evaluate import OWN
from frigate.evaluation.metrics import Measure, Summary
from frigate.experiments import plots
from frigate.experiments.plan import FITTED, NAIVE, Plan, Recipe
from frigate.experiments.table import Cell, Row, Table
from frigate.experiments.trials import Scored, Trial, yardsticks

BEST_BASELINES = 2  # that are also trained with `default`'s hiding and road features
COLUMNS = {
    "model": "forecaster",
    "kind": "naive, baseline, ours, or yardstick: it knows the past of the very nodes that are scored",
    "mae": "mean absolute error at nodes without a sensor, the city's unit; mean over seeds",
    "mae_low": "95 % interval, unseen nodes resampled; mean over seeds",
    "mae_high": "95 % interval, unseen nodes resampled; mean over seeds",
    "mae_spread": "standard deviation of the MAE over seeds, each with its own split",
    "rmse": "root mean squared error, the city's unit",
    "rmse_low": "95 % interval",
    "rmse_high": "95 % interval",
    "smape": "symmetric mean absolute percentage error, 0 to 200 %",
    "smape_low": "95 % interval",
    "smape_high": "95 % interval",
    "of_zero": "MAE over that of always forecasting zero, on the same split",
    "share_of_sensor": "share of a sensor recovered: 0 is one constant for the city, 1 as good as a sensor there",
    "mae_at_sensors": "mean absolute error at sensors, whose own past is input",
    "seeds": "number of seeds",
    "steps": "steps of the optimiser until the best validation error; mean over seeds",
}


def first_trials(plan: Plan) -> list[Trial]:
    """All but those of the best baselines with roads, which are only known after these."""
    models = plan.wanted(*NAIVE, *FITTED, *BASELINES, "paper", "default")
    seeds = plan.effort.seeds
    trials = [trial for seed in seeds for trial in yardsticks(plan, seed=seed)]
    trials += [Trial(plan.recipe(model, seed=seed)) for model in models for seed in seeds]
    return list(dict.fromkeys(trials))  # some yardsticks are simple models too


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    first = first_trials(plan)
    baselines = [trial for trial in first if trial.recipe.model in BASELINES]
    if not baselines or not all(scored.settled(trial) for trial in baselines):
        return first
    seeds = plan.effort.seeds
    best = best_baselines(plan, scored)
    return [*first, *(Trial(plan.recipe(model, seed=seed, roads=True)) for model in best for seed in seeds)]


def best_baselines(plan: Plan, scored: Scored) -> list[str]:
    """The baselines with the least MAE at unseen nodes, over all seeds."""

    def mae(model: str) -> float:
        return float(np.mean([_mae(scored, plan.recipe(model, seed=seed)) for seed in plan.effort.seeds]))

    there = [
        model
        for model in plan.wanted(*BASELINES)
        if all(scored.has(Trial(plan.recipe(model, seed=seed))) for seed in plan.effort.seeds)
    ]
    return sorted(there, key=mae)[:BEST_BASELINES]


def _mae(scored: Scored, recipe: Recipe) -> float:
    summary = scored.summary(Trial(recipe))
    return np.inf if summary is None else summary.mae.value


def measure(plan: Plan, scored: Scored) -> Table:
    groups: dict[str, list[Trial]] = {}
    for trial in trials(plan, scored):
        if scored.has(trial):
            groups.setdefault(trial.recipe.label, []).append(trial)
    rows = [_row(scored, these) for these in groups.values()]
    rows.sort(key=lambda row: (row["kind"] == "yardstick", -_number(row["mae"])))
    seeds = len(plan.effort.seeds)
    return Table(
        "accuracy",
        "Accuracy at intersections without a sensor",
        rows,
        COLUMNS,
        notes=[
            f"{plan.seen:.0%} of the nodes have a sensor; the errors are at the others, all steps ahead pooled.",
            f"{seeds} seed{'s' if seeds > 1 else ''}, each with its own sensors, anchors, validation nodes, weights.",
            "All baselines and Frigate (paper) are trained by one protocol: no reading hidden, at most 600 steps, "
            "early stopping on a fifth of the sensors that the model never sees. `+ roads, hiding`: with the road "
            "features and the hiding of sensors that Frigate (default) has.",
        ],
        more={"runs": [_run(scored, trial) for these in groups.values() for trial in these]},
    )


def _row(scored: Scored, trials: Sequence[Trial]) -> Row:
    summaries = [summary for trial in trials if (summary := scored.summary(trial)) is not None]
    sensors = [summary for trial in trials if (summary := scored.summary(trial, at_sensors=True)) is not None]
    shares = [share.value for trial in trials if (share := scored.share(trial)) is not None]
    of_zero = [x for trial in trials if (x := scored.of_zero(trial)) is not None]
    recipe = trials[0].recipe
    row: Row = {"model": recipe.label, "kind": kind(recipe)}
    for name in ("mae", "rmse", "smape"):
        measures: list[Measure] = [getattr(summary, name) for summary in summaries]
        row[name] = _mean([measure.value for measure in measures])
        row[f"{name}_low"] = _mean([measure.low for measure in measures])
        row[f"{name}_high"] = _mean([measure.high for measure in measures])
        if name == "mae":
            row["mae_spread"] = float(np.std([m.value for m in measures], ddof=1)) if len(measures) > 1 else None
    row["of_zero"] = _mean(of_zero)
    row["share_of_sensor"] = _mean(shares)
    row["mae_at_sensors"] = _mean([summary.mae.value for summary in sensors])
    row["seeds"] = len(trials)
    row["steps"] = _mean([scored.facts(trial.recipe)["best_step"] for trial in trials]) if recipe.trained else None
    return row


def kind(recipe: Recipe) -> str:
    if recipe.model == OWN:
        return "yardstick"
    return "naive" if recipe.model in NAIVE else "ours" if recipe.model in ("paper", "default") else "baseline"


def _run(scored: Scored, trial: Trial) -> dict[str, object]:
    """One seed of one model, for machines."""
    unseen, sensors = (scored.summary(trial, at_sensors=at) for at in (False, True))
    return {
        "model": trial.recipe.label,
        "seed": trial.recipe.seed,
        "unseen": _json(unseen),
        "at_sensors": _json(sensors),
        "of_zero": scored.of_zero(trial),
        "facts": scored.facts(trial.recipe),
    }


def _json(summary: Summary | None) -> dict[str, object] | None:
    return None if summary is None else summary.to_json()


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _number(cell: Cell) -> float:
    return float(cell) if isinstance(cell, int | float) else np.inf


def draw(table: Table) -> plots.Figure:
    rows = [row for row in table.rows if row["mae"] is not None]
    figure, (ax,) = plots.figure(7.5, 0.6 + 0.32 * len(rows))
    names = [str(row["model"]) for row in rows]
    plots.bars(
        ax,
        names,
        [row["mae"] for row in rows],
        low=[row["mae_low"] for row in rows],
        high=[row["mae_high"] for row in rows],
        colours=[plots.colour(name) for name in names],
    )
    plots.label(ax, x=f"MAE at nodes without a sensor ({table.unit})", y="")
    return figure
