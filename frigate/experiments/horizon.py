"""MAE against the step ahead (the paper's figures have it beside the volume of seen nodes)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frigate.config import BASELINES
from frigate.evaluation.evaluate import OWN
from frigate.experiments import plots
from frigate.experiments.plan import FITTED, Plan
from frigate.experiments.table import Cell, Table
from frigate.experiments.trials import Scored, Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = {
    "model": "forecaster",
    "step": "step ahead",
    "minutes": "from the last reading to the start of the step forecast, minutes",
    "mae": "mean absolute error at nodes without a sensor, the city's unit",
    "mae_low": "95 % interval, unseen nodes resampled",
    "mae_high": "95 % interval, unseen nodes resampled",
}


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    models = plan.wanted("nearest sensors", *FITTED, *BASELINES, "paper", "default")
    return [Trial(plan.recipe(model)) for model in (*models, OWN)]


def measure(plan: Plan, scored: Scored) -> Table:
    rows: list[dict[str, Cell]] = []
    for trial in trials(plan, scored):
        if not scored.has(trial):
            continue
        for step, summary in enumerate(scored.by_step(trial), start=1):
            if summary is not None:
                mae = summary.mae
                minutes = step * plan.city.stream.step_s / 60
                rows.append(
                    {"model": trial.recipe.label, "step": step, "minutes": minutes, "mae": mae.value,
                     "mae_low": mae.low, "mae_high": mae.high}
                )  # fmt: skip
    notes = [
        "One seed. The envelopes are the same nodes resampled, so that they move together: models differ where their "
        "order holds over all steps, even inside each other's envelope."
    ]
    return Table("horizon", "Error against how far ahead", rows, COLUMNS, notes)


def draw(table: Table) -> Figure:
    figure, (ax,) = plots.figure(7.5, 4.8)
    for name in dict.fromkeys(str(row["model"]) for row in table.rows):
        these = [row for row in table.rows if row["model"] == name]
        enveloped = name.startswith("Frigate")  # of all seventeen nothing could be told apart
        plots.line(
            ax,
            [row["minutes"] for row in these],
            [row["mae"] for row in these],
            label=name,
            low=[row["mae_low"] for row in these] if enveloped else None,
            high=[row["mae_high"] for row in these] if enveloped else None,
            dashed=name == OWN,
        )
    plots.label(ax, x="minutes ahead", y=f"MAE ({table.unit})")
    plots.legend_beside(ax)
    return figure
