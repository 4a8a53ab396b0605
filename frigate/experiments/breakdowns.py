"""Breakdowns of the error: by step ahead (in the paper's figures, next to the volume of seen nodes), by traffic volume
(fig:freq_distrib), by share of nodes with a sensor (fig:pct_variation).
"""

from __future__ import annotations

from dataclasses import replace

from frigate.config import BASELINES
from frigate.evaluation.evaluate import OWN
from frigate.experiments import plots
from frigate.experiments.plan import FITTED, Plan
from frigate.experiments.table import ResultTable, Row, mae_cells
from frigate.experiments.trials import Scored, Trial, yardsticks

TRAFFIC = ("high", "medium", "low")  # thirds of the unseen nodes, by mean reading in training
SWEPT = ("dcrnn", "stnn", "stgode", "localegn", "paper", "default")  # the paper's baselines, and both presets


def horizon_trials(plan: Plan, scored: Scored) -> list[Trial]:
    models = plan.wanted("nearest sensors", *FITTED, *BASELINES, "paper", "default")
    return [Trial(plan.recipe(model)) for model in (*models, OWN)]


def measure_horizon(plan: Plan, scored: Scored) -> ResultTable:
    minutes = plan.city.stream.step_s / 60
    rows: list[Row] = [
        {"model": trial.recipe.label, "step": step, "minutes": step * minutes, **mae_cells(summary)}
        for trial, _ in scored.found(horizon_trials(plan, scored))
        for step, summary in enumerate(scored.by_step(trial), start=1)
        if summary is not None
    ]
    return ResultTable.make("horizon", rows)


def draw_horizon(table: ResultTable) -> plots.Figure:
    figure, (ax,) = plots.figure(7.5, 4.8)
    plots.mae_lines(ax, table.by_model(), "minutes", bands="Frigate", dashed=OWN)  # all bands would hide each other
    ax.set(xlabel="minutes ahead", ylabel=f"MAE ({table.unit})")
    plots.legend_beside(ax)
    return figure


def traffic_trials(plan: Plan, scored: Scored) -> list[Trial]:
    models = plan.wanted("zero", "nearest sensors", *FITTED, *BASELINES, "paper", "default")
    return [Trial(plan.recipe(model)) for model in models]


def measure_traffic(plan: Plan, scored: Scored) -> ResultTable:
    rows: list[Row] = []
    for trial, _ in scored.found(traffic_trials(plan, scored)):
        groups = scored.by_tercile(trial)
        for traffic in TRAFFIC:
            if (found := groups.get(traffic)) is not None:
                row: Row = {"model": trial.recipe.label, "traffic": traffic, **mae_cells(found)}
                rows.append(row | {"wape": found.wape.value, "nodes": found.nodes})
    return ResultTable.make("traffic-buckets", rows)


def draw_traffic(table: ResultTable) -> plots.Figure:
    models = table.by_model()
    figure, axes = plots.figure(11, 0.8 + 0.32 * len(models), columns=len(TRAFFIC), share_y=True)
    for ax, traffic in zip(axes, TRAFFIC, strict=True):
        found = [next((row for row in rows if row["traffic"] == traffic), {}) for rows in models.values()]
        plots.mae_bars(ax, list(models), found)
        ax.set(xlabel=f"MAE ({table.unit})", title=f"{traffic} traffic")
    return figure


def sweep_trials(plan: Plan, scored: Scored) -> list[Trial]:
    found = []
    for share in plan.effort.shares:
        found += yardsticks(plan, seen=share)
        found += [Trial(plan.recipe(model, seen=share)) for model in plan.wanted(*SWEPT)]
    return found


def measure_sweep(plan: Plan, scored: Scored) -> ResultTable:
    rows: list[Row] = []
    for trial, pooled in scored.found(sweep_trials(plan, scored), models=SWEPT):
        for step, summary in enumerate([pooled, *scored.by_step(trial)]):
            if summary is not None:
                row: Row = {"model": trial.recipe.label, "seen": 100 * trial.recipe.seen, "step": step or None}
                row["minutes"] = step * plan.city.stream.step_s / 60 if step else None
                rows.append(row | mae_cells(summary) | {"of_zero": None if step else scored.of_zero(trial)})
    return ResultTable.make("seen-sweep", rows)


def draw_sweep(table: ResultTable) -> plots.Figure:
    shares = sorted({row["seen"] for row in table.rows if isinstance(row["seen"], int | float)})
    figure, axes = plots.figure(2.2 * len(shares) + 2, 4.2, columns=len(shares), share_y=True)
    for ax, share in zip(axes, shares, strict=True):
        shown = [row for row in table.rows if row["seen"] == share and row["step"]]
        plots.mae_lines(ax, replace(table, rows=shown).by_model(), "minutes")
        ax.set(xlabel="minutes ahead", title=f"{share:g} % seen")
    axes[0].set_ylabel(f"MAE ({table.unit})")
    plots.legend_beside(axes[-1])
    return figure
