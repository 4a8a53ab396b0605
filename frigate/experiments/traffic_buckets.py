"""Error by how much traffic a node has (fig:freq_distrib): thirds of the unseen nodes by mean training reading."""

from __future__ import annotations

from frigate.config import BASELINES
from frigate.experiments import plots
from frigate.experiments.plan import FITTED, Plan
from frigate.experiments.table import Row, Table, mae_cells
from frigate.experiments.trials import Scored, Trial

SHOWN = ("high", "medium", "low")


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    models = plan.wanted("zero", "nearest sensors", *FITTED, *BASELINES, "paper", "default")
    return [Trial(plan.recipe(model)) for model in models]


def measure(plan: Plan, scored: Scored) -> Table:
    rows: list[Row] = []
    for trial, _ in scored.found(trials(plan, scored)):
        groups = scored.by_tercile(trial)
        for traffic in SHOWN:
            if (found := groups.get(traffic)) is not None:
                row: Row = {"model": trial.recipe.label, "traffic": traffic, **mae_cells(found)}
                rows.append(row | {"wape": found.wape.value, "nodes": found.nodes})
    return Table.make("traffic-buckets", rows)


def draw(table: Table) -> plots.Figure:
    models = table.by_model()
    figure, axes = plots.figure(11, 0.8 + 0.32 * len(models), columns=len(SHOWN), share_y=True)
    for ax, traffic in zip(axes, SHOWN, strict=True):
        found = [next((row for row in rows if row["traffic"] == traffic), {}) for rows in models.values()]
        plots.mae_bars(ax, list(models), found)
        ax.set(xlabel=f"MAE ({table.unit})", title=f"{traffic} traffic")
    return figure
