"""Charts with axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from frigate.pages.svg import Drawing, Ticks, axis


class Chart(Drawing):
    """A drawing with linear axes."""

    left = 46.0
    right = 12.0
    top = 28.0
    bottom = 34.0

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
