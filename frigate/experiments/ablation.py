"""The paper's ablation study (fig:ablation): what each part of its model is worth. The parts are in `ablation`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frigate.experiments import plots
from frigate.experiments.ablated_model import PARTS
from frigate.experiments.plan import Plan
from frigate.experiments.table import Cell, Table
from frigate.experiments.trials import Scored, Trial, yardsticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHOLE = "nothing: the whole model"
COLUMNS = {
    "replaced": "what was taken out of Frigate (paper), and what stands in its place",
    "mae": "mean absolute error at nodes without a sensor, the city's unit",
    "mae_low": "95 % interval, unseen nodes resampled",
    "mae_high": "95 % interval, unseen nodes resampled",
    "more_percent": "MAE above that of the whole model, per cent",
    "of_zero": "MAE over that of always forecasting zero, on the same split",
    "parameters": "numbers that are learnt",
}


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    if not plan.wanted("paper"):
        return []
    found = [Trial(plan.recipe("paper")), *(Trial(plan.recipe("paper", without=part)) for part in PARTS)]
    return [*yardsticks(plan, seed=plan.effort.seeds[0]), *found]


def measure(plan: Plan, scored: Scored) -> Table:
    rows: list[dict[str, Cell]] = []
    whole: float | None = None
    for trial in trials(plan, scored):
        recipe = trial.recipe
        if recipe.model != "paper" or not scored.has(trial):
            continue
        summary = scored.summary(trial)
        if summary is None:
            continue
        mae = summary.mae
        whole = mae.value if whole is None and not recipe.without else whole
        more = None if whole is None or not whole > 0 else 100 * (mae.value / whole - 1)
        words = f"{recipe.without}: {PARTS[recipe.without]}" if recipe.without else WHOLE
        row: dict[str, Cell] = {"replaced": words, "mae": mae.value, "mae_low": mae.low, "mae_high": mae.high}
        rows.append(
            row
            | {"more_percent": more, "of_zero": scored.of_zero(trial), "parameters": scored.facts(recipe)["parameters"]}
        )
    notes = [
        "One seed and one split: differences of a few per cent are within what another seed would give.",
        "GraphSAGE has neither gates nor directions nor lengths: its row is all three. Without directions both sums "
        "are one, but the gate still sees which end of a road is which.",
    ]
    return Table("ablation", "What each part of the paper's model is worth", rows, COLUMNS, notes)


def draw(table: Table) -> Figure:
    rows = list(table.rows)
    figure, (ax,) = plots.figure(8, 0.9 + 0.42 * len(rows))
    plots.bars(
        ax,
        [str(row["replaced"]) for row in rows],
        [row["mae"] for row in rows],
        low=[row["mae_low"] for row in rows],
        high=[row["mae_high"] for row in rows],
        colours=[plots.colour("Frigate (paper)" if row["replaced"] == WHOLE else "DCRNN") for row in rows],
    )
    plots.label(ax, x=f"MAE ({table.unit})", y="taken out")
    return figure
