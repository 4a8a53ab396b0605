"""A day of a report: forecasts made one after the other, against truth, at a few intersections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.baselines.naive import Forecaster, naive_baselines
from frigate.data.stream import DAY_S
from frigate.graph.positions import hops_to
from frigate.report.charts import Chart, axis_bottom, axis_top, clock_ticks
from frigate.report.words import span
from frigate.training.run import RunOnCity

Floats = NDArray[np.float64]

DAY_BATCH = 4  # windows at once


@dataclass(frozen=True)
class Day:
    """Forecasts made one after the other, each as far as the next, against truth, at a few nodes."""

    nodes: tuple[int, ...]  # [M] rows
    words: tuple[str, ...]  # [M] why each was picked
    local_s: NDArray[np.int64]  # [n]
    truth: Floats  # [n,M] NaN where not observed
    model: Floats  # [n,M]
    baseline: Floats  # [n,M]; [n,0] where there is none
    baseline_name: str


def rolling_day(run: RunOnCity, *, baseline: str) -> Day:
    """The last day of the test period (less where the period is shorter), every step forecast once."""
    stream, split, task = run.city.stream, run.split, run.settings.task
    count = max(1, DAY_S // (stream.step_s * task.horizon))
    last = split.test[1] - 1 - task.horizon
    current = np.arange(last, split.test[0] + task.past - 2, -task.horizon)[:count][::-1].copy()
    rows = (current[:, None] + np.arange(1, task.horizon + 1)).ravel()
    picked = _pick_nodes(run, rows)
    nodes = np.array([row for row, _ in picked], np.int64)
    naive = naive_baselines(stream, split)
    device = next(run.model.parameters()).device
    forecasters: list[Forecaster] = [run.predictor(device)] + ([naive[baseline]] if baseline in naive else [])
    made = _forecast_rows(run, forecasters, current, nodes)
    truth = np.where(stream.observed[rows][:, nodes], stream.values[rows][:, nodes], np.nan)
    return Day(
        nodes=tuple(nodes.tolist()),
        words=tuple(words for _, words in picked),
        local_s=stream.times_s[rows] + stream.utc_offset_s[rows],
        truth=truth.astype(np.float64),
        model=made[0],
        baseline=made[1] if len(made) > 1 else np.empty((len(rows), 0)),
        baseline_name=baseline,
    )


def _pick_nodes(run: RunOnCity, rows: NDArray[np.int64]) -> list[tuple[int, str]]:
    """A busy, a middling and a quiet node, by rank of the mean training reading, and the one farthest from a sensor."""
    stream, split = run.city.stream, run.split
    nodes = split.unseen if split.unseen.any() else split.seen
    truth = stream.observed[rows].mean(axis=0)
    able = np.flatnonzero(nodes & run.city.network.present & (truth > 0) & (truth >= 0.5 * truth[nodes].max()))
    if not len(able):
        return []
    part = slice(*split.train)
    seen = stream.observed[part][:, able]
    level = np.where(seen, stream.values[part][:, able], 0).sum(0) / np.maximum(seen.sum(0), 1)
    ranked = able[np.argsort(level, kind="stable")]
    hops = hops_to(run.city.network, split.seen)
    ranks = ((0.95, "busy"), (0.5, "middling"), (0.15, "quiet"))
    picked = {int(ranked[round(share * (len(ranked) - 1))]): words for share, words in reversed(ranks)}
    rest = [row for row in ranked[::-1].tolist() if row not in picked]
    if rest and split.unseen.any():
        picked[max(rest, key=lambda row: int(hops[row]))] = "far from sensors"
    order = sorted(picked.items(), key=lambda item: -int(np.flatnonzero(ranked == item[0])[0]))
    return [(row, f"{words}, {_roads_away(int(hops[row]))}") for row, words in order]


def _roads_away(hops: int) -> str:
    if hops <= 0:
        return "a sensor itself" if hops == 0 else "no road to a sensor"
    return f"{hops} road{'s' * (hops > 1)} from a sensor"


@torch.inference_mode()
def _forecast_rows(
    run: RunOnCity, forecasters: Sequence[Forecaster], current: NDArray[np.int64], nodes: NDArray[np.int64]
) -> list[Floats]:
    """[n,M] from each forecaster: its forecasts of the windows one after the other, at these nodes."""
    device = next(run.model.parameters()).device
    windows = run.windows(device)
    inputs = torch.from_numpy(run.split.seen).to(device)
    task = run.settings.task
    parts: list[list[Floats]] = [[] for _ in forecasters]
    for first in range(0, len(current), DAY_BATCH):
        batch = windows.batch(current[first : first + DAY_BATCH], past=task.past, horizon=task.horizon, inputs=inputs)
        for forecaster, made in zip(forecasters, parts, strict=True):
            values = forecaster(batch)[:, :, torch.from_numpy(nodes).to(device)]
            made.append(values.double().cpu().numpy().reshape(-1, len(nodes)))
    least = 0.0 if run.city.stream.quantity == "count" else -np.inf
    return [np.maximum(np.concatenate(made), least) for made in parts]


def day_title(run: RunOnCity) -> str:
    return "Forecast against truth" if run.split.unseen.any() else "Forecast against truth, at sensors"


def day_panels(day: Day, run: RunOnCity, unit: str) -> str:
    """A chart for each node: truth, the model, the best baseline."""
    if not day.nodes:
        return "<p>No intersection has enough readings in the test period to show.</p>"
    stream, task = run.city.stream, run.settings.task
    ahead = span(task.horizon * stream.step_s)
    without = " without any reading of the intersection itself" if run.split.unseen.any() else ""
    lines = [("truth", "truth"), ("s0", "the model")] + (
        [("baseline", day.baseline_name)] if day.baseline.shape[1] else []
    )
    panels = []
    for m, (row, words) in enumerate(zip(day.nodes, day.words, strict=True)):
        series = [day.truth[:, m], day.model[:, m]] + ([day.baseline[:, m]] if day.baseline.shape[1] else [])
        chart = Chart.of(day.local_s[[0, -1]], axis_top(series), height=230, low=axis_bottom(series, stream.quantity))
        inner = chart.frame(clock_ticks(day.local_s), label=unit)
        order = [0, 2, 1] if len(series) > 2 else [0, 1]  # the model on top
        inner += "".join(chart.line(day.local_s, series[k], lines[k][0]) for k in order)
        name = escape(f"Intersection {stream.node_ids[row]}: {words}")
        panels.append(f"<figure><figcaption>{name}</figcaption>{chart.svg(inner, name)}</figure>")
    key = "".join(f'<span><i class="stroke {css}"></i>{escape(words)}</span>' for css, words in lines)
    text = (
        f"A new forecast was made every {ahead.removeprefix('1 ')}{without}, and is shown until the next. These "
        "intersections were picked by how busy they are and how far from a sensor, not by how well they do."
    )
    return f'<p>{text}</p><div class="key">{key}</div><div class="pair">{"".join(panels)}</div>'
