"""How often a run's intervals hold: at nodes without a sensor and at sensors, over the test period.

    python benchmarks/intervals.py RUN --city CITY [--level 90] [--windows 48] [--results FILE]

Coverage with its standard error (sensors as the unit), by kind of node; the share of places that are nearly always and
nearly never inside; mean width and interval score, next to those of the trivial interval: the quantiles of the readings
of the five nearest sensors at that kind of day and hour. A run without intervals has them measured first.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import hourly_bins
from frigate.city.folder import open_city
from frigate.city.split import windows_in
from frigate.evaluation.evaluate import HOPS, TERCILES, forecaster_of, hop_groups, terciles
from frigate.roads.nearest_sensors import nearest_sensors
from frigate.training.checkpoint import load_run
from frigate.training.environment import environment
from frigate.training.out_of_fold import measured_intervals
from frigate.training.run import RunOnCity
from frigate.training.trainer import spread

NEAREST = 5
CUTOFF_M = 20_000.0
LEAST_PLACES = 10  # in a group

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--city", type=Path, required=True)
    parser.add_argument("--level", type=float, default=90.0)
    parser.add_argument("--windows", type=int, default=48)
    parser.add_argument("--results", type=Path, help="write JSON there")
    args = parser.parse_args()
    run = load_run(args.run).on(open_city(args.city))
    if run.run.intervals is None:
        run = replace(run, run=replace(run.run, intervals=measured_intervals(run)))
    command = f"python benchmarks/intervals.py {args.run.name} --city {args.city.name} --windows {args.windows}"
    found = {"command": command, **environment("cpu"), "run": args.run.name, "level": args.level}
    found |= {"seed": run.settings.train.seed, "epochs": run.progress.epoch}
    found |= measure(run, args.level, args.windows)
    print(json.dumps(found))
    if args.results is not None:
        args.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measure(run: RunOnCity, level: float, count: int) -> dict[str, Any]:
    stream = run.city.stream
    split = run.split
    task = run.settings.task
    forecaster = forecaster_of(run, "cpu")
    current = spread(windows_in(split.test, past=task.past, horizon=task.horizon), count)
    ahead = current[:, None] + np.arange(1, task.horizon + 1)
    bands = np.zeros((2, *ahead.shape, stream.num_nodes))
    for k, snapshot in enumerate(current.tolist()):
        made = forecaster.forecast(stream.steps.time_s(snapshot + 1), level=level)
        assert made.lower is not None and made.upper is not None
        bands[:, k] = made.lower, made.upper
    truth = stream.values[ahead].astype(np.float64)
    observed = stream.observed[ahead] & np.isfinite(bands).all(0)
    inside = (truth >= bands[0]) & (truth <= bands[1])
    unseen = np.flatnonzero(split.unseen)
    trivial = trivial_bands(run, ahead, unseen, level)
    there = observed[..., unseen]
    groups = {
        "without a sensor": split.unseen,
        "at sensors": split.seen,
        **of_groups("reading", TERCILES, terciles(stream, split, split.unseen)),
        **of_groups("roads", HOPS, hop_groups(stream, split, split.unseen)),
    }
    steps = [float(inside[:, h][:, unseen][there[:, h]].mean()) for h in range(task.horizon)]
    return {
        "windows": len(current),
        "coverage": {name: coverage(inside[..., nodes], observed[..., nodes]) for name, nodes in groups.items()},
        "by_step": steps,
        "width": float((bands[1] - bands[0])[..., unseen][there].mean()),
        "score": interval_score(truth[..., unseen], bands[..., unseen], there, level),
        "trivial_score": interval_score(truth[..., unseen], trivial, there, level),
    }


def of_groups(what: str, names: tuple[str, ...], group: NDArray[np.int64]) -> dict[str, Mask]:
    masks = {f"{what} {name}": group == k for k, name in enumerate(names)}
    return {name: mask for name, mask in masks.items() if mask.sum() >= LEAST_PLACES}


def coverage(inside: Mask, observed: Mask) -> dict[str, float]:
    """Of cells [W,H,n]: the share inside, its standard error over places, and how places differ."""
    cells = observed.sum((0, 1))
    hits = (inside & observed).sum((0, 1))
    share = hits[cells > 0] / cells[cells > 0]
    return {
        "places": len(share),
        "share": float(hits.sum() / cells.sum()),
        "standard_error": float(share.std() / len(share) ** 0.5),
        "places_nearly_always": float((share >= 0.8).mean()),
        "places_nearly_never": float((share < 0.2).mean()),
    }


def interval_score(truth: Floats, band: Floats, observed: Mask, level: float) -> float:
    lower, upper = band
    outside = np.maximum(lower - truth, 0) + np.maximum(truth - upper, 0)
    return float((upper - lower + 2 / (1 - level / 100) * outside)[observed].mean())


def trivial_bands(run: RunOnCity, ahead: NDArray[np.int64], nodes: NDArray[np.int64], level: float) -> Floats:
    """[2,W,H,n] quantiles of the training readings of the nearest sensors, by kind of day and hour."""
    stream = run.city.stream
    near, _ = nearest_sensors(run.usual_roads, run.split.seen, count=NEAREST, cutoff_m=CUTOFF_M)
    ends = np.array([50 - level / 2, 50 + level / 2])
    bins = hourly_bins(stream.wall_clock)
    training = slice(*run.split.train)
    made = np.zeros((2, *ahead.shape, len(nodes)))
    for b in np.unique(bins[ahead]).tolist():
        rows = np.flatnonzero(bins[training] == b)
        rows = rows if len(rows) else np.arange(*run.split.train)
        values = np.where(stream.observed[rows], stream.values[rows], np.nan)
        everywhere = np.nanpercentile(values[:, run.split.seen], ends)
        at = bins[ahead] == b
        for k, node in enumerate(nodes.tolist()):
            sensors = near[node][near[node] >= 0]
            known = values[:, sensors][np.isfinite(values[:, sensors])]
            made[:, at, k] = (np.percentile(known, ends) if len(known) else everywhere)[:, None]
    return made


if __name__ == "__main__":
    main()
