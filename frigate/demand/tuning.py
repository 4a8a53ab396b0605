"""The settings of a city's demand, chosen by hiding some of its sensors and asking how well the rest predict them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from frigate.data.network import RoadNetwork
from frigate.data.split import Period
from frigate.data.stream import RoadNetworkStream
from frigate.demand.calibration import SensorView, first_numbers
from frigate.demand.estimate import TINY, DemandSettings, sample_trips, usual_counts, week_mean
from frigate.demand.route_search import LineGraph, line_graph

FOLDS = 3
SETS = 2  # while settings are compared
MIN_SENSORS = 12  # with fewer, hiding some says nothing and the defaults stay

# One after the other, each from the best so far.
CHOICES: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("turn_s", (0.0, 10.0, 20.0, 40.0, 80.0)),
    ("noise", (0.2, 0.4, 0.7)),
    ("short_trips", (1.0, 2.0, 4.0)),
    ("iterations", (15, 30, 60)),
)


def choose_settings(
    stream: RoadNetworkStream,
    sensors: NDArray[np.bool_],
    *,
    period: Period | None = None,
    network: RoadNetwork | None = None,
    forbidden_turns: NDArray[np.int64] | None = None,
    start: DemandSettings | None = None,
    seed: int = 0,
) -> DemandSettings:
    """The settings with the least error at sensors that were hidden in turn; parameters as of `estimate_demand`."""
    best = start or DemandSettings()
    counts = week_mean(usual_counts(stream, sensors, period))
    used = sensors & np.isfinite(counts)
    if used.sum() < MIN_SENSORS:
        return best
    graph = line_graph(network or stream.network, forbidden_turns)
    known: dict[DemandSettings, float] = {}
    for name, values in CHOICES:
        options = list(_options(best, name, values))
        for option in options:
            if option not in known:
                known[option] = hidden_error(graph, counts, used, option, seed=seed)
        best = min(options, key=known.__getitem__)
    return best


def _options(settings: DemandSettings, name: str, values: tuple[float, ...]) -> Iterator[DemandSettings]:
    for value in values:
        if name == "turn_s":
            yield replace(settings, search=replace(settings.search, turn_s=value))
        elif name == "noise":
            yield replace(settings, search=replace(settings.search, noise=value))
        elif name == "iterations":
            yield replace(settings, iterations=int(value))
        else:
            yield replace(settings, short_trips=value)


def hidden_error(
    graph: LineGraph, counts: NDArray[np.floating], sensors: NDArray[np.bool_], settings: DemandSettings, *, seed: int
) -> float:
    """Mean absolute error of the mean flow at sensors that were hidden, each once."""
    sets = sample_trips(graph, replace(settings, sets=SETS), seed=seed)
    rows = np.random.default_rng([seed, 1]).permutation(np.flatnonzero(sensors))
    error = 0.0
    for fold in range(FOLDS):
        hidden = rows[fold::FOLDS]
        visible = sensors.copy()
        visible[hidden] = False
        logs = np.zeros(len(hidden))
        for trips in sets:
            view = SensorView.of(trips, visible)
            numbers = first_numbers(view, counts[visible])
            numbers = view.calibrate(numbers, counts[visible, None], iterations=settings.iterations)
            logs += np.log(np.maximum(trips.through_node[:, hidden].T @ numbers[:, 0], TINY))
        error += float(np.abs(np.exp(logs / len(sets)) - counts[hidden]).sum())
    return error / len(rows)
