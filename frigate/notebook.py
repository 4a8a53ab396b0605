"""How objects show themselves in a notebook: small HTML without scripts. All text is escaped: names are foreign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from frigate.text import printable

WIDTH_PX = 320
MAX_HEIGHT_PX = 320
MAX_SHAPES = 4000  # roads, or sensors, of a sketch; with more it is drawn coarser
STYLE = "font-size:0.9em;line-height:1.4"

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def card(title: str, facts: Mapping[str, object], *more: str) -> str:
    """A title and a list of facts, followed by tables or sketches."""
    listed = "".join(f"<tr><th>{_text(name)}</th><td>{_text(fact)}</td></tr>" for name, fact in facts.items())
    return f'<div style="{STYLE}"><b>{_text(title)}</b><table>{listed}</table>{"".join(more)}</div>'


def table(rows: Sequence[Mapping[str, str]], caption: str = "") -> str:
    """A table whose first row says the columns; "" without rows."""
    if not rows:
        return ""
    head = "".join(f"<th>{_text(name)}</th>" for name in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row.values())}</tr>" for row in rows)
    return f"<table><caption>{_text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def sketch(lon: Floats, lat: Floats, senders: Ints, receivers: Ints, marked: NDArray[np.bool_]) -> str:
    """The roads of a network in SVG, straight from end to end and north up, with a dot at each marked node."""
    if not len(senders):
        return ""
    x = lon * np.cos(np.radians(lat.mean()))
    y = -lat
    x = x - x.min()
    y = y - y.min()
    scale = min(WIDTH_PX / max(x.max(), 1e-9), MAX_HEIGHT_PX / max(y.max(), 1e-9))
    points = np.stack([x, y], axis=1) * scale
    ends = np.sort(np.stack([senders, receivers], axis=1), axis=1)
    roads, grid = _drawn(points, ends)
    sensors, coarse = _drawn(points, np.flatnonzero(marked)[:, None])
    lines = "".join(f"M{a:g} {b:g}L{c:g} {d:g}" for a, b, c, d in (roads * grid).tolist())
    dots = "".join(f"M{a:g} {b:g}h0" for a, b in (sensors * coarse).tolist())
    width, height = points.max(axis=0) + 8
    return (
        f'<svg width="{width:.0f}" height="{height:.0f}" viewBox="-4 -4 {width:.0f} {height:.0f}" fill="none" '
        'stroke-linecap="round" role="img" aria-label="Map of the roads; a dot is a sensor">'
        f'<path d="{lines}" stroke="#8a8f98"/><path d="{dots}" stroke="#00897b" stroke-width="5"/></svg>'
    )


def _drawn(points: Floats, shapes: Ints) -> tuple[Floats, float]:
    """Distinct shapes [K,2n] on a grid, coarse enough for there to be few; and the size of a cell in pixels."""
    cell = 0.1
    while True:
        on_grid = np.round(points / cell)[shapes].reshape(len(shapes), -1)
        distinct = np.unique(on_grid, axis=0)
        if len(distinct) <= MAX_SHAPES:
            return distinct, cell
        cell *= 2


def _text(value: object) -> str:
    return escape(printable(str(value)))
