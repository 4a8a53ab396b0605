"""Errors of forecasts: running sums for each step and node, and the measures computed from them.

Forecasts are not kept. A cell is a (window, step, node) with a reading; MAE, RMSE, sMAPE and WAPE pool all cells.
Intervals resample nodes, not cells, because the cells of a node are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.calendar import HOUR_S
from frigate.draws import Draw, generator
from frigate.errors import SettingsError
from frigate.text import three_digits

GOOD_GEH = 5.0
DRAWS = 1000
VOLUMES = ("below 100", "100 to 700", "700 to 2,700", "2,700 or more")  # vehicles an hour: planners' usual classes
VOLUME_EDGES = (100.0, 700.0, 2700.0)

Sums = NDArray[np.float64]


@dataclass(frozen=True)
class Measure:
    """A value with its 95 % bootstrap interval; NaN if undefined. A single node gives no interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """ "2.77 [2.4, 3.1]": as many digits as the interval allows, and one more for the value."""
        if not math.isfinite(self.high - self.low) or self.high == self.low:
            return three_digits(self.value)
        digits = -math.floor(math.log10((self.high - self.low) / 2))
        ends = max(0, digits)
        return f"{self.value:.{max(0, digits + 1)}f} [{self.low:.{ends}f}, {self.high:.{ends}f}]"

    def to_json(self) -> dict[str, float | None]:
        return {name: x if math.isfinite(x) else None for name, x in asdict(self).items()}


@dataclass(frozen=True)
class Summary:
    """Measures pooled over some nodes, in the user's unit or in percent."""

    mae: Measure
    rmse: Measure
    smape: Measure  # percent, 0 to 200
    wape: Measure  # percent
    geh_share: Measure | None  # percent of whole hours ahead with GEH < 5; None unless the quantity is a count
    cells: int
    nodes: int  # with at least one cell

    def to_json(self) -> dict[str, Any]:
        measures = {name: getattr(self, name) for name in ("mae", "rmse", "smape", "wape", "geh_share")}
        return {
            **{name: None if x is None else x.to_json() for name, x in measures.items()},
            "cells": self.cells,
            "nodes": self.nodes,
        }


def geh(forecast: Tensor, truth: Tensor) -> Tensor:
    """Geoffrey E. Havers' statistic of hourly volumes; 0/0 = 0."""
    total = forecast + truth
    squared = 2 * (forecast - truth) ** 2
    # Volumes are not negative, so a negative forecast that makes the total <= 0 counts as infinitely wrong.
    return torch.where(total > 0, (squared / total).sqrt(), torch.where(squared > 0, torch.inf, 0.0))


class Scores:
    """Running sums over windows, in float64 on the device of the forecasts. Add batches; read summaries."""

    def __init__(self, *, horizon: int, num_nodes: int, step_s: int, quantity: str) -> None:
        self.horizon = horizon
        self.num_nodes = num_nodes
        steps = HOUR_S // step_s if quantity == "count" and HOUR_S % step_s == 0 else 0
        self.hour_steps = steps if steps <= horizon else 0  # 0: no hourly sums
        self._cells: Tensor | None = None  # [5,H,N] count, |e|, e^2, sMAPE, |y|
        self._hours: Tensor | None = None  # [2,N] hourly sums, those with GEH < 5
        self._volumes: Tensor | None = None  # [C,3,N] hourly sums of each size, those with GEH < 5, sums of GEH

    @classmethod
    def from_sums(cls, cells: Sums, hours: Sums, *, step_s: int, quantity: str) -> Scores:
        """Restore scores from their `cell_sums` and `hour_sums`."""
        scores = cls(horizon=cells.shape[1], num_nodes=cells.shape[2], step_s=step_s, quantity=quantity)
        scores._cells, scores._hours = (torch.from_numpy(np.array(sums, np.float64)) for sums in (cells, hours))
        return scores

    def add(self, forecast: Tensor, target: Tensor, target_observed: Tensor) -> None:
        """Add forecasts [B,H,N]. Values where `target_observed` is False are ignored, even NaN."""
        shape = (len(target), self.horizon, self.num_nodes)
        if forecast.shape != shape or target.shape != shape or target_observed.shape != shape:
            raise SettingsError(
                f"forecast {tuple(forecast.shape)}, target {tuple(target.shape)} and target_observed "
                f"{tuple(target_observed.shape)} must all be {shape}"
            )
        p = torch.where(target_observed, forecast.double(), 0.0)
        y = torch.where(target_observed, target.double(), 0.0)
        error = (p - y).abs()
        size = p.abs() + y.abs()
        smape = torch.where(size == 0, 0.0, 200 * error / size.clamp(min=torch.finfo(torch.float64).tiny))
        sums = torch.stack([x.sum(0) for x in (target_observed.double(), error, error * error, smape, y.abs())])
        self._cells = sums if self._cells is None else self._cells + sums
        if self.hour_steps:
            used = self.horizon - self.horizon % self.hour_steps
            by_hour = (len(target), -1, self.hour_steps, self.num_nodes)  # drops steps after the last whole hour
            p, y, observed = (x[:, :used].reshape(by_hour) for x in (p, y, target_observed))
            whole = observed.all(2)
            off = geh(p.sum(2), y.sum(2))
            good = whole & (off < GOOD_GEH)
            size = torch.bucketize(y.sum(2), torch.tensor(VOLUME_EDGES, dtype=y.dtype, device=y.device), right=True)
            of_class = [whole & (size == k) for k in range(len(VOLUMES))]
            sums_of = [
                torch.stack([x.double().sum((0, 1)) for x in (mask, mask & good, torch.where(mask, off, 0.0))])
                for mask in of_class
            ]
            volumes = torch.stack(sums_of)
            self._volumes = volumes if self._volumes is None else self._volumes + volumes
            hours = torch.stack([x.double().sum((0, 1)) for x in (whole, good)])
            self._hours = hours if self._hours is None else self._hours + hours

    @property
    def cell_sums(self) -> Sums:
        """[5,H,N] number of cells; sums of |e|, e^2, sMAPE and |y|."""
        if self._cells is None:
            return np.zeros((5, self.horizon, self.num_nodes))
        return np.asarray(self._cells.cpu().numpy())

    @property
    def hour_sums(self) -> Sums:
        """[2,N] number of hourly sums, and of those with GEH < 5."""
        return np.zeros((2, self.num_nodes)) if self._hours is None else np.asarray(self._hours.cpu().numpy())

    @property
    def volume_sums(self) -> Sums:
        """[C,3,N] of each of VOLUMES: number of hourly sums, of those with GEH < 5, and the sum of GEH."""
        if self._volumes is None:
            return np.zeros((len(VOLUMES), 3, self.num_nodes))
        return np.asarray(self._volumes.cpu().numpy())

    def summary(self, nodes: NDArray[np.bool_], *, seed: int = 0) -> Summary | None:
        """All steps ahead, pooled over these nodes [N]; None if they have no cells."""
        return _summary(self.cell_sums.sum(1), self.hour_sums if self.hour_steps else None, nodes, seed)

    def by_step(self, nodes: NDArray[np.bool_], *, seed: int = 0) -> tuple[Summary | None, ...]:
        """A summary for each step ahead. Hourly sums do not belong to a step, so geh_share is None."""
        cells = self.cell_sums
        return tuple(_summary(cells[:, step], None, nodes, seed) for step in range(self.horizon))

    def by_group(self, group_of: NDArray[np.int64], names: Sequence[str], *, seed: int = 0) -> dict[str, Summary]:
        """A summary for each group with cells; `group_of` [N] is an index into `names`, or -1."""
        summaries = {name: self.summary(group_of == group, seed=seed) for group, name in enumerate(names)}
        return {name: summary for name, summary in summaries.items() if summary is not None}

    def mae_draws(self, nodes: NDArray[np.bool_], *, seed: int = 0) -> tuple[float, Sums]:
        """The pooled MAE and its bootstrap draws. With the same seed and truth, all forecasters draw the same nodes."""
        count, error = self.cell_sums[:2].sum(1)
        count, error = count[nodes & (count > 0)], error[nodes & (count > 0)]
        if len(count) == 0:
            return math.nan, np.full(DRAWS, np.nan)
        weights = bootstrap_weights(len(count), seed=seed)
        return float(error.sum() / count.sum()), (weights @ error) / (weights @ count)


@lru_cache(maxsize=2)
def bootstrap_weights(count: int, *, seed: int) -> Sums:
    """[DRAWS,count] how often each of `count` nodes is drawn when `count` are drawn with replacement.

    NaN for a single node: it would always be drawn and give a zero-width interval.
    """
    if count == 1:
        return np.full((DRAWS, 1), np.nan)
    rng = generator(seed, Draw.BOOTSTRAP)
    drawn = rng.integers(count, size=(DRAWS, count)) + count * np.arange(DRAWS)[:, None]
    weights = np.bincount(drawn.ravel(), minlength=DRAWS * count).reshape(DRAWS, count).astype(np.float64)
    weights.flags.writeable = False  # shared by every caller
    return weights


def interval(value: float, draws: Sums) -> Measure:
    """A value with the middle 95 % of its defined draws."""
    defined = draws[np.isfinite(draws)]
    if len(defined) == 0:
        return Measure(value, math.nan, math.nan)
    low, high = np.quantile(defined, [0.025, 0.975])
    return Measure(value, float(low), float(high))


def _summary(cells: Sums, hours: Sums | None, nodes: NDArray[np.bool_], seed: int) -> Summary | None:
    """`cells` [5,N], `hours` [2,N]."""
    scored = nodes & (cells[0] > 0)
    if not scored.any():
        return None
    sums = cells if hours is None else np.concatenate([cells, hours])
    sums = sums[:, scored]
    drawn = bootstrap_weights(int(scored.sum()), seed=seed) @ sums.T  # [DRAWS,5 or 7]
    table = np.concatenate([sums.sum(1)[None], drawn])  # the value, then its draws

    def ratio(above: int, below: int, scale: float = 1.0) -> Sums:
        bottom = table[:, below]
        defined = bottom > 0
        return np.where(defined, scale * table[:, above] / np.where(defined, bottom, 1), np.nan)

    def measure(column: Sums) -> Measure:
        return interval(float(column[0]), column[1:])

    return Summary(
        mae=measure(ratio(1, 0)),
        rmse=measure(np.sqrt(ratio(2, 0))),
        smape=measure(ratio(3, 0)),
        wape=measure(ratio(1, 4, 100)),
        geh_share=None if hours is None else measure(ratio(6, 5, 100)),
        cells=int(cells[0, scored].sum()),
        nodes=int(scored.sum()),
    )
