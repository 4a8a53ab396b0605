"""What the map says about a node: degrees, class, lanes and speed of its roads, shortest paths that pass it.

networkit and numba are needed here, so features are computed where a city is read, and kept in its cache.
N nodes, E roads, R raw features, W features as a model sees them.
"""

from __future__ import annotations

import heapq
import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.errors import FrigateError
from frigate.network import RoadNetwork

# Importance of a road, by the words of OpenStreetMap and of city tables. A link ranks one below its road.
LEVEL_OF = {
    "service": 0, "track": 0, "alley": 0, "other": 0, "private": 0, "pedestrian": 0, "busway": 0,
    "residential": 1, "living_street": 1, "unclassified": 1, "road": 1, "local": 1, "minor": 1,
    "tertiary": 2, "collector": 2,
    "secondary": 3,
    "primary": 4, "arterial": 4, "major": 4,
    "trunk": 5, "highway": 5, "expressway": 5, "ramp": 5,
    "motorway": 6, "freeway": 6,
}  # fmt: skip
LEVELS = 7
SPEED_OF_LEVEL_KPH = np.array([20.0, 40.0, 45.0, 50.0, 60.0, 80.0, 100.0])  # where no speed is given
SPEED_KPH = 50.0  # where the class is unknown too

LOCAL_M = 1000.0
LOCAL_S = 90.0  # about LOCAL_M in a town, at 40 km/h
EXACT_NODES = 10_000  # beyond, whole-network betweenness is estimated
SAMPLES = 512
SAMPLE_SEED = 0

FEATURES: tuple[str, ...] = (
    "in_degree",
    "out_degree",
    "log_mean_length",
    "class_max",
    "class_mean",
    *(f"class_share_{level}" for level in range(LEVELS)),
    "lanes_max",
    "lanes_sum",
    "speed_max_kph",
    "speed_mean_kph",
    "between_length",
    "between_time",
    "between_local_length",
    "between_local_time",
)
GROUPS = ("class", "lanes", "speed")  # attributes that a city may lack
FEATURE_WIDTH = len(FEATURES) + len(GROUPS)
CLIP = 5.0


def road_features(network: RoadNetwork) -> NDArray[np.float32]:
    """Raw features of the nodes [N, R], in the order of FEATURES; NaN where unknown, and for absent nodes.

    Every road counts at both of its ends, each direction of a two-way street on its own.
    """
    edges, N = network.edges, network.num_nodes
    ends = np.concatenate([edges.senders, edges.receivers])  # [2E]
    level = class_levels(edges.road_class)
    class_max, class_mean, _ = _at_nodes(level, ends, N)
    lanes_max, _, lanes_sum = _at_nodes(edges.lanes, ends, N)
    speed_max, speed_mean, _ = _at_nodes(edges.speed_kph, ends, N)
    shares = [_at_nodes(np.where(np.isnan(level), np.nan, level == j), ends, N)[1] for j in range(LEVELS)]
    columns = [
        np.bincount(edges.receivers, minlength=N),
        np.bincount(edges.senders, minlength=N),
        np.log(_at_nodes(edges.length_m, ends, N)[1]),
        class_max, class_mean, *shares, lanes_max, lanes_sum, speed_max, speed_mean,
        *_betweenness(network),
    ]  # fmt: skip
    features = np.stack(columns, axis=1).astype(np.float32)
    features[~network.present] = np.nan
    return features


def class_levels(road_class: NDArray[np.str_]) -> NDArray[np.float64]:
    """Importance of each road's class, 0 to 6 [E]; NaN for a word that is not known."""
    words, which = np.unique(road_class, return_inverse=True)
    return np.array([_level(word) for word in words.tolist()], np.float64)[which]


def _level(word: str) -> float:
    road = word.strip().lower().replace(" ", "_")
    level = LEVEL_OF.get(road.removesuffix("_link"))
    if level is None:
        return np.nan
    return max(0, level - 1) if road.endswith("_link") else level


def travel_time_s(network: RoadNetwork) -> NDArray[np.float64]:
    """Seconds to drive each road [E]: at its speed, else at its class's usual speed, else at 50 km/h."""
    level = class_levels(network.edges.road_class)
    usual = np.where(np.isnan(level), SPEED_KPH, SPEED_OF_LEVEL_KPH[np.nan_to_num(level).astype(np.int64)])
    speed = network.edges.speed_kph
    known = np.isfinite(speed) & (speed > 0)
    seconds: NDArray[np.float64] = network.length_m / (np.where(known, speed, usual) / 3.6)
    return seconds


def _at_nodes(
    value: NDArray[np.float64], ends: NDArray[np.int64], num_nodes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Largest, mean and sum of the known values of the roads at each node [N]; NaN where none is known."""
    both = np.concatenate([value, value])
    known = np.isfinite(both)
    count = np.bincount(ends[known], minlength=num_nodes)
    most = np.full(num_nodes, np.nan)
    np.fmax.at(most, ends[known], both[known])
    summed = np.bincount(ends[known], weights=both[known], minlength=num_nodes)
    total = np.where(count > 0, summed, np.nan)
    return most, total / np.maximum(count, 1), total


def _betweenness(network: RoadNetwork) -> list[NDArray[np.float64]]:
    """Whole network by length and by time, then local by length and by time, logarithms [N] each.

    Local: log1p of the number of pairs (within the cut-off) whose shortest path passes; it does not grow with
    the network. Whole: log1p of the per cent of the network's mean, since the number itself does grow.
    """
    # In whole centimetres and milliseconds, so that equal paths are equal whatever the order of adding.
    length = np.maximum(np.rint(network.length_m * 100), 1)
    time = np.maximum(np.rint(travel_time_s(network) * 1000), 1)
    columns = []
    for cost in (length, time):
        passing = whole_betweenness(network, cost)
        mean = passing[network.present].mean() if network.present.any() else 0.0
        columns.append(np.log1p(100 * passing / mean) if mean > 0 else np.zeros(network.num_nodes))
    columns.append(np.log1p(local_betweenness(network, length, cutoff=LOCAL_M * 100)))
    columns.append(np.log1p(local_betweenness(network, time, cutoff=LOCAL_S * 1000)))
    # Threads add up in any order: the last digits are noise, and a seeded run must not see them.
    return [np.round(column, 4) for column in columns]


def whole_betweenness(network: RoadNetwork, cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ordered pairs whose shortest path passes each node, shared among equal paths [N].

    Exact up to EXACT_NODES nodes, from a fixed sample above. Costs are whole numbers above 0.
    """
    nk = _needed("networkit")
    nk.setLogLevel("ERROR")
    if network.num_edges == 0:
        return np.zeros(network.num_nodes)
    ends = (network.senders.astype(np.uint64), network.receivers.astype(np.uint64))
    graph = nk.graph.GraphFromCoo((cost, ends), n=network.num_nodes, weighted=True, directed=True)
    if network.num_nodes <= EXACT_NODES:
        search = nk.centrality.Betweenness(graph)
    else:
        nk.setSeed(SAMPLE_SEED, False)
        search = nk.centrality.EstimateBetweenness(graph, SAMPLES)
    return np.array(search.run().scores(), np.float64)


def local_betweenness(network: RoadNetwork, cost: NDArray[np.float64], *, cutoff: float) -> NDArray[np.float64]:
    """As `whole_betweenness`, exact, over the pairs no farther apart than the cut-off."""
    order = np.argsort(network.senders, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(network.senders, minlength=network.num_nodes))])
    counted: NDArray[np.float64] = _compiled_passing()(
        starts.astype(np.int64), network.receivers[order], cost[order].astype(np.int64), int(cutoff)
    )
    return counted


@cache
def _compiled_passing() -> Any:
    return _needed("numba").njit(cache=True)(_count_passing)


def _count_passing(
    starts: NDArray[np.int64], heads: NDArray[np.int64], cost: NDArray[np.int64], cutoff: int
) -> NDArray[np.float64]:
    """Brandes's algorithm, every search cut off; compiled by numba. Touches only what a search reaches."""
    N = len(starts) - 1
    passing = np.zeros(N)
    far = np.iinfo(np.int64).max
    distance = np.full(N, far)
    paths = np.zeros(N)  # number of shortest paths from the source
    beyond = np.zeros(N)  # Brandes's dependency of the source on a node
    done = np.zeros(N, np.bool_)
    reached = np.empty(N, np.int64)
    for source in range(N):
        count = 0
        distance[source] = 0
        paths[source] = 1.0
        heap = [(np.int64(0), np.int64(source))]
        while len(heap) > 0:
            _, u = heapq.heappop(heap)
            if done[u]:
                continue
            done[u] = True
            reached[count] = u
            count += 1
            for e in range(starts[u], starts[u + 1]):
                v = heads[e]
                there = distance[u] + cost[e]
                if there > cutoff or there > distance[v]:
                    continue
                if there < distance[v]:
                    distance[v] = there
                    paths[v] = 0.0
                    heapq.heappush(heap, (there, v))
                paths[v] += paths[u]
        for i in range(count - 1, 0, -1):  # farthest first; the source itself is an end, not passed
            u = reached[i]
            for e in range(starts[u], starts[u + 1]):
                v = heads[e]
                if distance[v] == distance[u] + cost[e]:
                    beyond[u] += paths[u] / paths[v] * (1.0 + beyond[v])
            passing[u] += beyond[u]
        for i in range(count):
            u = reached[i]
            distance[u] = far
            paths[u] = 0.0
            beyond[u] = 0.0
            done[u] = False
    return passing


def _needed(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise FrigateError(
            f"{package} is not installed here, and road features need it. Run `frigate check CITY` "
            "where it is installed: that keeps them in CITY/cache, which this machine can open."
        ) from error


@dataclass(frozen=True)
class FeatureScaling:
    """Mean and spread of the raw features in training; kept with the model, never refitted."""

    mean: NDArray[np.float64]  # [R] NaN for a feature never known in training
    spread: NDArray[np.float64]  # [R] 1 where constant or never known

    def apply(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features as a model sees them [N, W]: standardised, within 5 spreads, 0 where unknown; then a 1 for
        each group known at the node. What was never known in training stays unknown: no weight can read it.
        """
        scaled = np.clip((features - self.mean) / self.spread, -CLIP, CLIP)
        known = np.isfinite(scaled)
        groups = np.stack([known[:, _columns(group)].any(axis=1) for group in GROUPS], axis=1)
        return np.concatenate([np.where(known, scaled, 0), groups], axis=1).astype(np.float32)

    def notice(self, features: NDArray[np.float32]) -> str:
        """Attributes known only here or only in training, for a person to read; "" when there are none."""
        said = []
        for group in GROUPS:
            here = bool(np.isfinite(features[:, _columns(group)]).any())
            trained = bool(np.isfinite(self.mean[_columns(group)]).any())
            if here and not trained:
                said.append(f"road {group}: unknown in training, left out here.")
            if trained and not here:
                said.append(f"road {group}: known in training, unknown here; forecasts may be worse.")
        return " ".join(said)

    def to_json(self) -> dict[str, Any]:
        mean = [None if np.isnan(m) else m for m in self.mean.tolist()]
        return {"features": list(FEATURES), "mean": mean, "spread": self.spread.tolist()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> FeatureScaling:
        mean = [np.nan if m is None else m for m in stored["mean"]]
        return cls(np.array(mean, np.float64), np.array(stored["spread"], np.float64))


def fit_feature_scaling(features: NDArray[np.float32], rows: NDArray[np.generic]) -> FeatureScaling:
    """Mean and spread over these rows (indices or a mask), unknown values left out."""
    some = features[rows].astype(np.float64)
    known = np.isfinite(some)
    count = known.sum(axis=0)
    mean = np.where(known, some, 0).sum(axis=0) / np.maximum(count, 1)
    spread = np.sqrt((np.where(known, some - mean, 0) ** 2).sum(axis=0) / np.maximum(count, 1))
    constant = spread <= 1e-6 * np.maximum(np.abs(mean), 1)
    return FeatureScaling(np.where(count > 0, mean, np.nan), np.where(constant, 1.0, spread))


def _columns(group: str) -> NDArray[np.int64]:
    return np.flatnonzero([name.startswith(group) for name in FEATURES])
