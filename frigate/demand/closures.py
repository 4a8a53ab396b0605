"""How drivers answer closed roads: learned from the closures on a city's own record.

The rerouted trips say how much traffic a closure takes from a place or brings to it. Real drivers answer less: some
were warned and stay at home, some take streets that are not on the map, and the trips are estimates. So the factor by
which a place's traffic changes has an exponent, one where it falls and one where it rises. Both are fitted at sensors,
each with trips calibrated without it, in the hours in which roads were closed; a city whose record bears out no other
answer keeps the usual one.

R readings of sensors near closures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import hourly_bins
from frigate.city.network import RoadNetwork, shut_nodes
from frigate.city.split import Period
from frigate.city.stream import RoadNetworkStream
from frigate.demand.count_profiles import fill_empty_hours, usual_counts
from frigate.demand.settings import ClosureResponse

MANY_NETWORKS = 48  # from which few route sets are rerouted
FEW_SETS = 4
FITTED_NETWORKS = 24  # at most; half of them those in which most was closed for longest
FITTED_SNAPSHOTS = 12  # of each network at most
NEAR = 0.05  # change from which a reading counts as near a closure
FAR = 0.02  # change up to which a sensor tells how busy the day is
MIN_FAR = 8  # such sensors
MIN_NEAR = 8  # sensors near a closure
LEAST_CHANGE = 1e-3
EXPONENTS = np.arange(11) / 10
CLEAR = 2.0  # standard errors by which another answer must be better

Floats = NDArray[np.floating]
Changes = Callable[[RoadNetwork], Floats]  # [N] new flow over old, as the trips say it


@dataclass(frozen=True)
class NearClosures:
    """Readings near closures."""

    sensor: NDArray[np.int64]  # [R]
    count: Floats  # [R]
    usual: Floats  # [R] the usual count, as busy as the day was
    ratio: Floats  # [R] new flow over old, as the trips say


def detour_sets(stream: RoadNetworkStream, period: Period, sets: int) -> int:
    """How many route sets to reroute: each network of a record takes its time."""
    networks = len(np.unique(stream.network_of[slice(*period)]))
    return sets if networks <= MANY_NETWORKS else min(FEW_SETS, sets)


def fit_response(
    stream: RoadNetworkStream,
    period: Period,
    usual_roads: RoadNetwork,
    sensors: NDArray[np.bool_],
    changes: Changes,
    prior: ClosureResponse,
) -> ClosureResponse:
    """The answer that the sensors near closures bear out, or the prior.

    Parameters
    ----------
    stream, period
        The record, and the snapshots to learn from.
    usual_roads
        The roads that are usually open.
    sensors
        [N] those to learn from.
    changes
        What the trips say of a network, at each sensor without its counts.
    prior
        The answer to keep unless another is clearly better.
    """
    near = near_closures(stream, period, usual_roads, sensors, changes)
    if near is None or len(np.unique(near.sensor)) < MIN_NEAR:
        return prior
    best = prior
    kept = _errors(near, prior)
    least = kept
    for fewer in EXPONENTS.tolist():
        for more in EXPONENTS.tolist():
            errors = _errors(near, ClosureResponse(fewer, more))
            if errors.sum() < least.sum():
                best = ClosureResponse(fewer, more)
                least = errors
    of_sensor = np.bincount(near.sensor, weights=kept - least)
    of_sensor = of_sensor[np.unique(near.sensor)]
    error = float(of_sensor.std()) * np.sqrt(len(of_sensor))
    return best if float(of_sensor.sum()) > CLEAR * error else prior


def _errors(near: NearClosures, response: ClosureResponse) -> Floats:
    """[R] Poisson deviance, up to a constant: lowest at the mean, however skewed counts are."""
    expected = near.usual * np.maximum(response.answer(near.ratio), LEAST_CHANGE)
    errors: Floats = expected - near.count * np.log(expected)
    return errors


def near_closures(
    stream: RoadNetworkStream, period: Period, usual_roads: RoadNetwork, sensors: NDArray[np.bool_], changes: Changes
) -> NearClosures | None:
    """The readings of sensors near closures; None if there are none. Parameters as in `fit_response`."""
    first, stop = period
    ratio_on = {k: changes(stream.networks[k]) for k in _chosen(stream, period, usual_roads)}
    # A reading near a closure is not part of the usual count that it is compared with.
    observed = stream.observed.copy()
    for k, ratio in ratio_on.items():
        observed[np.ix_(stream.network_of == k, np.abs(ratio - 1) > NEAR)] = False
    usual_counts_there = fill_empty_hours(usual_counts(replace(stream, observed=observed), sensors, period))
    found: list[NearClosures] = []
    bins = hourly_bins(stream.wall_clock)
    for k, ratio in ratio_on.items():
        at = first + np.flatnonzero(stream.network_of[first:stop] == k)
        at = at[np.linspace(0, len(at) - 1, min(len(at), FITTED_SNAPSHOTS)).astype(np.int64)]
        usual = usual_counts_there[bins[at]]
        read = stream.observed[at] & (usual > 0) & ~shut_nodes(usual_roads, stream.networks[k])
        far = read & (np.abs(ratio - 1) < FAR)
        known = far.sum(1) >= MIN_FAR
        values = np.where(read, stream.values[at], 0)
        busy = np.where(far, values, 0).sum(1) / np.maximum(np.where(far, usual, 0).sum(1), 1e-9)
        near = read & (np.abs(ratio - 1) > NEAR) & known[:, None]
        sensor = np.nonzero(near)[1]
        found.append(NearClosures(sensor, values[near], (usual * busy[:, None])[near], ratio[sensor]))
    if not found or not sum(len(each.sensor) for each in found):
        return None
    return NearClosures(
        np.concatenate([each.sensor for each in found]),
        np.concatenate([each.count for each in found]),
        np.concatenate([each.usual for each in found]),
        np.concatenate([each.ratio for each in found]),
    )


def _chosen(stream: RoadNetworkStream, period: Period, usual_roads: RoadNetwork) -> list[int]:
    """The networks to learn from: half of them those in which most was closed for longest, the others evenly."""
    used, snapshots = np.unique(stream.network_of[slice(*period)], return_counts=True)
    closed = np.array([int(shut_nodes(usual_roads, stream.networks[k]).sum()) for k in used.tolist()])
    roads = np.array([usual_roads.num_edges - stream.networks[k].num_edges for k in used.tolist()])
    changed = np.flatnonzero((closed > 0) | (roads > 0))
    score = (snapshots * (closed + np.maximum(roads, 0)))[changed]
    most = changed[np.argsort(-score, kind="stable")[: FITTED_NETWORKS // 2]]
    others = np.setdiff1d(changed, most)
    some = others[np.linspace(0, len(others) - 1, min(len(others), FITTED_NETWORKS - len(most))).astype(np.int64)]
    return sorted(used[np.concatenate([most, some])].tolist())
