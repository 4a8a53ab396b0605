"""A third of the past snapshots missing at test time (tbl:time_granularity): 8 of 12 are left, no training again.

Two ways to be without: the snapshot is not in the window at all, as in the paper; or it is there, without readings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from frigate.config import PRESETS
from frigate.experiments import plots
from frigate.experiments.plan import Plan, Recipe
from frigate.experiments.table import Cell, Table
from frigate.experiments.trials import Change, Fitted, Scored, Trial
from frigate.nn.batch import Batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DROPPED = 1 / 3
COLUMNS = {
    "model": "forecaster",
    "past": "all past snapshots, a third of them dropped at random, or a third there but without readings",
    "mae": "mean absolute error at nodes without a sensor, the city's unit",
    "mae_low": "95 % interval, unseen nodes resampled",
    "mae_high": "95 % interval, unseen nodes resampled",
    "more_percent": "MAE above that with all snapshots, per cent",
}
WORDS = {"test": "regular", "dropped": "a third dropped", "masked": "a third without readings"}


@dataclass(frozen=True)
class Thinned(Change):
    """A third of each window's past snapshots, drawn anew for each window, is taken away or masked."""

    masked: bool = False

    @property
    def name(self) -> str:
        return "masked" if self.masked else "dropped"

    def apply(self, fitted: Fitted, plan: Plan, recipe: Recipe) -> Fitted:
        draws = torch.Generator().manual_seed(recipe.seed)

        def forecast(batch: Batch) -> Tensor:
            keep = kept_snapshots(batch.num_windows, batch.past, draws)
            return fitted.forecast(mask(batch, keep) if self.masked else drop(batch, keep))

        return replace(fitted, forecast=forecast)


def kept_snapshots(windows: int, past: int, draws: torch.Generator) -> Tensor:
    """[B,T'] which snapshots of each window are left, in their order."""
    left = past - round(DROPPED * past)
    return torch.rand(windows, past, generator=draws).argsort(dim=1)[:, :left].sort(dim=1).values


def drop(batch: Batch, keep: Tensor) -> Batch:
    """The batch with only the snapshots `keep` [B,T'] of each window."""
    at = keep.to(batch.values.device)
    rows = torch.arange(batch.num_windows, device=at.device)[:, None]
    return replace(
        batch,
        values=batch.values[rows, at],
        observed=batch.observed[rows, at],
        calendar_past=batch.calendar_past[rows, at],
        topology_of=batch.topology_of.gather(1, keep),
    )


def mask(batch: Batch, keep: Tensor) -> Batch:
    """The batch with every snapshot, and readings only in those of `keep` [B,T']."""
    there = torch.zeros(batch.num_windows, batch.past, dtype=torch.bool).scatter(1, keep, True)
    observed = batch.observed & there.to(batch.values.device)[:, :, None]
    return replace(batch, values=batch.values.where(observed, 0.0), observed=observed)


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    changes = (Change(), Thinned(), Thinned(masked=True))
    return [Trial(plan.recipe(model), change) for model in plan.wanted(*PRESETS) for change in changes]


def measure(plan: Plan, scored: Scored) -> Table:
    rows: list[dict[str, Cell]] = []
    regular: dict[str, float] = {}
    for trial in trials(plan, scored):
        summary = scored.summary(trial) if scored.has(trial) else None
        if summary is None:
            continue
        model, mae = trial.recipe.label, summary.mae
        whole = regular.setdefault(model, mae.value)
        row: dict[str, Cell] = {"model": model, "past": WORDS[trial.change.name], "mae": mae.value, "mae_low": mae.low}
        rows.append(row | {"mae_high": mae.high, "more_percent": 100 * (mae.value / whole - 1) if whole > 0 else None})
    notes = ["Nothing is trained again. Which snapshots are left is drawn for each window."]
    return Table("irregular", "A third of the past missing", rows, COLUMNS, notes)


def draw(table: Table) -> Figure:
    rows = list(table.rows)
    figure, (ax,) = plots.figure(7.5, 0.9 + 0.4 * len(rows))
    plots.bars(
        ax,
        [f"{row['model']}: {row['past']}" for row in rows],
        [row["mae"] for row in rows],
        low=[row["mae_low"] for row in rows],
        high=[row["mae_high"] for row in rows],
        colours=[plots.colour(str(row["model"])) for row in rows],
    )
    plots.label(ax, x=f"MAE ({table.unit})", y="")
    return figure
