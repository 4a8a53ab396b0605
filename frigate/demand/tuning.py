"""Selects the search settings that fit a city's drivers, by cross-validation on held-out sensors.

No single setting is best: many are tried, one at a time, and the route sets use the best ones. The median over these
sets beats any one of them, and also the median over more sets of the single best setting.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.city.network import RoadNetwork
from frigate.city.split import Period
from frigate.city.stream import RoadNetworkStream
from frigate.demand.calibration import Floats, SensorView, first_numbers, route_set
from frigate.demand.count_profiles import TINY, fill_empty_hours, usual_counts, week_mean
from frigate.demand.route_search import SearchSettings, search_routes
from frigate.demand.settings import DemandSettings, num_searches
from frigate.draws import Draw, generator, seed_of
from frigate.roads.line_graph import LineGraph, line_graph

TRIED = 64  # settings
TRIED_IN_LARGE = 24  # in a large network, where each takes longer
LARGE = 5_000  # nodes
VERY_LARGE = 20_000  # nodes
FOLDS = 3
SEARCHES = 400  # per setting under comparison
MIN_SENSORS = 30  # with fewer, cross-validation says little and the defaults are kept

VALUES: dict[str, tuple[float, ...]] = {
    "turn_s": (0.0, 10.0, 20.0, 40.0, 80.0, 160.0),
    "crossing_s": (0.0, 4.0, 8.0),
    "speed_weight": (0.5, 1.0, 1.5),
    "noise": (0.1, 0.2, 0.4, 0.7),
    "shortness": (1.0, 1.0, 2.0, 3.0),
    "fast_ends": (0.0, 1.0, 2.0),
}


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
    """The settings with the searches that have the lowest held-out error; parameters as in `estimate_demand`."""
    settings = start or DemandSettings()
    hourly = usual_counts(stream, sensors, period)
    if np.isfinite(hourly).any(0).sum() < MIN_SENSORS:
        return settings
    graph = line_graph(network or stream.usual_network(period), forbidden_turns)
    asked = (graph.digest, hourly.tobytes(), TRIED, settings, seed)
    if asked not in _chosen:
        _chosen[asked] = _choose(graph, hourly, settings, seed)
    return _chosen[asked]


# Several models may be trained on the same city and split.
_chosen: dict[tuple[str, bytes, int, DemandSettings, int], DemandSettings] = {}


def _choose(graph: LineGraph, hourly: Floats, settings: DemandSettings, seed: int) -> DemandSettings:
    tried = searches_to_try(max(TRIED_IN_LARGE, min(TRIED, TRIED * LARGE // graph.num_nodes)))
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        errors = list(pool.map(lambda search: hidden_error(graph, hourly, search, settings, seed=seed), tried))
    best = np.argsort(errors, kind="stable")[: settings.sets]
    return replace(settings, searches=tuple(tried[k] for k in best))


def searches_to_try(count: int) -> list[SearchSettings]:
    """Search settings to compare, the same for every city: each value of a parameter occurs about equally often."""
    rng = np.random.default_rng(0)
    columns = {name: rng.permutation(np.resize(values, count)).tolist() for name, values in VALUES.items()}
    return [SearchSettings(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def hidden_error(
    graph: LineGraph, hourly: Floats, search: SearchSettings, settings: DemandSettings, *, seed: int
) -> float:
    """Cross-validated mean absolute error of one route set's weekly mean flow; each sensor is held out once.

    `hourly` [K,N] are the sensors' usual counts, NaN where there are no readings.
    """
    truth = week_mean(fill_empty_hours(hourly))
    sensors = np.isfinite(truth)
    searches = num_searches(graph)
    searches = min(SEARCHES, searches) if graph.num_nodes <= VERY_LARGE else searches // 4
    trips = route_set(graph, search_routes(graph, search, searches=searches, seed=seed_of(seed, Draw.TRIED_TRIPS)))
    by_key = np.argsort(graph.node_key)
    rows = generator(seed, Draw.TRIED_FOLDS).permutation(by_key[sensors[by_key]])
    error = 0.0
    for fold in range(FOLDS):
        hidden = rows[fold::FOLDS]
        visible = sensors.copy()
        visible[hidden] = False
        view = SensorView.of(trips.through_node, visible)
        counts = week_mean(fill_empty_hours(np.where(visible, hourly, np.nan)))
        numbers = first_numbers(view, counts[visible])
        numbers = view.calibrate(numbers, counts[visible, None], iterations=settings.iterations, hold=settings.hold)
        flow = np.maximum(trips.through_node[:, hidden].T @ numbers[:, 0], TINY)
        error += float(np.abs(flow - truth[hidden]).sum())
    return error / len(rows)
