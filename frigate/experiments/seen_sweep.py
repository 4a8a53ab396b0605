"""Accuracy against the share of nodes with a sensor, by step ahead (fig:pct_variation)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frigate.experiments import plots
from frigate.experiments.plan import LABELS, Plan
from frigate.experiments.table import Cell, Table
from frigate.experiments.trials import Scored, Trial, yardsticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = (
    "dcrnn",
    "stnn",
    "stgode",
    "localegn",
    "paper",
    "default",
)  # the paper's choice of baselines, and both presets
COLUMNS = {
    "model": "forecaster",
    "seen": "share of the nodes with a sensor, per cent",
    "step": "step ahead; empty: all steps pooled",
    "minutes": "from the last reading to the start of the step forecast; empty: all steps pooled",
    "mae": "mean absolute error at nodes without a sensor, the city's unit",
    "mae_low": "95 % interval, unseen nodes resampled",
    "mae_high": "95 % interval, unseen nodes resampled",
    "of_zero": "MAE over that of always forecasting zero, on the same split; all steps pooled",
}


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    found = []
    for share in plan.effort.shares:
        found += yardsticks(plan, seed=plan.effort.seeds[0], seen=share)
        found += [Trial(plan.recipe(model, seen=share)) for model in plan.wanted(*MODELS)]
    return found


def measure(plan: Plan, scored: Scored) -> Table:
    rows: list[dict[str, Cell]] = []
    for trial in trials(plan, scored):
        recipe = trial.recipe
        if recipe.model not in MODELS or not scored.has(trial):
            continue
        for step, summary in enumerate([scored.summary(trial), *scored.by_step(trial)]):
            if summary is not None:
                row: dict[str, Cell] = {"model": recipe.label, "seen": 100 * recipe.seen}
                row |= {"step": step or None, "minutes": step * plan.city.stream.step_s / 60 if step else None}
                row |= {"mae": summary.mae.value, "mae_low": summary.mae.low, "mae_high": summary.mae.high}
                rows.append(row | {"of_zero": None if step else scored.of_zero(trial)})
    notes = [
        "One seed. With another share the scored nodes are others too: compare models within a panel. The envelopes "
        "widen to the right because fewer nodes are left to score."
    ]
    return Table("seen-sweep", "Accuracy against the share of nodes with a sensor", rows, COLUMNS, notes)


def draw(table: Table) -> Figure:
    shares = sorted({row["seen"] for row in table.rows if isinstance(row["seen"], int | float)})
    figure, axes = plots.figure(2.2 * len(shares) + 2, 4.2, columns=len(shares), share_y=True)
    for ax, share in zip(axes, shares, strict=True):
        for model in MODELS:
            label = LABELS[model]
            these = [
                row for row in table.rows if row["model"] == label and row["seen"] == share and row["step"] is not None
            ]
            plots.line(
                ax,
                [row["minutes"] for row in these],
                [row["mae"] for row in these],
                label=label,
                low=[row["mae_low"] for row in these],
                high=[row["mae_high"] for row in these],
            )
        y = f"MAE ({table.unit})" if ax is axes[0] else ""
        plots.label(ax, x="minutes ahead", y=y, title=f"{share:g} % seen")
    plots.legend_beside(axes[-1])
    return figure
