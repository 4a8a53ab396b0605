"""Calibrates the flow of each trip (vehicles per step on its route) to the sensor counts.

A sensor's count is modelled as Poisson, its mean the total flow of the trips that pass it. Expectation maximisation
finds the maximum-likelihood trip flows w >= 0 (Shepp and Vardi 1982; Vardi 1996 for trips):

    w_r <- w_r * mean over the sensors v that trip r passes of (count_v / flow_v),    flow = R^T w

Each step increases the likelihood, takes two sparse products and keeps w >= 0. A prior (`hold`) pulls each trip flow
towards its initial value; its weight is in units of one sensor on the trip's route.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from frigate.demand.route_search import Routes
from frigate.roads.line_graph import LineGraph

MIN_FLOW = 1e-9

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class RouteSet:
    """Trips and their incidence matrices with nodes and roads: R trips, N nodes, E roads."""

    routes: Routes
    through_node: csr_array  # [R,N] how often a trip passes a node
    through_road: csr_array  # [R,E]


def route_set(graph: LineGraph, routes: Routes) -> RouteSet:
    """The incidence matrices of the trips: a trip passes all its roads, and the nodes between them.

    Where nodes are roads, it also passes the ones that it starts and ends on.
    """
    length = np.diff(routes.start)
    trip = np.repeat(np.arange(len(routes)), length)
    some = np.flatnonzero(length > 0)
    ones = np.ones(len(routes.roads), np.float32)
    if graph.nodes_are_roads:
        first = graph.senders[routes.roads[routes.start[some]]]
        by = np.concatenate([trip, some])
        at = np.concatenate([graph.receivers[routes.roads], first])
    else:
        inner = np.ones(len(routes.roads), bool)
        inner[routes.start[some + 1] - 1] = False
        by = trip[inner]
        at = graph.receivers[routes.roads[inner]]
    return RouteSet(
        routes,
        csr_array((np.ones(len(at), np.float32), (by, at)), (len(routes), graph.num_nodes)),
        csr_array((ones, (trip, routes.roads)), (len(routes), graph.num_roads)),
    )


@dataclass(frozen=True)
class SensorView:
    """The incidence between trips and a set of V sensors."""

    at_sensor: csr_array  # [R,V]
    by_sensor: csr_array  # [V,R] its transpose
    per_trip: NDArray[np.float32]  # [R,1] 1 / number of sensors that the trip passes; 0 if it passes none

    @classmethod
    def of(cls, through_node: csr_array, sensors: NDArray[np.bool_]) -> SensorView:
        """From the trips' node incidence [R,N] and the sensor mask [N]."""
        at_sensor = through_node[:, np.flatnonzero(sensors)].tocsr()
        passed = np.asarray(at_sensor.sum(axis=1)).ravel()
        share = np.where(passed > 0, 1 / np.maximum(passed, 1), 0).astype(np.float32)
        return cls(at_sensor, at_sensor.T.tocsr(), share[:, None])

    def calibrate(self, trips: Floats, counts: Floats, *, iterations: int, hold: float) -> Floats:
        """Fit trip flows [R,C] to the sensor counts [V,C], for C cases at once.

        Parameters
        ----------
        trips
            [R,C] initial trip flows.
        counts
            [V,C] mean count of each sensor.
        iterations
            Expectation-maximisation steps: with more, the fit follows the sensors more and the initial flows less.
        hold
            Weight of the initial flows, relative to one sensor.
        """
        seen = self.per_trip > 0
        start = trips
        held = np.float32(hold) * self.per_trip
        for _ in range(iterations):
            ratio = counts / np.maximum(self.by_sensor @ trips, MIN_FLOW)
            moved = trips * (self.at_sensor @ ratio.astype(np.float32)) * self.per_trip
            trips = np.where(seen, (moved + held * start) / (1 + held), trips)
        return trips


def first_numbers(view: SensorView, counts: Floats) -> Floats:
    """[R,1] uniform initial trip flows, scaled so that the total flow at the sensors equals their total count [V]."""
    equal = np.ones((view.at_sensor.shape[0], 1), np.float32)
    flow = float((view.by_sensor @ equal).sum())
    return equal * np.float32(counts.sum() / flow if flow > 0 else 0)
