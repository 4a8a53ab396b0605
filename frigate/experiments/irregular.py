"""A third of the past snapshots missing at test time (tbl:time_granularity): 8 of 12 are left, no training again.

Two ways to be without: the snapshot is not in the window at all, as in the paper; or it is there, without readings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from frigate.config import PRESETS
from frigate.experiments import plots
from frigate.experiments.plan import Plan, Recipe
from frigate.experiments.table import Row, Table, mae_cells
from frigate.experiments.trials import Change, Fitted, Scored, Trial
from frigate.nn.batch import Batch

DROPPED = 1 / 3
WORDS = {"test": "regular", "dropped": "a third dropped", "masked": "a third without readings"}


@dataclass(frozen=True)
class Thinned(Change):
    """A third of each window's past snapshots, drawn for each window, is taken away or masked."""

    masked: bool = False

    @property
    def name(self) -> str:
        return "masked" if self.masked else "dropped"

    def apply(self, fitted: Fitted, plan: Plan, recipe: Recipe) -> Fitted:
        draws = torch.Generator().manual_seed(recipe.seed)

        def forecast(batch: Batch) -> Tensor:
            keep = kept_snapshots(batch.num_windows, batch.past, draws)
            return fitted.forecast(mask(batch, keep) if self.masked else batch.keep_past(keep))

        return replace(fitted, forecast=forecast)


def kept_snapshots(windows: int, past: int, draws: torch.Generator) -> Tensor:
    """[B,T'] which snapshots of each window are left, in their order."""
    left = past - round(DROPPED * past)
    return torch.rand(windows, past, generator=draws).argsort(dim=1)[:, :left].sort(dim=1).values


def mask(batch: Batch, keep: Tensor) -> Batch:
    """The batch with every snapshot, and readings only in those of `keep` [B,T']."""
    there = torch.zeros(batch.num_windows, batch.past, dtype=torch.bool).scatter(1, keep, True)
    observed = batch.observed & there.to(batch.values.device)[:, :, None]
    return replace(batch, values=batch.values.where(observed, 0.0), observed=observed)


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    changes = (Change(), Thinned(), Thinned(masked=True))
    return [Trial(plan.recipe(model), change) for model in plan.wanted(*PRESETS) for change in changes]


def measure(plan: Plan, scored: Scored) -> Table:
    rows: list[Row] = [
        {
            "model": trial.recipe.label,
            "past": WORDS[trial.change.name],
            **mae_cells(summary),
            "more_percent": scored.more_percent(trial),
        }
        for trial, summary in scored.found(trials(plan, scored))
    ]
    return Table.make("irregular", rows)


def draw(table: Table) -> plots.Figure:
    figure, (ax,) = plots.figure(7.5, 0.9 + 0.4 * len(table.rows))
    names = [f"{row['model']}: {row['past']}" for row in table.rows]
    plots.mae_bars(ax, names, table.rows, [plots.look(str(row["model"]))[0] for row in table.rows])
    ax.set_xlabel(f"MAE ({table.unit})")
    return figure
