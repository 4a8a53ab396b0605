"""Accuracy against the number of layers (fig:layer_variations)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frigate.config import preset
from frigate.experiments import plots
from frigate.experiments.plan import Plan, Recipe
from frigate.experiments.table import Cell, Table
from frigate.experiments.trials import Scored, Trial, yardsticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = {
    "layers": "graph convolutions of Frigate (paper)",
    "mae": "mean absolute error at nodes without a sensor, the city's unit",
    "mae_low": "95 % interval, unseen nodes resampled",
    "mae_high": "95 % interval, unseen nodes resampled",
    "of_zero": "MAE over that of always forecasting zero, on the same split",
    "parameters": "numbers that are learnt",
    "finite": "whether every epoch's validation error was finite",
}


def recipe(plan: Plan, layers: int) -> Recipe:
    """The preset's own number is the same recipe as everywhere else: it is not trained twice."""
    return plan.recipe("paper", layers=None if layers == preset("paper").model.layers else layers)


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    if not plan.wanted("paper"):
        return []
    found = [Trial(recipe(plan, layers)) for layers in plan.effort.layers]
    return [*yardsticks(plan, seed=plan.effort.seeds[0]), *found]


def measure(plan: Plan, scored: Scored) -> Table:
    rows: list[dict[str, Cell]] = []
    for layers in plan.effort.layers if plan.wanted("paper") else ():
        trial = Trial(recipe(plan, layers))
        summary = scored.summary(trial) if scored.has(trial) else None
        if summary is not None:
            facts, mae = scored.facts(trial.recipe), summary.mae
            row: dict[str, Cell] = {"layers": layers, "mae": mae.value, "mae_low": mae.low, "mae_high": mae.high}
            row |= {"of_zero": scored.of_zero(trial), "parameters": facts["parameters"]}
            rows.append(row | {"finite": facts["best_validation_mae"] is not None})
    notes = ["One seed and one split: a difference between neighbouring points says little."]
    return Table("layers", "Accuracy against the number of layers", rows, COLUMNS, notes)


def draw(table: Table) -> Figure:
    figure, (ax,) = plots.figure(7, 4.2)
    rows = list(table.rows)
    plots.line(
        ax,
        [row["layers"] for row in rows],
        [row["mae"] for row in rows],
        label="Frigate (paper)",
        low=[row["mae_low"] for row in rows],
        high=[row["mae_high"] for row in rows],
    )
    ax.set_xticks([int(row["layers"]) for row in rows if isinstance(row["layers"], int)])
    plots.label(ax, x="layers", y=f"MAE at nodes without a sensor ({table.unit})")
    return figure
