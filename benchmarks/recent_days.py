"""Demand alone at sensors, with and without the last four weeks, beside what a sensor's own history forecasts.

    python benchmarks/recent_days.py CITY --seen SPLIT.txt [--stride N] [--results FILE]

MAE over the test period, and the difference to each rival with an interval that resamples sensors and days. The rivals
are the own median and the last week of `frigate evaluate`, and the best blend of `benchmarks/own_history.py`. Trips are
few and not tuned to the city: at a sensor they only decide how far its neighbours' last hours count, and that saves
the time of a training. A file gets one entry for each city and split.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from own_history import FIT_WINDOWS, Histories, least_absolute

from frigate.baselines.naive import fit_own_median, seen_median
from frigate.calendar import DAY_S, hourly_bins
from frigate.city.city import City
from frigate.city.folder import open_city
from frigate.city.split import make_split, read_seen_file, windows_in
from frigate.config import preset
from frigate.demand.settings import DemandSettings
from frigate.evaluation.evaluate import forecaster_of
from frigate.forecasting.forecaster import Forecaster
from frigate.nn.scaling import fit_scaling
from frigate.roads.feature_cache import features_of
from frigate.training.environment import environment
from frigate.training.run import RunOnCity, build_model

SETS = 4
DRAWS = 1000
FIT_ROWS = 30_000  # for each step of the blend
AT_ONCE = 16

Errors = dict[str, NDArray[np.float64]]  # by forecaster: [days,N] sums of absolute errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("city", type=Path)
    parser.add_argument("--seen", type=Path, required=True)
    parser.add_argument("--stride", type=int, default=1, help="score every Nth window")
    parser.add_argument("--results", type=Path, help="add to this JSON file")
    args = parser.parse_args()
    run = untuned(open_city(args.city), args.seen)
    task = run.settings.task
    current = windows_in(run.split.test, past=task.past, horizon=task.horizon)[:: args.stride]
    errors, cells = scored(run, current)
    found = {"windows": len(current), "stride": args.stride} | compared(errors, cells, run.split.seen)
    name = f"{args.city.name}, {args.seen.stem}"
    print(name, json.dumps(found))
    if args.results is not None:
        known = json.loads(args.results.read_text(encoding="utf-8")) if args.results.exists() else {}
        known |= {"script": "python benchmarks/recent_days.py CITY --seen SPLIT.txt", **environment("cpu")}
        known.setdefault("at sensors", {})[name] = found
        args.results.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def untuned(city: City, seen: Path) -> RunOnCity:
    """A run that forecasts what demand does, with a few trips as they are without a city's own settings."""
    settings = preset("default")
    task = settings.task
    stream = city.stream
    split = make_split(
        stream, seen=read_seen_file(seen, city.network), validation_share=0, past=task.past, horizon=task.horizon
    )
    features = features_of([stream.usual_network(split.train).map], city)[0]
    scaling = fit_scaling(stream, split, settings.model, features=features, seed=0)
    scaling = replace(scaling, demand=DemandSettings(sets=SETS))
    return RunOnCity.untrained(city, split, settings, scaling, build_model(settings, scaling))


def scored(run: RunOnCity, current: NDArray[np.int64]) -> tuple[Errors, NDArray[np.float64]]:
    """Sums of absolute errors, and [days,N] how many cells they are of."""
    stream = run.city.stream
    horizon = run.settings.task.horizon
    history = Histories(stream, run.split)
    blend = fitted_blend(run, history)
    own = fit_own_median(stream, run.split, otherwise=seen_median(stream, run.split))
    local_day = (stream.times_s + stream.utc_offset_s) // DAY_S
    day = local_day - local_day[current[0]]
    bins = np.asarray(hourly_bins(stream.wall_clock))
    errors: Errors = {}
    cells = np.zeros((int(day.max()) + 1, stream.num_nodes))
    forecaster = forecaster_of(run, "cpu")
    for first in range(0, len(current), AT_ONCE):
        some = current[first : first + AT_ONCE]
        at = some[:, None] + np.arange(1, horizon + 1)
        known = stream.observed[at]
        median = own.profile.numpy()[bins[at]]
        made = dict(both_ways(forecaster, some)) | {"own median": median}
        weeks, blended = np.full((2, *at.shape, stream.num_nodes), np.nan)
        for step in range(horizon):
            x = history.at(some, step + 1)  # [B,V,histories]
            weeks[:, step, run.split.seen] = x[..., Histories.names.index("last week")]
            blended[:, step, run.split.seen] = np.maximum(x @ blend[step], 0)
        for name, values in {**made, "last week": weeks, "best blend": blended}.items():
            error = np.where(known, np.abs(np.nan_to_num(values) - stream.values[at]), 0)
            error = np.where(np.isnan(values) & known, np.nan, error)
            table = errors.setdefault(name, np.zeros_like(cells))
            np.add.at(table, day[at].ravel(), error.reshape(-1, stream.num_nodes))
        np.add.at(cells, day[at].ravel(), known.reshape(-1, stream.num_nodes))
    return errors, cells


def both_ways(forecaster: Forecaster, current: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The forecasts with the last four weeks, and without."""
    windows = forecaster.windows()
    without = copy.copy(windows)
    without._recent = None
    inputs = forecaster.inputs()
    task = forecaster.run.settings.task
    for name, some in (("demand", windows), ("demand without the last four weeks", without)):
        batch = some.batch(current, past=task.past, horizon=task.horizon, inputs=torch.from_numpy(inputs))
        yield name, batch.join(forecaster.predictor(batch)).numpy()


def fitted_blend(run: RunOnCity, history: Histories) -> list[NDArray[np.float32]]:
    """The weights of each step, fitted on the validation period."""
    task = run.settings.task
    fit_at = windows_in(run.split.validate, past=task.past, horizon=task.horizon)
    fit_at = fit_at[:: max(1, len(fit_at) // FIT_WINDOWS)]
    weights = []
    for ahead in range(1, task.horizon + 1):
        x, y = history.rows(fit_at, ahead)
        few = slice(None, None, max(1, len(y) // FIT_ROWS))
        weights.append(least_absolute(x[few], y[few]))
    return weights


def compared(errors: Errors, cells: NDArray[np.float64], nodes: NDArray[np.bool_]) -> dict[str, object]:
    """The MAE of each forecaster at these nodes, and demand's difference to it, with an interval."""
    rng = np.random.default_rng(0)
    rows = np.flatnonzero(nodes & (cells.sum(0) > 0))
    days = np.flatnonzero(cells.sum(1) > 0)
    drawn = [(rng.choice(days, len(days)), rng.choice(rows, len(rows))) for _ in range(DRAWS)]
    found: dict[str, object] = {"nodes": len(rows), "days": len(days)}
    total = cells[:, rows].sum()
    for name, table in errors.items():
        if not np.isfinite(table[:, rows]).all():
            continue
        mae = float(table[:, rows].sum() / total)
        difference = errors["demand"] - table
        draws = [float(difference[np.ix_(*pair)].sum() / cells[np.ix_(*pair)].sum()) for pair in drawn]
        low, high = np.percentile(draws, [2.5, 97.5])
        found[name] = {"mae": mae, "demand minus it": [mae_of(errors, cells, rows) - mae, float(low), float(high)]}
    return found


def mae_of(errors: Errors, cells: NDArray[np.float64], rows: NDArray[np.int64]) -> float:
    return float(errors["demand"][:, rows].sum() / cells[:, rows].sum())


if __name__ == "__main__":
    main()
