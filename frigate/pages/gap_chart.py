"""The gap chart of the check page: when each sensor reported. Its size is bounded for any city."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from frigate.check.city import CheckReport
from frigate.city.stream import RoadNetworkStream
from frigate.pages.svg import Drawing, time_ticks
from frigate.text import percent

MAX_ROWS = 160
MAX_COLUMNS = 320
LABELLED_ROWS = 40
LEFT = 110.0
RIGHT = 8.0
TOP = 6.0
BOTTOM = 36.0
WIDTH = 1100.0
SHADES = {"all": 0.995, "most": 2 / 3, "some": 1 / 3, "few": 1e-9}  # share observed, at least


@dataclass(frozen=True)
class GapChart:
    """A row of the drawing is one sensor or, in a large city, several; a column is an interval of time."""

    drawing: Drawing
    sensors_per_row: int  # at most
    column_s: int  # at most
    shades: tuple[str, ...]
    any_stuck: bool  # whether stuck readings are marked


def gap_chart(stream: RoadNetworkStream, report: CheckReport) -> GapChart | None:
    """When each sensor reported; None if there is no sensor."""
    if not report.by_sensor:
        return None
    rows = [group.tolist() for group in np.array_split(np.arange(report.sensors), min(MAX_ROWS, report.sensors))]
    bounds = np.linspace(0, stream.num_snapshots, min(MAX_COLUMNS, stream.num_snapshots) + 1).astype(int)
    row_h = min(18.0, max(2.5, 480 // len(rows)))
    base = TOP + row_h * len(rows)
    drawing = Drawing("Readings by sensor and time", WIDTH, base + BOTTOM)
    drawing.path("back", f"M{LEFT:g} {TOP:g}H{WIDTH - RIGHT:g}V{base:g}H{LEFT:g}Z")
    x = LEFT + (WIDTH - LEFT - RIGHT) * np.arange(stream.num_snapshots + 1) / stream.num_snapshots  # of a snapshot
    y = TOP + (np.arange(len(rows), dtype=np.float64) + 0.5) * row_h
    _draw_shares(drawing, _shares(stream, report, rows, bounds), x[bounds], y, row_h)
    one_each = len(rows) == report.sensors
    stuck = [(at, sensor.stuck_snapshots) for at, sensor in enumerate(report.by_sensor) if sensor.stuck_snapshots]
    if one_each and stuck:
        d = "".join(f"M{x[first]:.1f} {y[row]:.1f}H{x[last + 1]:.1f}" for row, (first, last) in stuck)
        drawing.path("stuck", d, width=max(1.5, 0.35 * row_h))
    _label_rows(drawing, report, rows, row_h)
    local_s = stream.times_s + stream.utc_offset_s
    start = int(local_s[0])
    end = int(local_s[-1]) + stream.step_s
    for time_s, label in time_ticks(start, int(local_s[-1])):
        drawing.tick_x(LEFT + (WIDTH - LEFT - RIGHT) * (time_s - start) / (end - start), base, label)
    column_s = int(np.diff(bounds).max()) * stream.step_s
    return GapChart(drawing, len(rows[0]), column_s, tuple(SHADES), one_each and bool(stuck))


def _shares(
    stream: RoadNetworkStream, report: CheckReport, rows: list[list[int]], bounds: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[rows,columns] share of readings present."""
    nodes = stream.network.rows_of(sensor.node_id for sensor in report.by_sensor)
    starts = np.array([row[0] for row in rows])
    sizes = np.array([len(row) for row in rows])
    columns = [
        np.add.reduceat(stream.observed[a:b][:, nodes].mean(axis=0), starts) / sizes
        for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    return np.stack(columns, axis=1)


def _draw_shares(
    drawing: Drawing, shares: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64], row_h: float
) -> None:
    """One path per shade; neighbouring cells of a shade are one stroke."""
    shade = (shares[:, :, None] < np.array(list(SHADES.values()))).sum(axis=2)  # the last, len(SHADES): no reading
    strokes: list[list[str]] = [[] for _ in (*SHADES, "none")]
    for row, line in enumerate(shade.tolist()):
        for k, cells in groupby(range(len(line)), key=line.__getitem__):
            first, *more = cells
            strokes[k].append(f"M{x[first]:.1f} {y[row]:.1f}H{x[first + len(more) + 1]:.1f}")
    width = row_h - 1 if row_h >= 8 else row_h + 0.5  # overlap, so that no seams show
    for word, d in zip(SHADES, strokes, strict=False):
        if d:
            drawing.path(f"cell {word}", "".join(d), width=width)


def _label_rows(drawing: Drawing, report: CheckReport, rows: list[list[int]], row_h: float) -> None:
    """Draw the sensors' names and tooltips."""
    for at, row in enumerate(rows):
        first = report.by_sensor[row[0]]
        last = report.by_sensor[row[-1]]
        name = str(first.node_id)
        y = TOP + at * row_h
        title = "; ".join((f"{name}: {percent(first.missing_share)} missing", *first.faults))
        if len(row) > 1:
            names = ", ".join(str(report.by_sensor[i].node_id) for i in row[:12]) + ", ..." * (len(row) > 12)
            missing = f"{percent(last.missing_share)} to {percent(first.missing_share)}"
            title = f"{len(row)} sensors, {missing} missing: {names}"
        drawing.path("row", f"M0 {y:g}h{WIDTH:g}v{row_h:g}h{-WIDTH:g}Z", title=title)
        if len(rows) <= LABELLED_ROWS:
            short = name if len(name) <= 15 else name[:14] + "…"
            drawing.text("end", LEFT - 6, y + row_h / 2 + 4, short)
    if len(rows) > LABELLED_ROWS:
        drawing.text("end", LEFT - 6, TOP + 10, "most missing")
        drawing.text("end", LEFT - 6, TOP + len(rows) * row_h - 2, "least missing")
