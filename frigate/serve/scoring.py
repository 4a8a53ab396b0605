"""Scores the issued forecasts: each snapshot against the forecasts of it, issued 1 to H steps before.

A node counts if it has a reading in the snapshot and had one when the forecast was issued. The baseline is
persistence: that last reading taken as the forecast. Recent snapshots are scored again at every tick, because readings
may arrive late. At sensors, what was promised when training ended is compared too (`frigate.training.promise`).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import HOUR_S, utc_iso
from frigate.serve.city import ServedCity
from frigate.serve.engine import Engine
from frigate.serve.issued import IssuedForecast, read_issued
from frigate.serve.packing import pack, unpack
from frigate.serve.store import Store
from frigate.training.promise import LEVEL, Drift, Promise, Tally

LOG = logging.getLogger("frigate.serve")
WORST = 10
TALLIED = ("cells", "error", "width", "signed", "inside")  # fields of a Tally, as they are stored
NOTHING = np.zeros(0)

Band = tuple[NDArray[np.floating], NDArray[np.floating]]  # lower and upper ends [H,N]


class Scorer:
    """Scores snapshots and caches the recent forecasts, so that they are not read again at every tick."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._issued: dict[int, IssuedForecast | None] = {}
        self._bands: dict[int, Band] = {}
        self._written: dict[int, bytes] = {}

    def score(self, issued_s: int) -> None:
        """Score the snapshots of the window that ends at a step boundary."""
        engine = self._engine
        city = self._engine.city
        store = self._engine.store
        T = city.past
        H = city.horizon
        times_s, values = engine.window(issued_s, count=T + H)
        at = dict(zip(times_s.tolist(), values, strict=True))
        self._issued = {time_s: made for time_s, made in self._issued.items() if made and time_s in at}
        for time_s in times_s.tolist():
            if time_s not in self._issued:
                self._issued[time_s] = read_issued(store, city, time_s)
        self._bands = {time_s: self._band(time_s, made) for time_s, made in self._issued.items() if made is not None}
        for k in range(H, T + H):
            body = score_snapshot(k, times_s, values, self._issued, self._bands)
            time_s = int(times_s[k])
            if body is not None and self._written.get(time_s) != body:
                store.add_scores(time_s, city.version, body)
                self._written[time_s] = body
        self._written = {time_s: body for time_s, body in self._written.items() if time_s in at}

    def _band(self, time_s: int, made: IssuedForecast) -> Band:
        """The intervals [H,N] of an issued forecast; NaN but at sensors, and everywhere if the run has none."""
        known = self._bands.get(time_s)
        if known is not None:
            return known
        engine = self._engine
        lower, upper = np.full((2, *made.forecast.values.shape), np.nan)
        intervals = engine.run.intervals
        if intervals is not None and intervals.allows(LEVEL):
            rows = np.flatnonzero(engine.city.sensors)
            sure = engine.with_intervals(made, LEVEL, rows=rows)
            lower[:, rows], upper[:, rows] = sure.lower, sure.upper
        return lower, upper


def score_snapshot(
    k: int,
    times_s: NDArray[np.int64],
    values: NDArray[np.float32],
    issued: Mapping[int, IssuedForecast | None],
    bands: Mapping[int, Band] | None = None,
) -> bytes | None:
    """The encoded scores of snapshot k of a window [S,N]; None if no forecast can be scored."""
    truth = values[k]
    N = len(truth)
    nowhere = np.full(N, np.nan)
    tallies = []
    time_s = int(times_s[k])
    error = np.zeros(N)
    count = np.zeros(N, np.uint32)
    steps: list[tuple[float, float, int]] = []
    for ahead in range(k):
        asked = issued.get(int(times_s[k - ahead]))
        made = None if asked is None else asked.forecast
        if made is None or ahead >= len(made.times_s) or int(made.times_s[ahead]) != time_s:
            steps.append((0.0, 0.0, 0))
            continue
        last = values[k - ahead - 1]
        cells = np.isfinite(truth) & np.isfinite(last) & np.isfinite(made.values[ahead])
        errors = np.where(cells, np.abs(made.values[ahead] - truth), 0)
        naive = np.where(cells, np.abs(last - truth), 0)
        error = error + errors
        count = count + cells.astype(np.uint32)
        band = (bands or {}).get(int(times_s[k - ahead]))
        lower, upper = (nowhere, nowhere) if band is None else (end[ahead] for end in band)
        known = np.flatnonzero(cells)
        forecast = made.values[ahead]
        tallies.append(Tally.of(forecast[known], truth[known], lower[known], upper[known], known, N))
        steps.append((float(errors.sum()), float(naive.sum()), int(cells.sum())))
    rows = np.flatnonzero(count)
    if not len(rows):
        return None
    tally = sum(tallies[1:], tallies[0])
    arrays: dict[str, NDArray[Any]] = {
        "row": rows.astype(np.uint32),
        "error": error[rows].astype(np.float32),
        "count": count[rows],
        "tally": np.stack([getattr(tally, name)[rows] for name in TALLIED]).astype(np.float32),
        "steps": np.array(steps, np.float64),  # [steps,3] error, persistence error, cells
    }
    return pack({}, arrays)


def accuracy(store: Store, city: ServedCity, *, since_s: int) -> dict[str, Any]:
    """The scores since `since_s`: overall, by hour, by steps ahead, and the worst nodes."""
    return summary(store.scores(since_s, city.version), city)


def drift(store: Store, city: ServedCity, promise: Promise | None, *, since_s: int) -> Drift | None:
    """What was promised at sensors against the scores since `since_s`; None without a promise, or with few scores."""
    if promise is None:
        return None
    rows = np.flatnonzero(city.sensors)
    total = np.zeros((len(TALLIED), city.network.num_nodes))
    for time_s, body in store.scores(since_s, city.version):
        found = unpack(body, f"scores of {time_s}", row=(-1,))
        if found is None or found[1].get("tally", NOTHING).shape != (len(TALLIED), len(found[1]["row"])):
            continue  # of an earlier version
        total[:, found[1]["row"]] += found[1]["tally"]
    return Drift.of(promise, Tally(**dict(zip(TALLIED, total[:, rows], strict=True))))


def summary(scores: Iterable[tuple[int, bytes]], city: ServedCity) -> dict[str, Any]:
    error = np.zeros(city.network.num_nodes)
    count = np.zeros(city.network.num_nodes)
    steps = np.zeros((city.horizon, 3))
    hours: defaultdict[int, NDArray[np.float64]] = defaultdict(lambda: np.zeros(3))
    for time_s, body in scores:
        found = unpack(body, f"scores of {time_s}", row=(-1,), error=(-1,), count=(-1,), steps=(-1, 3))
        if found is None:
            continue
        _, arrays = found
        lengths = {len(arrays[name]) for name in ("row", "error", "count")}
        if len(lengths) > 1 or (arrays["row"] >= len(error)).any():
            LOG.warning("stored scores are damaged and left out", extra={"time_s": time_s})
            continue
        error[arrays["row"]] += arrays["error"]
        count[arrays["row"]] += arrays["count"]
        of_steps = arrays["steps"][: city.horizon]
        steps[: len(of_steps)] += of_steps
        hours[time_s // HOUR_S * HOUR_S] += of_steps.sum(0)
    mae = error / np.maximum(count, 1)
    worst = [int(row) for row in np.argsort(-mae)[:WORST] if count[row]]
    return {
        "overall": _score(steps.sum(0)),
        "by_hour": [{"time": utc_iso(hour_s), **_score(sums)} for hour_s, sums in sorted(hours.items())],
        "by_step": [{"step": k + 1, **_score(sums)} for k, sums in enumerate(steps)],
        "worst": [
            {"node": city.node_names[row], "mae": round(float(mae[row]), 4), "count": int(count[row])} for row in worst
        ],
    }


def _score(sums: NDArray[np.float64]) -> dict[str, Any]:
    error, naive, cells = sums.tolist()
    mean = [round(total / cells, 4) if cells else None for total in (error, naive)]
    return {"mae": mean[0], "mae_persistence": mean[1], "count": int(cells)}
