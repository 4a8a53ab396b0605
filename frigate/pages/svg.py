"""Drawings as plain data, rendered as SVG by `templates/macros.html.j2`; and round numbers and times for axes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import DAY_S

Ticks = list[tuple[float, str]]  # position and label; "\n" starts a second line


@dataclass
class Drawing:
    """Paths, and texts on top of them. `name` is for screen readers."""

    name: str
    width: float
    height: float
    paths: list[tuple[dict[str, str | None], str]] = field(default_factory=list)  # attributes, tooltip
    texts: list[tuple[str, str, str, str]] = field(default_factory=list)  # CSS class, x, y, text

    def path(self, css: str, d: str, *, width: float | None = None, title: str = "") -> None:
        stroke = None if width is None else f"{width:.2f}"
        self.paths.append(({"class": css, "stroke-width": stroke, "d": d}, title))

    def text(self, css: str, x: float, y: float, text: str) -> None:
        self.texts.append((css, f"{x:.1f}", f"{y:.1f}", text))

    def tick_x(self, x: float, base: float, label: str) -> None:
        """A tick on the x axis at height `base`."""
        self.path("grid", f"M{x:.1f} {base:g}v4")
        for row, line in enumerate(label.split("\n")):
            self.text("mid", x, base + 16 + 13 * row, line)


def axis(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Start, end and tick step of a y axis: round numbers that include 0 and all finite values."""
    known = values[np.isfinite(values)]
    low = min(0.0, float(known.min(initial=0)))
    high = max(0.0, 1.02 * float(known.max(initial=0)))
    if high == low:
        high = low + 1
    step = round_step(high - low, 6)
    return math.floor(low / step) * step, math.ceil(high / step) * step, step


def round_step(span: float, most: int) -> float:
    """The smallest of ..., 0.1, 0.2, 0.5, 1, 2, 5, 10, ... that fits into the span at most `most` times."""
    size = 10.0 ** math.floor(math.log10(max(span, 1e-9) / most))
    return next(step * size for step in (1, 2, 5, 10, 20) if span <= most * step * size)


def time_ticks(first_s: int, last_s: int) -> Ticks:
    """At most eleven round times in a period of any length: hours, days, or starts of months or years."""
    if last_s - first_s <= 6 * DAY_S:
        step = next(h for h in (1, 2, 3, 6, 12, 24) if last_s - first_s <= 6 * 3600 * h) * 3600
        hours = [datetime.fromtimestamp(s, UTC) for s in range(-(-first_s // step) * step, last_s + 1, step)]
        texts = [f"{t:%H:%M}" + f"\n{t:%a %d %b}" * (t.hour == 0 or t == hours[0]) for t in hours]
        return [(t.timestamp(), text) for t, text in zip(hours, texts, strict=True)]
    if last_s - first_s <= 60 * DAY_S:
        days = _calendar(first_s, last_s, "D")
        return [(t.timestamp(), f"{t:%a\n%d %b}") for t in days[:: -(-len(days) // 10)]]
    months = _calendar(first_s, last_s, "M")
    every = next(n for n in (1, 2, 3, 6, 12, 24, 60, 120, 1200, 12000) if len(months) / n <= 10)
    starts = [t for t in months if (t.year * 12 + t.month - 1) % every == 0]
    return [(t.timestamp(), f"{t:%b %Y}" if every < 12 else f"{t:%Y}") for t in starts]


def _calendar(first_s: int, last_s: int, unit: str) -> list[datetime]:
    """The starts of days (D) or months (M) in a period."""
    first, last = (np.datetime64(s, "s").astype(f"datetime64[{unit}]") for s in (first_s - 1, last_s))
    return [
        datetime.fromtimestamp(int(s), UTC) for s in np.arange(first + 1, last + 1).astype("datetime64[s]").astype(int)
    ]
