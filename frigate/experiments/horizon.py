"""MAE against the step ahead (the paper's figures have it beside the volume of seen nodes)."""

from __future__ import annotations

from frigate.config import BASELINES
from frigate.evaluation.evaluate import OWN
from frigate.experiments import plots
from frigate.experiments.plan import FITTED, Plan
from frigate.experiments.table import Row, Table, mae_cells
from frigate.experiments.trials import Scored, Trial


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    models = plan.wanted("nearest sensors", *FITTED, *BASELINES, "paper", "default")
    return [Trial(plan.recipe(model)) for model in (*models, OWN)]


def measure(plan: Plan, scored: Scored) -> Table:
    minutes = plan.city.stream.step_s / 60
    rows: list[Row] = [
        {"model": trial.recipe.label, "step": step, "minutes": step * minutes, **mae_cells(summary)}
        for trial, _ in scored.found(trials(plan, scored))
        for step, summary in enumerate(scored.by_step(trial), start=1)
        if summary is not None
    ]
    return Table.make("horizon", rows)


def draw(table: Table) -> plots.Figure:
    figure, (ax,) = plots.figure(7.5, 4.8)
    plots.mae_lines(ax, table.by_model(), "minutes", bands="Frigate", dashed=OWN)  # with all bands none could be seen
    ax.set(xlabel="minutes ahead", ylabel=f"MAE ({table.unit})")
    plots.legend_beside(ax)
    return figure
