"""The charts of a report: axes, lines, bands and whiskers in SVG, and the error by time ahead and by hops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

import numpy as np
from numpy.typing import NDArray

from frigate.evaluation.evaluate import HOPS
from frigate.evaluation.metrics import Measure
from frigate.evaluation.results import Evaluation
from frigate.report.words import round_number

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Chart:
    """A plot of 540 units with its axes; x and y are mapped linearly. Its parts are SVG text."""

    x0: float
    x1: float
    low: float
    high: float
    height: float

    left = 46.0
    right = 12.0
    top = 28.0
    bottom = 34.0
    width = 540.0

    @classmethod
    def of(cls, x: NDArray[np.generic], high: float, *, height: float = 280, low: float = 0.0) -> Chart:
        x0, x1 = float(x[0]), float(x[-1])
        return cls(x0, x1 if x1 > x0 else x0 + 1, low, high if high > low else low + 1, height)

    def x(self, value: float) -> float:
        return self.left + (value - self.x0) / (self.x1 - self.x0) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)

    def frame(self, ticks: Sequence[tuple[float, str]], *, label: str, below: str = "") -> str:
        parts = [f'<text class="unit" x="4" y="12">{escape(label)}</text>']
        step = _tick_step(self.high - self.low)
        for k in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1):
            y = self.y(k * step)
            parts.append(f'<path class="grid" d="M{self.left:g} {y:.1f}H{self.width - self.right:g}"/>')
            parts.append(f'<text class="end" x="{self.left - 6:g}" y="{y + 4:.1f}">{k * step:g}</text>')
        base = self.height - self.bottom
        for value, text in ticks:
            x = self.x(value)
            parts.append(f'<path class="grid" d="M{x:.1f} {base:g}v4"/>')
            for row, words in enumerate(text.split("\n")):
                parts.append(f'<text class="mid" x="{x:.1f}" y="{base + 16 + 13 * row:g}">{escape(words)}</text>')
        if below:
            parts.append(f'<text class="mid" x="{self.width / 2:g}" y="{self.height - 2:g}">{escape(below)}</text>')
        return "".join(parts)

    def line(self, x: NDArray[np.generic], values: Floats, css: str) -> str:
        """A line that is broken where a value is missing."""
        d, pen = [], False
        for a, b in zip(x.tolist(), values.tolist(), strict=True):
            if math.isfinite(b):
                d.append(f"{'L' if pen else 'M'}{self.x(a):.1f} {self.y(b):.1f}")
            pen = math.isfinite(b)
        return f'<path class="line {css}" d="{"".join(d)}"/>'

    def band(self, x: Sequence[float], low: Sequence[float], high: Sequence[float], css: str) -> str:
        there = [f"{self.x(a):.1f} {self.y(b):.1f}" for a, b in zip(x, high, strict=True)]
        back = [f"{self.x(a):.1f} {self.y(b):.1f}" for a, b in zip(x, low, strict=True)]
        return f'<path class="band {css}" d="M{"L".join(there + back[::-1])}Z"/>'

    def whisker(self, x: float, measure: Measure, css: str, shape: str) -> str:
        at, mid = self.x(x), self.y(measure.value)
        ends = ""
        if math.isfinite(measure.low) and math.isfinite(measure.high):
            ends = f'<path class="line {css}" d="M{at:.1f} {self.y(measure.low):.1f}V{self.y(measure.high):.1f}"/>'
        return f'{ends}<path class="mark {css}" d="M{at:.1f} {mid:.1f}{shape}"/>'

    def svg(self, inner: str, name: str) -> str:
        return f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{name}">{inner}</svg>'


SHAPES = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",  # a circle, a square, a diamond, two triangles, a cross, a bar
    "m-3.5 -3.5h7v7h-7Z",
    "m0 -5l5 5l-5 5l-5 -5Z",
    "m0 -5l4.5 8h-9Z",
    "m0 5l4.5 -8h-9Z",
    "m-4.5 -1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3Z",
    "m-4.5 -1.5h9v3h-9Z",
)


def error_charts(evaluation: Evaluation, unit: str) -> str:
    """Every forecaster's error by time ahead and by distance from a sensor, with one key for both."""
    rows = list(enumerate(evaluation.rows))
    key = "".join(
        f'<span><svg class="chip" viewBox="-7 -7 14 14"><path class="mark s{k % 7}" d="M0 0{SHAPES[k % 7]}"/></svg>'
        f"{escape(row.label)}</span>"
        for k, row in rows
    )
    charts = (
        ("Error by time ahead", _by_step(evaluation, unit)),
        ("Error by roads to the nearest sensor", _by_hops(evaluation, unit)),
    )
    figures = "".join(f"<figure><figcaption>{title}</figcaption>{chart}</figure>" for title, chart in charts)
    text = "Lower is better. The bars, and the band around the model, are 95 % intervals. * is the table's yardstick."
    return f'<p>{text}</p><div class="key">{key}</div><div class="pair">{figures}</div>'


def _by_step(evaluation: Evaluation, unit: str) -> str:
    ahead = np.arange(1, evaluation.horizon + 1) * evaluation.step_s
    size, word = (3600.0, "hours") if ahead[-1] > 4 * 3600 else (60.0, "minutes")
    x = ahead / size
    table = [[Measure(*[math.nan] * 3) if s is None else s.mae for s in row.by_step] for row in evaluation.rows]
    chart = Chart.of(x, axis_top([np.array([m.value for m in line]) for line in table]))
    every = max(1, math.ceil(len(x) / 8))
    ticks = [(float(a), f"{a:g}") for k, a in enumerate(x.tolist(), start=1) if k % every == 0 or len(x) == 1]
    inner = chart.frame(ticks, label=f"MAE, {unit}", below=f"{word} ahead")
    model = [(a, m) for a, m in zip(x.tolist(), table[0], strict=True) if math.isfinite(m.low)]
    inner += (
        chart.band([a for a, _ in model], [m.low for _, m in model], [m.high for _, m in model], "s0") if model else ""
    )
    for k in range(len(table) - 1, -1, -1):
        inner += chart.line(x, np.array([m.value for m in table[k]]), f"s{k % 7}")
        bare = [Measure(m.value, math.nan, math.nan) for m in table[k]]
        marks = [(a, m) for a, m in zip(x.tolist(), bare, strict=True) if math.isfinite(m.value)]
        inner += "".join(chart.whisker(a, m, f"s{k % 7}", SHAPES[k % 7]) for a, m in marks)
    return chart.svg(inner, "MAE by time ahead")


def _by_hops(evaluation: Evaluation, unit: str) -> str:
    groups = [name for name in HOPS if any(name in row.by_hops for row in evaluation.rows)]
    if not groups:
        return "<p>No intersection without a sensor was scored.</p>"
    table = [[row.by_hops.get(name) for name in groups] for row in evaluation.rows]
    highs = [s.mae.high if math.isfinite(s.mae.high) else s.mae.value for line in table for s in line if s is not None]
    chart = Chart.of(np.array([-0.5, len(groups) - 0.5]), axis_top([np.array(highs)]))
    counts = [next((s.nodes for s in column if s is not None), 0) for column in zip(*table, strict=True)]
    ticks = [(float(g), f"{name}\n({counts[g]} node{'s' * (counts[g] != 1)})") for g, name in enumerate(groups)]
    inner = chart.frame(ticks, label=f"MAE, {unit}")
    spread = 0.7 / max(1, len(table))
    for k, line in enumerate(table):
        for g, summary in enumerate(line):
            if summary is not None:
                x = g + (k - (len(table) - 1) / 2) * spread
                inner += chart.whisker(x, summary.mae, f"s{k % 7}", SHAPES[k % 7])
    return chart.svg(inner, "MAE by roads to the nearest sensor")


def axis_top(series: Sequence[Floats]) -> float:
    """A round number just above everything, where a tick will be."""
    finite = [float(np.nanmax(line)) for line in series if np.isfinite(line).any()]
    high = max(finite, default=1.0)
    high += 0.02 * abs(high)
    if high <= 0:
        return float(math.ceil(high))
    top = high
    for _ in range(2):  # rounded up, it may call for other ticks
        step = _tick_step(top)
        top = math.ceil(high / step) * step
    return top


def axis_bottom(series: Sequence[Floats], quantity: str) -> float:
    """Zero, or the least value where a gauge goes below zero."""
    low = min((float(np.nanmin(line)) for line in series if np.isfinite(line).any()), default=0.0)
    return 0.0 if quantity == "count" or low >= 0 else low


def _tick_step(span: float) -> float:
    size = round_number(max(span, 1e-9) / 4)
    return size if span / size <= 6 else 2 * size


def clock_ticks(local_s: NDArray[np.int64]) -> list[tuple[float, str]]:
    """At most seven round times, the day under the first and at midnight."""
    first, last = int(local_s[0]), int(local_s[-1])
    hours = next(h for h in (1, 2, 3, 6, 12, 24, 48, 168, 10**6) if (last - first) / (h * 3600) <= 6)
    ticks: list[tuple[float, str]] = []
    for time_s in range(-(-first // (hours * 3600)) * hours * 3600, last + 1, hours * 3600):
        when = datetime.fromtimestamp(time_s, UTC)  # local seconds, shown as they are
        ticks.append(
            (float(time_s), f"{when:%H:%M}\n{when:%a %d %b}" if when.hour == 0 or not ticks else f"{when:%H:%M}")
        )
    return ticks
