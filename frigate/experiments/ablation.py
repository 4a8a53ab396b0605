"""The paper's ablation study (fig:ablation): what each part of its model is worth. The parts: `ablated_model`."""

from __future__ import annotations

from frigate.experiments import plots
from frigate.experiments.ablated_model import PARTS
from frigate.experiments.plan import Plan
from frigate.experiments.table import Row, Table, mae_cells
from frigate.experiments.trials import Scored, Trial, yardsticks

WHOLE = "nothing: the whole model"


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    if not plan.wanted("paper"):
        return []
    return [*yardsticks(plan), *(Trial(plan.recipe("paper", without=part)) for part in ("", *PARTS))]


def measure(plan: Plan, scored: Scored) -> Table:
    words = {part: f"{part}: {meaning}" for part, meaning in PARTS.items()}
    rows: list[Row] = [
        {
            "replaced": words.get(trial.recipe.without, WHOLE),
            **mae_cells(summary),
            "more_percent": scored.more_percent(trial),
            "of_zero": scored.of_zero(trial),
            "parameters": scored.facts(trial.recipe)["parameters"],
        }
        for trial, summary in scored.found(trials(plan, scored), models=("paper",))
    ]
    return Table.make("ablation", rows)


def draw(table: Table) -> plots.Figure:
    names = [str(row["replaced"]) for row in table.rows]
    figure, (ax,) = plots.figure(8, 0.9 + 0.42 * len(names))
    colours = [plots.look("Frigate (paper)" if name == WHOLE else "DCRNN")[0] for name in names]
    plots.mae_bars(ax, names, table.rows, colours)
    ax.set(xlabel=f"MAE ({table.unit})", ylabel="taken out")
    return figure
