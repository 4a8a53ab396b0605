"""Error by how much traffic a node has (fig:freq_distrib): thirds of the unseen nodes by mean training reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frigate.config import BASELINES
from frigate.evaluation.evaluate import TERCILES
from frigate.experiments import plots
from frigate.experiments.plan import FITTED, Plan
from frigate.experiments.table import Cell, Table
from frigate.experiments.trials import Scored, Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = {
    "model": "forecaster",
    "traffic": "third of the unseen nodes, by the mean reading in the training period",
    "mae": "mean absolute error, the city's unit",
    "mae_low": "95 % interval, nodes resampled",
    "mae_high": "95 % interval, nodes resampled",
    "wape": "all errors over all truth, per cent",
    "nodes": "nodes scored",
}
SHOWN = ("high", "medium", "low")


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    models = plan.wanted("zero", "nearest sensors", *FITTED, *BASELINES, "paper", "default")
    return [Trial(plan.recipe(model)) for model in models]


def measure(plan: Plan, scored: Scored) -> Table:
    rows: list[dict[str, Cell]] = []
    for trial in trials(plan, scored):
        if not scored.has(trial):
            continue
        groups = scored.by_tercile(trial, TERCILES)
        for name in SHOWN:
            if name in groups:
                found = groups[name]
                rows.append(
                    {"model": trial.recipe.label, "traffic": name, "mae": found.mae.value, "mae_low": found.mae.low,
                     "mae_high": found.mae.high, "wape": found.wape.value, "nodes": found.nodes}
                )  # fmt: skip
    notes = ["One seed. Nodes with equal means stay together, so that a third may be larger than another."]
    return Table("traffic-buckets", "Error by how busy an intersection is", rows, COLUMNS, notes)


def draw(table: Table) -> Figure:
    names = list(dict.fromkeys(str(row["model"]) for row in table.rows))
    figure, axes = plots.figure(11, 0.8 + 0.32 * len(names), columns=len(SHOWN), share_y=True)
    for ax, traffic in zip(axes, SHOWN, strict=True):
        these = {str(row["model"]): row for row in table.rows if row["traffic"] == traffic}
        found = [these.get(name, {}) for name in names]
        plots.bars(
            ax,
            names,
            [row.get("mae") for row in found],
            low=[row.get("mae_low") for row in found],
            high=[row.get("mae_high") for row in found],
            colours=[plots.colour(name) for name in names],
        )
        plots.label(ax, x=f"MAE ({table.unit})", y="", title=f"{traffic} traffic")
    return figure
