"""What a change of roads means for the trips: who loses the way, how much longer the new one is, who has none left.

S route sets, K hourly bins, R trips of a set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frigate.demand.calibration import Floats
from frigate.demand.estimate import Demand
from frigate.demand.rerouting import Detours

SAME_WAY_M = 0.5  # a new way whose length differs by less is the old one, where no road of it is closed


@dataclass(frozen=True)
class DetourTotals:
    """Sums over the trips of each route set [S,K], per step of the demand, if all drivers answer."""

    driven_m: Floats  # by all trips, on the usual roads
    moved: Floats  # vehicles that take another way
    extra_m: Floats  # that these drive more; less than 0 where a new road is a short cut
    lost: Floats  # vehicles with no way left
    lost_m: Floats  # that these drove


def detour_totals(demand: Demand, detours: Detours) -> DetourTotals:
    """The sums for a demand, and the detours of its trips."""
    sums = [_of_set(demand, detours, k) for k in range(len(detours.rows))]
    return DetourTotals(*(np.stack(each) for each in zip(*sums, strict=True)))


def _of_set(demand: Demand, detours: Detours, k: int) -> tuple[Floats, ...]:
    trips = demand.sets[k]
    rows = detours.rows[k]
    other = detours.routes[k]
    length_m = detours.graph.length_m
    E = trips.through_road.shape[1]
    vehicles = demand.trips(k)  # [R,K]
    old_m = trips.through_road @ length_m[:E]  # [R]
    new_m = other.through_road @ length_m
    lost = np.diff(other.routes.start) == 0
    cut = np.asarray(trips.through_road[rows][:, np.flatnonzero(detours.closed)].sum(axis=1)).ravel() > 0
    longer_m = new_m - old_m[rows]
    moved = ~lost & (cut | (np.abs(longer_m) > SAME_WAY_M))
    some = vehicles[rows]
    return (
        old_m @ vehicles,
        moved.astype(float) @ some,
        np.where(moved, longer_m, 0) @ some,
        lost.astype(float) @ some,
        np.where(lost, old_m[rows], 0) @ some,
    )
