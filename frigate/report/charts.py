"""Charts with axes, and those of a forecaster's error by time ahead and by distance from a sensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from frigate.evaluation.evaluate import HOPS
from frigate.evaluation.metrics import Measure
from frigate.evaluation.results import Evaluation
from frigate.report.svg import Drawing, Ticks, axis

MARKERS = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",  # a circle, a square, a diamond, two triangles, a cross, a bar
    "m-3.5 -3.5h7v7h-7Z",
    "m0 -5l5 5l-5 5l-5 -5Z",
    "m0 -5l4.5 8h-9Z",
    "m0 5l4.5 -8h-9Z",
    "m-4.5 -1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3Z",
    "m-4.5 -1.5h9v3h-9Z",
)


class Chart(Drawing):
    """A drawing with linear axes."""

    left, right, top, bottom = 46.0, 12.0, 28.0, 34.0

    def __init__(
        self,
        name: str,
        unit: str,
        x_range: tuple[float, float],
        y_values: Sequence[NDArray[np.float64]],
        x_ticks: Ticks,
        *,
        height: float = 280.0,
        x_label: str = "",
    ) -> None:
        """Axes over `x_range` and all of `y_values`; the y axis is labelled with `unit`."""
        super().__init__(name, 540.0, height)
        self.x0, self.x1 = x_range if x_range[1] > x_range[0] else (x_range[0], x_range[0] + 1)
        self.low, self.high, step = axis(np.concatenate(y_values))
        self.text("unit", 4, 12, unit)
        for k in range(round(self.low / step), round(self.high / step) + 1):
            y = self.y(k * step)
            self.path("grid", f"M{self.left:g} {y:.1f}H{self.width - self.right:g}")
            self.text("end", self.left - 6, y + 4, f"{k * step:g}")
        for x, label in x_ticks:
            self.tick_x(self.x(x), height - self.bottom, label)
        if x_label:
            self.text("mid", self.width / 2, height - 2, x_label)

    def x(self, value: float) -> float:
        return self.left + (value - self.x0) / (self.x1 - self.x0) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)

    def line(self, css: str, x: NDArray[np.generic], values: NDArray[np.float64]) -> None:
        """A line with a break where a value is missing."""
        d, pen = [], False
        for a, b in zip(x.tolist(), values.tolist(), strict=True):
            if math.isfinite(b):
                d.append(f"{'L' if pen else 'M'}{self.x(a):.1f} {self.y(b):.1f}")
            pen = math.isfinite(b)
        self.path(f"line {css}", "".join(d))

    def band(self, css: str, points: Sequence[tuple[float, float, float]]) -> None:
        """The area between low and high: (x, low, high) from left to right."""
        edge = [(x, high) for x, _, high in points] + [(x, low) for x, low, _ in reversed(points)]
        self.path(f"band {css}", f"M{'L'.join(f'{self.x(x):.1f} {self.y(y):.1f}' for x, y in edge)}Z")

    def marker(self, series: int, x: float, y: float) -> None:
        self.path(f"mark s{series % 7}", f"M{self.x(x):.1f} {self.y(y):.1f}{MARKERS[series % 7]}")


def error_by_step(evaluation: Evaluation, unit: str) -> Chart:
    """MAE of every forecaster by time ahead, with the model's 95 % interval as a band."""
    ahead = np.arange(1, evaluation.horizon + 1) * evaluation.step_s
    size, word = (3600.0, "hours") if ahead[-1] > 4 * 3600 else (60.0, "minutes")
    x = ahead / size
    lines = [np.array([math.nan if s is None else s.mae.value for s in row.by_step]) for row in evaluation.rows]
    every = max(1, math.ceil(len(x) / 8))
    ticks = [(a, f"{a:g}") for k, a in enumerate(x.tolist(), start=1) if k % every == 0 or len(x) == 1]
    chart = Chart("MAE by time ahead", f"MAE, {unit}", (x[0], x[-1]), lines, ticks, x_label=f"{word} ahead")
    model = [(a, s.mae) for a, s in zip(x.tolist(), evaluation.model.by_step, strict=True) if s is not None]
    chart.band("s0", [(a, mae.low, mae.high) for a, mae in model if math.isfinite(mae.low)])
    for k, line in reversed(list(enumerate(lines))):  # the model last, on top
        chart.line(f"s{k % 7}", x, line)
        for a, value in zip(x.tolist(), line.tolist(), strict=True):
            if math.isfinite(value):
                chart.marker(k, a, value)
    return chart


def error_by_hops(evaluation: Evaluation, unit: str) -> Chart | None:
    """MAE of every forecaster by roads to the nearest sensor, with 95 % intervals; None: only sensors were scored."""
    groups = [name for name in HOPS if any(name in row.by_hops for row in evaluation.rows)]
    if not groups:
        return None
    table = [[row.by_hops.get(name) for name in groups] for row in evaluation.rows]
    tops = np.array([_top(summary.mae) for line in table for summary in line if summary is not None])
    counts = [next((s.nodes for s in column if s is not None), 0) for column in zip(*table, strict=True)]
    ticks = [(float(g), f"{name}\n({counts[g]} node{'s' * (counts[g] != 1)})") for g, name in enumerate(groups)]
    title = "MAE by roads to the nearest sensor"
    chart = Chart(title, f"MAE, {unit}", (-0.5, len(groups) - 0.5), [tops], ticks)
    for k, line in enumerate(table):
        for g, summary in enumerate(line):
            if summary is None:
                continue
            x, mae = g + (k - (len(table) - 1) / 2) * 0.7 / len(table), summary.mae
            if math.isfinite(mae.low) and math.isfinite(mae.high):
                chart.path(f"line s{k % 7}", f"M{chart.x(x):.1f} {chart.y(mae.low):.1f}V{chart.y(mae.high):.1f}")
            chart.marker(k, x, mae.value)
    return chart


def _top(measure: Measure) -> float:
    return measure.high if math.isfinite(measure.high) else measure.value
