"""Accuracy against the number of layers (fig:layer_variations)."""

from __future__ import annotations

from frigate.config import preset
from frigate.experiments import plots
from frigate.experiments.plan import Plan
from frigate.experiments.table import Row, Table, mae_cells
from frigate.experiments.trials import Scored, Trial, yardsticks


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    if not plan.wanted("paper"):
        return []
    usual = preset("paper").model.layers  # the same recipe as everywhere else: it is not trained twice
    sizes = [None if layers == usual else layers for layers in plan.effort.layers]
    return [*yardsticks(plan), *(Trial(plan.recipe("paper", layers=layers)) for layers in sizes)]


def measure(plan: Plan, scored: Scored) -> Table:
    rows: list[Row] = [
        {
            "layers": trial.recipe.layers or preset("paper").model.layers,
            **mae_cells(summary),
            "of_zero": scored.of_zero(trial),
            "parameters": scored.facts(trial.recipe)["parameters"],
            "finite": scored.facts(trial.recipe)["best_validation_mae"] is not None,
        }
        for trial, summary in scored.found(trials(plan, scored), models=("paper",))
    ]
    return Table.make("layers", rows)


def draw(table: Table) -> plots.Figure:
    figure, (ax,) = plots.figure()
    plots.mae_lines(ax, {"Frigate (paper)": table.rows}, "layers")
    ax.set(xlabel="layers", ylabel=f"MAE at nodes without a sensor ({table.unit})")
    ax.set_xticks([int(row["layers"]) for row in table.rows if isinstance(row["layers"], int)])
    return figure
