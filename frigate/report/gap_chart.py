"""The gap chart of a checked city: sensors by time, bounded whatever the size of the city."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from frigate.check.city import CheckReport, lasting_words, percent
from frigate.data.stream import DAY_S, RoadNetworkStream
from frigate.report.charts import clock_ticks

MAX_ROWS = 160
MAX_COLUMNS = 320
LABELLED_ROWS = 40
LEFT, RIGHT, TOP, BOTTOM, WIDTH = 110.0, 8.0, 6.0, 36.0, 1100.0
CELLS = {"all": 0.995, "most": 2 / 3, "some": 1 / 3, "few": 1e-9}  # share observed, at least


def gap_chart(stream: RoadNetworkStream, report: CheckReport) -> str:
    """When each sensor was read, in a figure; "" where there is none."""
    if not report.by_sensor:
        return ""
    groups = [g.tolist() for g in np.array_split(np.arange(report.sensors), min(MAX_ROWS, report.sensors))]
    bounds = np.linspace(0, stream.num_snapshots, min(MAX_COLUMNS, stream.num_snapshots) + 1).astype(int)
    shares = _shares(stream, report, groups, bounds)
    high = float(min(18, max(4, 560 // len(groups))))
    height = TOP + BOTTOM + high * len(groups)
    inner = (
        f'<path class="back" d="M{LEFT:g} {TOP:g}H{WIDTH - RIGHT:g}V{height - BOTTOM:g}H{LEFT:g}Z"/>'
        f"{_cells(shares, bounds, stream.num_snapshots, high)}{_stuck(stream, report, groups, high)}"
        f"{_rows(report, groups, high)}{_time_axis(stream, height - BOTTOM)}"
    )
    several = max(len(g) for g in groups)
    text = (
        f"Time runs to the right. Each row is {'one sensor' if several == 1 else f'up to {several} sensors'}, those "
        f"that miss most at the top; each column is {lasting_words(max(np.diff(bounds).tolist()) * stream.step_s)}."
    )
    swatches = "".join(f'<span><i class="cell {word}"></i>{word}</span>' for word in CELLS)
    stuck = '<span><i class="stuck"></i>stuck at one value</span>' if report.stuck and several == 1 else ""
    key = f'<div class="key"><em>readings there:</em>{swatches}<span><i class="blank"></i>none</span>{stuck}</div>'
    svg = f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="Readings by sensor and time">{inner}</svg>'
    return f'<p>{text}</p><figure class="gaps"><div class="wide">{svg}</div>{key}</figure>'


def _shares(
    stream: RoadNetworkStream, report: CheckReport, groups: list[list[int]], bounds: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[rows,columns] share observed of each row of the chart in each stretch of time."""
    nodes = stream.network.rows_of(sensor.node_id for sensor in report.by_sensor)
    starts = np.array([group[0] for group in groups])
    sizes = np.array([len(group) for group in groups])
    columns = [
        np.add.reduceat(stream.observed[a:b][:, nodes].mean(axis=0), starts) / sizes
        for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    return np.stack(columns, axis=1)


def _x(snapshot: float, snapshots: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * snapshot / snapshots


def _cells(shares: NDArray[np.float64], bounds: NDArray[np.int64], snapshots: int, high: float) -> str:
    """As few paths as there are shades, and cells of one shade in one stroke."""
    limits = np.array(list(CELLS.values()))
    shade = (shares[:, :, None] < limits).sum(axis=2)  # the last, len(CELLS), is none and is not drawn
    strokes: list[list[str]] = [[] for _ in CELLS]
    for row, line in enumerate(shade.tolist()):
        y = TOP + (row + 0.5) * high
        for k, a, b in _runs(line):
            if k < len(CELLS):
                x0, x1 = _x(bounds[a], snapshots), _x(bounds[b], snapshots)
                strokes[k].append(f"M{x0:.1f} {y:.1f}H{x1:.1f}")
    wide = high - 1 if high >= 8 else high + 0.5  # so that no seams show
    return "".join(
        f'<path class="cell {word}" stroke-width="{wide:g}" d="{"".join(d)}"/>'
        for word, d in zip(CELLS, strokes, strict=True)
        if d
    )


def _runs(line: list[int]) -> Iterator[tuple[int, int, int]]:
    """Each value with the place where its run begins and the one where it ends."""
    at = 0
    for value, run in groupby(line):
        length = sum(1 for _ in run)
        yield value, at, at + length
        at += length


def _stuck(stream: RoadNetworkStream, report: CheckReport, groups: list[list[int]], high: float) -> str:
    if len(groups) < report.sensors:
        return ""
    d = []
    for row, sensor in enumerate(report.by_sensor):
        if sensor.stuck_snapshots is not None:
            first, last = sensor.stuck_snapshots
            x0, x1 = _x(first, stream.num_snapshots), _x(last + 1, stream.num_snapshots)
            d.append(f"M{x0:.1f} {TOP + (row + 0.5) * high:.1f}H{x1:.1f}")
    return f'<path class="stuck" stroke-width="{max(1.5, 0.35 * high):.1f}" d="{"".join(d)}"/>' if d else ""


def _rows(report: CheckReport, groups: list[list[int]], high: float) -> str:
    """The sensors' names, and for each row what the pointer tells."""
    parts = []
    for row, group in enumerate(groups):
        first, last = report.by_sensor[group[0]], report.by_sensor[group[-1]]
        name = str(first.node_id)
        told = f"{name}: {percent(first.missing_share)} missing" + "".join(f"; {fault}" for fault in first.faults)
        if len(group) > 1:
            told = (
                f"{len(group)} sensors, {percent(last.missing_share)} to {percent(first.missing_share)} missing: "
                + (", ".join(str(report.by_sensor[i].node_id) for i in group[:12]) + ", ..." * (len(group) > 12))
            )
        y = TOP + row * high
        title = f"<title>{escape(told)}</title>"
        parts.append(f'<rect class="row" x="0" y="{y:g}" width="{WIDTH:g}" height="{high:g}">{title}</rect>')
        if len(groups) <= LABELLED_ROWS and len(group) == 1:
            short = name if len(name) <= 15 else name[:14] + "…"
            parts.append(f'<text class="end" x="{LEFT - 6:g}" y="{y + high / 2 + 4:g}">{escape(short)}</text>')
    if len(groups) > LABELLED_ROWS:
        base = TOP + len(groups) * high
        for text, y in (("most missing", TOP + 10), ("least missing", base - 2)):
            parts.append(f'<text class="end" x="{LEFT - 6:g}" y="{y:g}">{text}</text>')
    return "".join(parts)


def _time_axis(stream: RoadNetworkStream, base: float) -> str:
    local_s = stream.times_s + stream.utc_offset_s
    start, end = int(local_s[0]), int(local_s[-1]) + stream.step_s
    parts = []
    for time_s, text in _time_ticks(local_s):
        x = LEFT + (WIDTH - LEFT - RIGHT) * (time_s - start) / (end - start)
        parts.append(f'<path class="grid" d="M{x:.1f} {base:g}v4"/>')
        for row, words in enumerate(text.split("\n")):
            parts.append(f'<text class="mid" x="{x:.1f}" y="{base + 15 + 13 * row:g}">{escape(words)}</text>')
    return "".join(parts)


def _time_ticks(local_s: NDArray[np.int64]) -> list[tuple[float, str]]:
    """Round times for a period of any length: hours, days, or the beginnings of months and years."""
    first, last = int(local_s[0]), int(local_s[-1])
    if last - first <= 6 * DAY_S:
        return clock_ticks(local_s)
    if last - first <= 60 * DAY_S:
        days = range(-(-first // DAY_S), last // DAY_S + 1)
        shown = days[:: -(-len(days) // 10)]
        return [(float(day * DAY_S), f"{datetime.fromtimestamp(day * DAY_S, UTC):%a\n%d %b}") for day in shown]
    begin, end = (datetime.fromtimestamp(time_s, UTC) for time_s in (first, last))
    months = range(begin.year * 12 + begin.month, end.year * 12 + end.month)  # from 0, the first's successor first
    every = next(n for n in (1, 2, 3, 6, 12, 24, 60, 120, 1200, 12000) if len(months) / n <= 10)
    starts = [datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC) for month in months if month % every == 0]
    return [(start.timestamp(), f"{start:%b %Y}" if every < 12 else f"{start:%Y}") for start in starts]
