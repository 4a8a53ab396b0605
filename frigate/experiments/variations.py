"""Variations of the presets: parts replaced (fig:ablation; see `ablated_model`), other numbers of layers
(fig:layer_variations), roads changed at inference (fig:gchanges), a third of the past missing (tbl:time_granularity).
"""

from __future__ import annotations

from collections.abc import Callable

from frigate.config import PRESETS, preset
from frigate.experiments import plots
from frigate.experiments.ablated_model import PARTS
from frigate.experiments.changed_input import OtherRoads, Thinned
from frigate.experiments.plan import Plan
from frigate.experiments.table import Cell, ResultTable, Row, mae_cells, number_or
from frigate.experiments.trials import InputChange, Scored, Trial, yardsticks

WHOLE = "nothing: the whole model"
MISSING = {"test": "regular", "dropped": "a third dropped", "masked": "a third without readings"}


def ablation_trials(plan: Plan, scored: Scored) -> list[Trial]:
    if not plan.wanted("paper"):
        return []
    return [*yardsticks(plan), *(Trial(plan.recipe("paper", without=part)) for part in ("", *PARTS))]


def layers_trials(plan: Plan, scored: Scored) -> list[Trial]:
    if not plan.wanted("paper"):
        return []
    default = preset("paper").model.layers  # as None, it is the same recipe as elsewhere and not trained twice
    sizes = [None if layers == default else layers for layers in plan.effort.layers]
    return [*yardsticks(plan), *(Trial(plan.recipe("paper", layers=layers)) for layers in sizes)]


def topology_trials(plan: Plan, scored: Scored) -> list[Trial]:
    changes = [OtherRoads(percent) if percent else InputChange() for percent in plan.effort.changed_roads]
    return [Trial(plan.recipe(model), change) for model in plan.wanted(*PRESETS) for change in changes]


def irregular_trials(plan: Plan, scored: Scored) -> list[Trial]:
    changes = (InputChange(), Thinned(), Thinned(masked=True))
    return [Trial(plan.recipe(model), change) for model in plan.wanted(*PRESETS) for change in changes]


def measure_ablation(plan: Plan, scored: Scored) -> ResultTable:
    words = {part: f"{part}: {meaning}" for part, meaning in PARTS.items()}
    trials = ablation_trials(plan, scored)
    return _table("ablation", scored, trials, "replaced", lambda trial: words.get(trial.recipe.without, WHOLE))


def measure_layers(plan: Plan, scored: Scored) -> ResultTable:
    default = preset("paper").model.layers
    return _table("layers", scored, layers_trials(plan, scored), "layers", lambda trial: trial.recipe.layers or default)


def measure_topology(plan: Plan, scored: Scored) -> ResultTable:
    trials = topology_trials(plan, scored)
    return _table("topology", scored, trials, "changed", lambda trial: getattr(trial.change, "percent", 0.0))


def measure_irregular(plan: Plan, scored: Scored) -> ResultTable:
    trials = irregular_trials(plan, scored)
    return _table("irregular", scored, trials, "past", lambda trial: MISSING[trial.change.name])


def _table(name: str, scored: Scored, trials: list[Trial], varied: str, value: Callable[[Trial], Cell]) -> ResultTable:
    """A row for each trial of a preset, with what was varied; ResultTable.make keeps the columns that the table has."""
    rows: list[Row] = []
    for trial, summary in scored.found(trials, models=PRESETS):
        facts = scored.facts(trial.recipe)
        row: Row = {"model": trial.recipe.label, varied: value(trial), **mae_cells(summary)}
        row |= {"more_percent": scored.more_percent(trial), "of_zero": scored.of_zero(trial)}
        rows.append(row | {"parameters": facts["parameters"], "finite": facts["best_validation_mae"] is not None})
    return ResultTable.make(name, rows)


def draw_ablation(table: ResultTable) -> plots.Figure:
    names = [str(row["replaced"]) for row in table.rows]
    figure, (ax,) = plots.figure(8, 0.9 + 0.42 * len(names))
    colours = [plots.look("Frigate (paper)" if name == WHOLE else "DCRNN")[0] for name in names]
    plots.mae_bars(ax, names, table.rows, colours)
    ax.set(xlabel=f"MAE ({table.unit})", ylabel="replaced")
    return figure


def draw_layers(table: ResultTable) -> plots.Figure:
    figure, (ax,) = plots.figure()
    plots.mae_lines(ax, {"Frigate (paper)": table.rows}, "layers")
    ax.set(xlabel="layers", ylabel=f"MAE ({table.unit})")
    ax.set_xticks([number_or(0, row["layers"]) for row in table.rows])
    return figure


def draw_topology(table: ResultTable) -> plots.Figure:
    figure, (ax,) = plots.figure()
    plots.mae_lines(ax, table.by_model(), "changed")
    ax.set(xlabel="roads changed (%)", ylabel=f"MAE ({table.unit})")
    ax.set_ylim(bottom=0)
    ax.set_xticks(sorted({number_or(0, row["changed"]) for row in table.rows}))
    ax.legend()
    return figure


def draw_irregular(table: ResultTable) -> plots.Figure:
    figure, (ax,) = plots.figure(7.5, 0.9 + 0.4 * len(table.rows))
    names = [f"{row['model']}: {row['past']}" for row in table.rows]
    plots.mae_bars(ax, names, table.rows, [plots.look(str(row["model"]))[0] for row in table.rows])
    ax.set_xlabel(f"MAE ({table.unit})")
    return figure
