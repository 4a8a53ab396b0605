"""What is not known of the traffic at every place, and how places depend on each other.

The logarithms of the mean counts are taken as jointly Gaussian. Two places depend on each other as far as they share
trips, and as the Gaussian process of `frigate.demand.levels` says: places that look alike on the map, are near, or are
on the same street. A count at one place then narrows what is known of the others by a rank-one update, whatever the
count will be: this is what lets sites be compared before anything is counted.

P points, which are nodes; N nodes; R trips.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, vstack

from frigate.calendar import DAY_S
from frigate.city.network import RoadNetwork
from frigate.demand.calibration import RouteSet
from frigate.demand.estimate import Demand, middle_flow
from frigate.demand.levels import Estimates, LevelCovariance, Places, usual_scales

OFFSET_SHARE = 0.1  # of the mean level, added before the logarithm
MAP_SHARE = 0.5  # exponent of a level that only the map says: it tells about half of how busy a place is
TRIPS_VARIANCE = 0.3  # of the logarithms, by shared trips
USUAL_VARIANCE = 1.0  # of the logarithms, by everything else
LEAST_VARIANCE = 1e-9
MAX_CELLS = 4_000_000  # of the covariance computed at a time: 32 MB each of its parts
ALONE = 200  # nodes whose variance is computed at a time

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """What is known of the traffic before the next sensor."""

    levels: Floats  # [N] mean count, per step; if nothing is counted, trips per place, which have no unit
    spread: Floats  # [N] standard deviation of the logarithm over the route sets
    sets: tuple[RouteSet, ...]
    numbers: tuple[NDArray[np.float32], ...]  # trip flows of each set [R]
    sensors: NDArray[np.bool_]  # [N]
    per_day: float | None  # vehicles per day for a level of 1; None: nothing is counted

    @classmethod
    def of_map(cls, sets: tuple[RouteSet, ...]) -> Traffic:
        """All trips alike: what the map alone says."""
        numbers = tuple(np.ones(len(trips.routes), np.float32) for trips in sets)
        flows = [trips.through_node.T @ each for trips, each in zip(sets, numbers, strict=True)]
        level, spread = (each.astype(np.float64) for each in middle_flow(np.stack(flows)))
        return cls(level, spread, sets, numbers, np.zeros(len(level), bool), None)

    @classmethod
    def of_demand(cls, demand: Demand) -> Traffic:
        level, spread = (each.astype(np.float64) for each in (demand.usual_level, demand.node_spread))
        return cls(level, spread, demand.sets, demand.numbers, demand.sensors, DAY_S / demand.step_s)

    @property
    def offset(self) -> float:
        return OFFSET_SHARE * float(self.levels.mean())

    def weights(self, weight: str, network: RoadNetwork) -> Floats:
        """[N] how much an error of the logarithm counts at each node; their mean is 1."""
        weights = np.ones(len(self.levels))
        if weight != "even":
            weights = (self.levels + self.offset) ** (1.0 if self.per_day else MAP_SHARE)
        if weight == "vehicle-km":
            weights = weights * road_km(network)
        weights = np.where(network.present, weights, 0)
        return weights * (len(weights) / max(float(weights.sum()), LEAST_VARIANCE))

    def unseen_share(self, seen: NDArray[np.bool_], rows: Rows) -> Floats:
        """The share of the vehicles at some nodes that pass none of the seen nodes [N]."""
        passing, unseen = np.zeros(len(rows)), np.zeros(len(rows))
        for trips, numbers in zip(self.sets, self.numbers, strict=True):
            through = trips.through_node[:, rows]
            misses = trips.through_node @ seen.astype(np.float32) == 0
            passing += through.T @ numbers
            unseen += through.T @ (numbers * misses)
        return unseen / np.maximum(passing, LEAST_VARIANCE)


def road_km(network: RoadNetwork) -> Floats:
    """[N] kilometres of road that a node stands for: half of those at it; in a city on roads, its own."""
    metres = np.bincount(network.receivers, weights=network.length_m, minlength=network.num_nodes)
    if len(network.lines):  # a turn is as long as the road that it enters
        count = np.bincount(network.receivers, minlength=network.num_nodes)
        usual = float(network.length_m.mean()) if network.num_edges else 1.0
        return np.where(count > 0, metres / np.maximum(count, 1), usual) / 1000
    metres = metres + np.bincount(network.senders, weights=network.length_m, minlength=network.num_nodes)
    return metres / 2000


@dataclass(frozen=True)
class Uncertainty:
    """Covariance of the logarithms before anything is counted."""

    levels: LevelCovariance
    passing: csr_array  # [N,R] so that passing @ passing.T is the share of traffic that two nodes have in common
    trips_variance: float = TRIPS_VARIANCE

    @classmethod
    def of(cls, traffic: Traffic, places: Places) -> Uncertainty:
        scales = usual_scales(USUAL_VARIANCE)
        estimates = Estimates(traffic.levels, traffic.spread)
        levels = LevelCovariance.of(places, estimates, offset=traffic.offset, scales=scales)
        return cls(levels, _passing(traffic))

    @property
    def own(self) -> float:
        """Variance of a place that no other shares."""
        return self.levels.own

    def between(self, a: Rows, b: Rows) -> NDArray[np.float32]:
        """[a,b] covariance of the logarithms at two lists of nodes."""
        shared = self.levels.between(a, b) + self.trips_variance * (self.passing[a] @ self.passing[b].T).toarray()
        shared += self.own * (a[:, None] == b)
        covariance: NDArray[np.float32] = shared.astype(np.float32)
        return covariance

    def variance(self, rows: Rows) -> Floats:
        """The variance at these nodes."""
        alone = [self.between(part, part).diagonal() for part in np.array_split(rows, max(1, len(rows) // ALONE))]
        return np.concatenate(alone).astype(np.float64)


def _passing(traffic: Traffic) -> csr_array:
    """[N,R] trips of all sets: the square root of their flow there, for every node of length 1 or 0."""
    parts = [
        diags_array(np.sqrt(numbers / len(traffic.sets))) @ trips.through_node
        for trips, numbers in zip(traffic.sets, traffic.numbers, strict=True)
    ]
    through = csr_array(vstack(parts, format="csr").T)
    length = np.sqrt(np.asarray(through.multiply(through).sum(axis=1)).ravel())
    return csr_array(diags_array(1 / np.maximum(length, LEAST_VARIANCE)) @ through)


@dataclass(frozen=True)
class Knowledge:
    """What is known of P points after some counts. Sites are C of the points, numbered 0 to C-1."""

    site: Rows  # [C] the point of each site
    prior: NDArray[np.float32]  # [P,C] covariance of the points with the sites, before any count
    told: NDArray[np.float32]  # [P,K] what each of K counts tells: the covariance has lost told @ told.T
    variance: Floats  # [P] that is left

    @classmethod
    def none(cls, uncertainty: Uncertainty, points: Rows, site: Rows) -> Knowledge:
        """Before any count; `site` are indices of points."""
        parts = np.array_split(points[site], max(1, len(points) * len(site) // MAX_CELLS))
        prior = np.hstack([uncertainty.between(points, part) for part in parts])
        return cls(site, prior, np.zeros((len(points), 0), np.float32), uncertainty.variance(points))

    def columns(self, sites: Rows) -> Floats:
        """[P,sites] covariance of all points with some sites."""
        return (self.prior[:, sites] - self.told @ self.told[self.site[sites]].T).astype(np.float64)

    def tells(self, sites: Rows, error: float) -> Floats:
        """[P,sites] what a count at each site, with this variance of its error, would tell of every point."""
        columns = self.columns(sites)
        own = np.maximum(columns[self.site[sites], np.arange(len(sites))], LEAST_VARIANCE)
        return columns / np.sqrt(own + error)

    def after(self, site: int, error: float) -> Knowledge:
        """What is known after a count at one more site."""
        told = self.tells(np.array([site]), error)
        left = np.maximum(self.variance - told[:, 0] ** 2, LEAST_VARIANCE)
        return replace(self, told=np.hstack([self.told, told.astype(np.float32)]), variance=left)

    def after_all(self, sites: Rows, error: float) -> Knowledge:
        """The same for several sites at once, when nothing else is known yet."""
        if not len(sites):
            return self
        among = self.prior[self.site[sites]][:, sites].astype(np.float64) + error * np.eye(len(sites))
        factor = np.linalg.cholesky(among + LEAST_VARIANCE * np.eye(len(sites)))
        told = np.linalg.solve(factor, self.prior[:, sites].T.astype(np.float64)).T
        left = np.maximum(self.variance - (told**2).sum(1), LEAST_VARIANCE)
        return replace(self, told=told.astype(np.float32), variance=left)
