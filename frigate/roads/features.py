"""Road features of a node: degrees; class, lanes and speed of its roads; betweenness.

Betweenness needs numba, so features are computed when a city is read, and stored in its cache.
N nodes, E roads, R raw features, W features as a model sees them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import RoadNetwork
from frigate.config import is_a, require
from frigate.roads.betweenness import EXACT_NODES, SAMPLES, local_betweenness, whole_betweenness

# Importance of a road, by the terms of OpenStreetMap and of city tables. A link ranks one level below its road.
LEVEL_OF = {
    "service": 0,
    "track": 0,
    "alley": 0,
    "other": 0,
    "private": 0,
    "pedestrian": 0,
    "busway": 0,
    "residential": 1,
    "living_street": 1,
    "unclassified": 1,
    "road": 1,
    "local": 1,
    "minor": 1,
    "tertiary": 2,
    "collector": 2,
    "secondary": 3,
    "primary": 4,
    "arterial": 4,
    "major": 4,
    "main": 4,
    "trunk": 5,
    "highway": 5,
    "expressway": 5,
    "ramp": 5,
    "motorway": 6,
    "freeway": 6,
}
LEVELS = 7
SPEED_OF_LEVEL_KPH = np.array([20.0, 40.0, 45.0, 50.0, 60.0, 80.0, 100.0])  # if the speed is unknown
SPEED_KPH = 50.0  # if the class is unknown too

LOCAL_M = 1000.0
LOCAL_S = 90.0  # about LOCAL_M in a town, at 40 km/h

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

METHOD = f"betweenness exact up to {EXACT_NODES}, then {SAMPLES} searches"  # part of the cache key


def road_features(network: RoadNetwork) -> NDArray[np.float32]:
    """Raw features of the nodes [N, R], in the order of FEATURES; NaN if unknown, and for absent nodes.

    Every road counts at both its ends; each direction of a two-way street is a road of its own.
    """
    return features_and_notice(network)[0]


def features_and_notice(network: RoadNetwork) -> tuple[NDArray[np.float32], str]:
    """The same, and a notice of the error of betweenness if it is estimated, or ""."""
    between, error = _betweenness(network)
    edges = network.edges
    N = network.num_nodes
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
        class_max,
        class_mean,
        *shares,
        lanes_max,
        lanes_sum,
        speed_max,
        speed_mean,
        *between,
    ]
    features = np.stack(columns, axis=1).astype(np.float32)
    features[~network.present] = np.nan
    if error == 0:
        return features, ""
    return features, (
        f"betweenness is estimated from {SAMPLES:,} searches (it is exact up to {EXACT_NODES:,} nodes): "
        f"off by about {error:.1%} of its spread, judging by two independent samples."
    )


def class_notice(network: RoadNetwork) -> str:
    """A notice of the road classes that are unknown and so have no features, or ""."""
    named = network.edges.road_class
    unknown = named[np.isnan(class_levels(named)) & (named != "")]
    if not len(unknown):
        return ""
    words, count = np.unique(unknown, return_counts=True)
    most = np.argsort(-count, kind="stable")[:5]
    some = ", ".join(f'"{words[i]}" {count[i]:,}' for i in most) + ", ..." * (len(words) > len(most))
    return (
        f"{len(unknown):,} of {network.num_edges:,} roads have a road_class that is not known ({some}) "
        f"and is ignored. Known are {', '.join(LEVEL_OF)}, and these with _link, _road or _street."
    )


def class_levels(road_class: NDArray[np.str_]) -> NDArray[np.float64]:
    """Importance of each road's class [E], 0 to 6; NaN if unknown."""
    words, which = np.unique(road_class, return_inverse=True)
    return np.array([_level(word) for word in words.tolist()], np.float64)[which]


def _level(word: str) -> float:
    road = re.sub(r"[\s_-]+", "_", word.strip().lower())
    kind = road.removesuffix("_link")
    level = LEVEL_OF.get(kind, LEVEL_OF.get(re.sub(r"_(road|street|rd|st)$", "", kind)))
    if level is None:
        return np.nan
    return max(0, level - 1) if road.endswith("_link") else level


def travel_time_s(network: RoadNetwork) -> NDArray[np.float64]:
    """Seconds to drive each road [E]: at its speed, else at the usual speed of its class, else at 50 km/h."""
    level = class_levels(network.edges.road_class)
    usual = np.where(np.isnan(level), SPEED_KPH, SPEED_OF_LEVEL_KPH[np.nan_to_num(level).astype(np.int64)])
    speed = network.edges.speed_kph
    known = np.isfinite(speed) & (speed > 0)
    seconds: NDArray[np.float64] = network.length_m / (np.where(known, speed, usual) / 3.6)
    return seconds


def _at_nodes(
    value: NDArray[np.float64], ends: NDArray[np.int64], num_nodes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Maximum, mean and sum of the known values of the roads at each node [N]; NaN if none is known."""
    both = np.concatenate([value, value])
    known = np.isfinite(both)
    count = np.bincount(ends[known], minlength=num_nodes)
    most = np.full(num_nodes, np.nan)
    np.fmax.at(most, ends[known], both[known])
    summed = np.bincount(ends[known], weights=both[known], minlength=num_nodes)
    total = np.where(count > 0, summed, np.nan)
    return most, total / np.maximum(count, 1), total


def _betweenness(network: RoadNetwork) -> tuple[list[NDArray[np.float64]], float]:
    """Betweenness [N] by length and by time over the whole network, then locally, as logarithms; and the error.

    Local: log1p of the number of pairs (within the cut-off) whose shortest path passes, which does not grow with the
    network. Whole: log1p of the percentage of the network's mean, because the number itself does grow.
    """
    # Integers (centimetres, milliseconds), so that equal paths are equal in whatever order they are summed.
    length = np.maximum(np.rint(network.length_m * 100), 1)
    time = np.maximum(np.rint(travel_time_s(network) * 1000), 1)
    columns = []
    error = 0.0
    for cost in (length, time):
        passing = whole_betweenness(network, cost)
        columns.append(_log_share(passing.count, network))
        if passing.samples is not None:
            one, other = (_log_share(sample, network) for sample in passing.samples)
            rms = float(np.sqrt((((one - other) / 2) ** 2).mean()))
            error = max(error, rms / max(float(columns[-1].std()), 1e-9))
    columns.append(np.log1p(local_betweenness(network, length, cutoff=LOCAL_M * 100)))
    columns.append(np.log1p(local_betweenness(network, time, cutoff=LOCAL_S * 1000)))
    # The last digits are rounding errors that differ between machines. A seeded run must not depend on them.
    return [np.round(column, 4) for column in columns], error


def _log_share(passing: NDArray[np.float64], network: RoadNetwork) -> NDArray[np.float64]:
    mean = passing[network.present].mean() if network.present.any() else 0.0
    return np.log1p(100 * passing / mean) if mean > 0 else np.zeros(network.num_nodes)


@dataclass(frozen=True)
class FeatureScaling:
    """Mean and spread of the raw features in training. Kept with the model and never refitted."""

    mean: NDArray[np.float64]  # [R] NaN for a feature never known in training
    spread: NDArray[np.float64]  # [R] 1 where constant or never known

    def apply(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features as a model sees them [N, W]: standardised, clipped to 5 spreads, 0 if unknown; then a 1 for each
        group known at the node. What was never known in training stays unknown, as no weight was trained for it.
        """
        scaled = np.clip((features - self.mean) / self.spread, -CLIP, CLIP)
        known = np.isfinite(scaled)
        groups = np.stack([known[:, _columns(group)].any(axis=1) for group in GROUPS], axis=1)
        return np.concatenate([np.where(known, scaled, 0), groups], axis=1).astype(np.float32)

    def notice(self, features: NDArray[np.float32]) -> str:
        """A notice of attributes known only here or only in training, or ""."""
        notices = []
        for group in GROUPS:
            known = bool(np.isfinite(features[:, _columns(group)]).any())
            trained = bool(np.isfinite(self.mean[_columns(group)]).any())
            if known and not trained:
                notices.append(f"road {group}: unknown in training, left out here.")
            if trained and not known:
                notices.append(f"road {group}: known in training, unknown here; forecasts may be worse.")
        return " ".join(notices)

    def to_json(self) -> dict[str, Any]:
        mean = [None if np.isnan(m) else m for m in self.mean.tolist()]
        return {"features": list(FEATURES), "mean": mean, "spread": self.spread.tolist()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> FeatureScaling:
        require(stored["features"] == list(FEATURES), "features", stored["features"], "they are from another version")
        mean = [np.nan if m is None else m for m in stored["mean"]]
        for name in ("mean", "spread"):
            ok = all(is_a(x, "float") or (x is None and name == "mean") for x in stored[name])
            require(ok and len(stored[name]) == len(FEATURES), name, stored[name], "give a number for each feature")
        require(min(stored["spread"]) > 0, "spread", stored["spread"], "must be above 0")
        return cls(np.array(mean, np.float64), np.array(stored["spread"], np.float64))


def fit_feature_scaling(features: NDArray[np.float32], rows: NDArray[np.generic]) -> FeatureScaling:
    """Mean and spread over these rows (indices or a mask), ignoring unknown values."""
    some = features[rows].astype(np.float64)
    known = np.isfinite(some)
    count = known.sum(axis=0)
    mean = np.where(known, some, 0).sum(axis=0) / np.maximum(count, 1)
    spread = np.sqrt((np.where(known, some - mean, 0) ** 2).sum(axis=0) / np.maximum(count, 1))
    constant = spread <= 1e-6 * np.maximum(np.abs(mean), 1)
    return FeatureScaling(np.where(count > 0, mean, np.nan), np.where(constant, 1.0, spread))


def _columns(group: str) -> NDArray[np.int64]:
    return np.flatnonzero([name.startswith(group) for name in FEATURES])
