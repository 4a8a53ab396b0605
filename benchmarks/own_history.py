"""What a sensor's own history forecasts at the sensor itself: the mark that a model must beat there.

    python benchmarks/own_history.py CITY --seen SPLIT.txt [--results FILE]

The last value, the last hour, the same time yesterday and last week (and an hour around it), the usual mean and median
of the hour, and their best blend: weights for each step ahead, fitted in absolute error on the validation period.
Scored like `frigate evaluate`, at the seen nodes over every test window.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import DAY_S, hourly_bins
from frigate.city.folder import open_city
from frigate.city.split import Split, make_split, read_seen_file, windows_in
from frigate.city.stream import RoadNetworkStream
from frigate.config import Task
from frigate.demand.count_profiles import fill_empty_hours, usual_counts, usual_medians
from frigate.training.environment import environment

FIT_WINDOWS = 300
STEPS = 40  # of the fit in absolute error, by least squares weighted again

Table = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("city", type=Path)
    parser.add_argument("--seen", type=Path, required=True)
    parser.add_argument("--results", type=Path, help="write JSON there")
    args = parser.parse_args()
    city = open_city(args.city)
    task = Task()
    seen = read_seen_file(args.seen, city.network)
    split = make_split(city.stream, seen=seen, validation_share=0, past=task.past, horizon=task.horizon)
    history = Histories(city.stream, split)
    fit_at = windows_in(split.validate, past=task.past, horizon=task.horizon)
    fit_at = fit_at[:: max(1, len(fit_at) // FIT_WINDOWS)]
    test_at = windows_in(split.test, past=task.past, horizon=task.horizon)
    error = dict.fromkeys([*history.names, "best blend"], 0.0)
    cells = 0
    for ahead in range(1, task.horizon + 1):
        x, y = history.rows(fit_at, ahead)
        weights = least_absolute(x, y)
        x, y = history.rows(test_at, ahead)
        made = [*x.T, x @ weights]
        for name, forecast in zip(error, made, strict=True):
            error[name] += float(np.abs(np.maximum(forecast, 0) - y).sum(dtype=np.float64))
        cells += len(y)
    found = {name: total / cells for name, total in error.items()}
    print(city.name, args.seen.stem, json.dumps({name: round(mae, 4) for name, mae in found.items()}))
    if args.results is not None:
        words = " ".join(Path(word).name if "/" in word else word for word in sys.argv[1:])
        result = {
            "command": f"python benchmarks/own_history.py {words}",
            **environment("cpu"),
            "city": city.name,
            "split": args.seen.stem,
            "windows": len(test_at),
            "cells": cells,
            "mae": found,
        }
        args.results.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


class Histories:
    """What the past of each sensor says of a snapshot: S snapshots, V sensors."""

    names = (
        "last value",
        "last hour",
        "yesterday",
        "hour around yesterday",
        "last week",
        "hour around last week",
        "usual mean",
        "usual median",
    )

    def __init__(self, stream: RoadNetworkStream, split: Split) -> None:
        rows = np.flatnonzero(split.seen)
        self.values = stream.values[:, rows]
        self.observed = stream.observed[:, rows]
        self.day = DAY_S // stream.step_s
        self.hour = max(1, 3600 // stream.step_s)
        bins = hourly_bins(stream.wall_clock)
        self.mean = fill_empty_hours(usual_counts(stream, split.seen, split.train))[bins][:, rows].astype(np.float32)
        median = usual_medians(stream, split.seen, split.train)[bins][:, rows]
        self.median = np.where(np.isnan(median), self.mean, median)

    def rows(self, current: NDArray[np.int64], ahead: int) -> tuple[Table, Table]:
        """[rows, histories] and what was then read, of all sensors with a reading."""
        at = current + ahead
        known = self.observed[at] & np.isfinite(self.mean[at])
        return self.at(current, ahead)[known], self.values[at][known]

    def at(self, current: NDArray[np.int64], ahead: int) -> Table:
        """[windows, sensors, histories]"""
        at = current + ahead
        usual = self.mean[at]
        histories = [
            self._at(current, usual, 1),
            self._at(current, usual, self.hour),
            self._at(at - self.day, usual, 1),
            self._at(at - self.day + self.hour // 2, usual, self.hour),
            self._at(at - 7 * self.day, usual, 1),
            self._at(at - 7 * self.day + self.hour // 2, usual, self.hour),
            usual,
            self.median[at],
        ]
        return np.stack(histories, axis=-1)

    def _at(self, last: NDArray[np.int64], otherwise: Table, count: int) -> Table:
        """The mean of the `count` snapshots up to the last one; where none was read, `otherwise`."""
        some = last[:, None] - np.arange(count)
        there = (some >= 0)[..., None] & self.observed[some]
        total = np.where(there, self.values[some], 0).sum(1)
        return np.where(there.any(1), total / np.maximum(there.sum(1), 1), otherwise).astype(np.float32)


def least_absolute(x: Table, y: Table) -> Table:
    """The weights of the least absolute error; histories that are the same, as in hourly steps, share theirs."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    for _ in range(STEPS):
        scale = 1 / np.maximum(np.abs(y - x @ weights), 1e-2)
        square = (x * scale[:, None]).T @ x
        ridge = 1e-9 * np.trace(square) * np.eye(x.shape[1])
        weights = np.linalg.solve(square + ridge, (x * scale[:, None]).T @ y)
    return weights.astype(np.float32)


if __name__ == "__main__":
    main()
