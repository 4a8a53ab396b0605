"""What it is worth to be told of the closures that a city recorded: forecasts with and without them.

    python benchmarks/recorded_closures.py CITY RUN ... [--results FILE]

CITY has a table of changes that closes nodes (in a city on roads: roads), and each RUN was trained on it, with other
sensors. Windows are three hours after the training period in which at least three nodes are closed that are open in
most weeks at that hour: closed in most weeks, by nightly works say, is usual and told in either case. Both forecasts
are made when the window begins. One is told of all closures, before and ahead; the other only of the usual ones. Scored
at open sensors, by their distance from the nearest unusual closure; intervals of the difference resample windows.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import DAY_S, HOUR_S
from frigate.city.city import City
from frigate.city.folder import open_city
from frigate.city.stream import RoadNetworkStream
from frigate.coordinates import haversine_m
from frigate.draws import Draw, generator
from frigate.evaluation.evaluate import forecaster_of
from frigate.training.checkpoint import load_run
from frigate.training.environment import environment
from frigate.training.run import Run

HOURS = 3  # of a window
CLOSED = 3  # nodes that are unusually closed throughout
BANDS_M = (500.0, 1000.0, 2000.0, np.inf)  # upper ends of the distances to an unusual closure
DRAWS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("city", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--results", type=Path, help="write JSON there")
    args = parser.parse_args()
    city = open_city(args.city)
    by_seed = {}
    for folder in args.runs:
        run = load_run(folder)
        seed = run.settings.train.seed
        by_seed[seed] = of_run(run, city)
        print(seed, json.dumps(by_seed[seed]), flush=True)
    if args.results is not None:
        command = "python benchmarks/recorded_closures.py CITY RUN ..."
        result = {"command": command, **environment(), "city": city.name, "by_seed": by_seed}
        args.results.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def closed_nodes(stream: RoadNetworkStream) -> NDArray[np.bool_]:
    """[S,N]"""
    return np.stack([~network.passable for network in stream.networks])[stream.network_of]


def usually_closed(stream: RoadNetworkStream, closed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[S,N] whether a node is closed in most weeks at that hour of the week."""
    local_s = stream.times_s + stream.utc_offset_s
    hour = local_s % (7 * DAY_S) // HOUR_S
    usual = np.zeros_like(closed)
    for h in np.unique(hour):
        usual[hour == h] = closed[hour == h].mean(0) > 0.5
    return usual


def without_unusual(stream: RoadNetworkStream, usual: NDArray[np.bool_]) -> RoadNetworkStream:
    """The record with the usual closures alone."""
    first = stream.networks[0]
    distinct, network_of = np.unique(usual, axis=0, return_inverse=True)
    networks = tuple(first.unchecked(passable=~closed) for closed in distinct)
    return replace(stream, networks=networks, network_of=network_of.reshape(-1).astype(np.int64))


def of_run(run: Run, city: City) -> dict[str, Any]:
    stream = city.stream
    demand = run.scaling.demand
    assert demand is not None
    closed = closed_nodes(stream)
    usual = usually_closed(stream, closed)
    unusual = closed & ~usual
    run_on_city = run.on(city)
    steps = HOURS * HOUR_S // stream.step_s
    begins = range(run_on_city.split.train[1] + run.settings.task.past, stream.num_snapshots - steps, steps)
    windows = [at for at in begins if (unusual[at : at + steps].all(0)).sum() >= CLOSED]
    current = np.array(windows) - 1
    told = forecasts(run, city, current, steps)
    not_told = forecasts(run, replace(city, stream=without_unusual(stream, usual)), current, steps)
    ahead = current[:, None] + np.arange(1, steps + 1)
    scored = stream.observed[ahead] & ~closed[ahead]  # [W,H,N]
    shut = (np.asarray(unusual[at : at + steps].all(0)) for at in windows)
    away_m = np.stack([distance_m(stream, each) for each in shut])  # [W,N]
    errors = {name: np.abs(made - stream.values[ahead]) for name, made in (("told", told), ("not_told", not_told))}
    found: dict[str, Any] = {"windows": len(windows), "closures": vars(demand.closures)}
    nearest = 0.0
    rng = generator(0, Draw.BOOTSTRAP)
    for band in BANDS_M:
        inside = (away_m >= nearest) & (away_m < band)
        for name, nodes in (("unseen", run_on_city.split.unseen), ("seen", run_on_city.split.seen)):
            cells = scored & (inside & nodes)[:, None]
            found[f"{name}_to_{band:g}_m"] = compared(errors, cells, rng)
        nearest = band
    for name, nodes in (("unseen", run_on_city.split.unseen), ("seen", run_on_city.split.seen)):
        found[f"{name}_all"] = compared(errors, scored & nodes, rng)
    return found


def compared(
    errors: dict[str, NDArray[np.float32]], cells: NDArray[np.bool_], rng: np.random.Generator
) -> dict[str, Any]:
    """MAE told and not told, and the interval of the difference."""
    count = cells.sum((1, 2))
    total = {name: np.where(cells, error, 0).sum((1, 2), dtype=np.float64) for name, error in errors.items()}
    mae = {name: float(of_window.sum() / max(count.sum(), 1)) for name, of_window in total.items()}
    drawn = rng.integers(0, len(count), (DRAWS, len(count)))
    difference = (total["told"] - total["not_told"])[drawn].sum(1) / np.maximum(count[drawn].sum(1), 1)
    low, high = np.quantile(difference, [0.025, 0.975])
    return mae | {"difference": [mae["told"] - mae["not_told"], float(low), float(high)], "cells": int(count.sum())}


def forecasts(run: Run, city: City, current: NDArray[np.int64], steps: int) -> NDArray[np.float32]:
    """[W,H,N] of the windows whose last snapshots these are."""
    forecaster = forecaster_of(run.on(city), "cpu")
    made = [forecaster.values(np.array([at]))[0, :steps] for at in current.tolist()]
    return np.nan_to_num(np.stack(made))


def distance_m(stream: RoadNetworkStream, closed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[N] metres to the nearest of these nodes."""
    network = stream.network
    each = [
        haversine_m(network.lon, network.lat, np.full(network.num_nodes, lon), np.full(network.num_nodes, lat))
        for lon, lat in zip(network.lon[closed], network.lat[closed], strict=True)
    ]
    nearest: NDArray[np.float64] = np.min(each, axis=0)
    return nearest


if __name__ == "__main__":
    main()
