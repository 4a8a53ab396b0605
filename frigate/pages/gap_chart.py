"""The gap chart of the check page: when each sensor reported. Its size is bounded for any city."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import utc_iso
from frigate.check.city import CheckReport
from frigate.city.stream import RoadNetworkStream
from frigate.pages.panels import Block
from frigate.text import duration, percent

MAX_ROWS = 160
MAX_COLUMNS = 320
NAMED = 12  # sensors of a row that are named
SHADES = {"all": 0.995, "most": 2 / 3, "some": 1 / 3, "few": 1e-9}  # share observed, at least


def gap_chart(stream: RoadNetworkStream, report: CheckReport) -> Block:
    """When each sensor reported.

    A row is one sensor or, in a large city, several; a column is an interval of time. A cell is a digit: its shade, or
    one more than the last shade where there is no reading.
    """
    rows = [group.tolist() for group in np.array_split(np.arange(report.sensors), min(MAX_ROWS, report.sensors))]
    bounds = np.linspace(0, stream.num_snapshots, min(MAX_COLUMNS, stream.num_snapshots) + 1).astype(int)
    shades = (_shares(stream, report, rows, bounds)[:, :, None] < np.array(list(SHADES.values()))).sum(axis=2)
    one_each = len(rows) == report.sensors
    return {
        "kind": "gaps",
        "start": utc_iso(int(stream.times_s[0])),
        "end": utc_iso(int(stream.times_s[-1]) + stream.step_s),
        "shades": [*SHADES, "none"],
        "one_each": one_each,
        "rows": [
            {
                "name": str(report.by_sensor[row[0]].node_id),
                "title": _title(report, row),
                "cells": "".join(map(str, cells)),
                "stuck": _stuck(stream, report, row) if one_each else None,
            }
            for row, cells in zip(rows, shades.tolist(), strict=True)
        ],
    }


def what_rows_are(stream: RoadNetworkStream, report: CheckReport) -> str:
    """What a row and a column of the chart are."""
    each = -(-report.sensors // min(MAX_ROWS, report.sensors))
    row = "one sensor" if each == 1 else f"up to {each} sensors"
    snapshots = -(-stream.num_snapshots // min(MAX_COLUMNS, stream.num_snapshots))
    return f"Each row is {row}, most gaps first; each column is {duration(snapshots * stream.step_s)}."


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


def _title(report: CheckReport, row: list[int]) -> str:
    first = report.by_sensor[row[0]]
    last = report.by_sensor[row[-1]]
    if len(row) == 1:
        return "; ".join((f"{first.node_id}: {percent(first.missing_share)} missing", *first.faults))
    names = ", ".join(str(report.by_sensor[i].node_id) for i in row[:NAMED]) + ", ..." * (len(row) > NAMED)
    missing = f"{percent(last.missing_share)} to {percent(first.missing_share)}"
    return f"{len(row)} sensors, {missing} missing: {names}"


def _stuck(stream: RoadNetworkStream, report: CheckReport, row: list[int]) -> list[float] | None:
    """Where the longest run of one value begins and ends, as shares of the record."""
    stuck = report.by_sensor[row[0]].stuck_snapshots
    if stuck is None:
        return None
    first, last = stuck
    return [round(first / stream.num_snapshots, 5), round((last + 1) / stream.num_snapshots, 5)]
