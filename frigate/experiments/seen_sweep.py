"""Accuracy against the share of nodes with a sensor, by step ahead (fig:pct_variation)."""

from __future__ import annotations

from dataclasses import replace

from frigate.experiments import plots
from frigate.experiments.plan import Plan
from frigate.experiments.table import Row, Table, mae_cells
from frigate.experiments.trials import Scored, Trial, yardsticks

MODELS = ("dcrnn", "stnn", "stgode", "localegn", "paper", "default")  # the paper's baselines, and both presets


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    found = []
    for share in plan.effort.shares:
        found += yardsticks(plan, seen=share)
        found += [Trial(plan.recipe(model, seen=share)) for model in plan.wanted(*MODELS)]
    return found


def measure(plan: Plan, scored: Scored) -> Table:
    rows: list[Row] = []
    for trial, pooled in scored.found(trials(plan, scored), models=MODELS):
        for step, summary in enumerate([pooled, *scored.by_step(trial)]):
            if summary is not None:
                row: Row = {"model": trial.recipe.label, "seen": 100 * trial.recipe.seen, "step": step or None}
                row["minutes"] = step * plan.city.stream.step_s / 60 if step else None
                rows.append(row | mae_cells(summary) | {"of_zero": None if step else scored.of_zero(trial)})
    return Table.make("seen-sweep", rows)


def draw(table: Table) -> plots.Figure:
    shares = sorted({row["seen"] for row in table.rows if isinstance(row["seen"], int | float)})
    figure, axes = plots.figure(2.2 * len(shares) + 2, 4.2, columns=len(shares), share_y=True)
    for ax, share in zip(axes, shares, strict=True):
        shown = [row for row in table.rows if row["seen"] == share and row["step"]]
        plots.mae_lines(ax, replace(table, rows=shown).by_model(), "minutes")
        ax.set(xlabel="minutes ahead", title=f"{share:g} % seen")
    axes[0].set_ylabel(f"MAE ({table.unit})")
    plots.legend_beside(axes[-1])
    return figure
