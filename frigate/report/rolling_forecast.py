"""Forecasts of the last test day, made one after the other, beside what was observed at a few intersections."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.baselines.naive import Forecaster, naive_baselines
from frigate.data.stream import DAY_S
from frigate.evaluation.evaluate import DEMAND, demand_alone
from frigate.graph.nearest_sensors import hops_to
from frigate.report.charts import Chart
from frigate.report.svg import time_ticks
from frigate.training.run import RunOnCity

Floats = NDArray[np.float64]

BATCH = 4  # windows at once


@dataclass(frozen=True)
class RollingForecast:
    """Forecasts at a few nodes, each shown until the next is made, beside what was observed."""

    nodes: tuple[int, ...]  # [M] rows
    reasons: tuple[str, ...]  # [M] why each was picked
    local_s: NDArray[np.int64]  # [n]
    observed: Floats  # [n,M] NaN where there is no reading
    forecasts: dict[str, Floats]  # [n,M] each: the model's, then the baseline's where there is one


@torch.inference_mode()
def rolling_forecast(run: RunOnCity, *, baseline: str) -> RollingForecast:
    """The last day of the test period (or all of a shorter one), every step forecast once.

    Parameters
    ----------
    run
        A trained run, on its city.
    baseline
        Name of the naive baseline to show beside the model; "" for none.
    """
    stream, split, task = run.city.stream, run.split, run.settings.task
    count = max(1, DAY_S // (stream.step_s * task.horizon))
    last = split.test[1] - 1 - task.horizon
    current = np.arange(last, split.test[0] + task.past - 2, -task.horizon)[:count][::-1].copy()
    rows = (current[:, None] + np.arange(1, task.horizon + 1)).ravel()
    picked = _pick_nodes(run, rows)
    nodes = np.array(list(picked), np.int64)
    device = next(run.model.parameters()).device
    naive = naive_baselines(stream, split)
    forecasters: dict[str, Forecaster] = {"model": run.predictor(device)}
    if baseline in naive:
        forecasters[baseline] = naive[baseline]
    elif baseline == DEMAND:
        forecasters[baseline] = demand_alone
    windows, inputs = run.windows(device), torch.from_numpy(split.seen).to(device)
    made: dict[str, list[Floats]] = {name: [] for name in forecasters}
    for first in range(0, len(current), BATCH):
        batch = windows.batch(current[first : first + BATCH], past=task.past, horizon=task.horizon, inputs=inputs)
        for name, forecaster in forecasters.items():
            values = forecaster(batch).double().cpu().numpy()[:, :, nodes]
            made[name].append(values.reshape(-1, len(nodes)))
    observed = np.where(stream.observed[rows][:, nodes], stream.values[rows][:, nodes], np.nan)
    return RollingForecast(
        nodes=tuple(picked),
        reasons=tuple(picked.values()),
        local_s=stream.times_s[rows] + stream.utc_offset_s[rows],
        observed=observed.astype(np.float64),
        forecasts={name: np.concatenate(parts) for name, parts in made.items()},
    )


def _pick_nodes(run: RunOnCity, rows: NDArray[np.int64]) -> dict[int, str]:
    """A busy, a typical and a quiet node by mean training reading, and the one farthest from a sensor, with why."""
    stream, split = run.city.stream, run.split
    nodes = split.unseen if split.unseen.any() else split.seen
    coverage = stream.observed[rows].mean(axis=0)
    enough = (coverage > 0) & (coverage >= 0.5 * coverage[nodes].max())
    able = np.flatnonzero(nodes & run.city.network.present & enough)
    if not len(able):
        return {}
    train = slice(*split.train)
    seen = stream.observed[train][:, able]
    level = np.where(seen, stream.values[train][:, able], 0).sum(0) / np.maximum(seen.sum(0), 1)
    ranked = able[np.argsort(-level, kind="stable")].tolist()
    hops = hops_to(run.city.network, split.seen)
    ranks = ((0.85, "quiet"), (0.5, "typical"), (0.05, "busy"))
    picked = {ranked[round(share * (len(ranked) - 1))]: reason for share, reason in ranks}
    rest = [row for row in ranked if row not in picked]
    if rest and split.unseen.any():
        picked[max(rest, key=lambda row: int(hops[row]))] = "far from sensors"
    return {row: f"{picked[row]}, {_distance(int(hops[row]))}" for row in ranked if row in picked}


def _distance(hops: int) -> str:
    if hops <= 0:
        return "has a sensor" if hops == 0 else "no road to a sensor"
    return f"{hops} road{'s' * (hops > 1)} from a sensor"


def rolling_charts(rolling: RollingForecast, node_ids: NDArray[np.generic], unit: str) -> list[Chart]:
    """A chart for each node: observed, the model, the baseline."""
    charts = []
    time_s = rolling.local_s
    ticks = time_ticks(int(time_s[0]), int(time_s[-1]))
    for m, (row, reason) in enumerate(zip(rolling.nodes, rolling.reasons, strict=True)):
        lines = {"observed": rolling.observed[:, m]}
        lines |= dict(zip(("s0", "baseline"), (made[:, m] for made in rolling.forecasts.values()), strict=False))
        name = f"Intersection {node_ids[row]}: {reason}"
        chart = Chart(name, unit, (time_s[0], time_s[-1]), list(lines.values()), ticks, height=230)
        for css in sorted(lines, key=lambda css: css == "s0"):  # the model on top
            chart.line(css, time_s, lines[css])
        charts.append(chart)
    return charts
