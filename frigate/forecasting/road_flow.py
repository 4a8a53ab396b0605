"""The flow on every road, from the forecasts or readings at its ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import between_bins
from frigate.city.network import RoadNetwork
from frigate.demand.estimate import Demand
from frigate.demand.rerouting import Rerouted

LITTLE_FLOW = 0.05  # share of the mean flow added to both flows, so that nearly empty nodes do not change a hundredfold
MAX_CHANGE = 8.0  # largest factor between a road's usual flow and its forecast, up or down

Floats = NDArray[np.float32]


def road_flows(
    values: NDArray[np.floating],
    networks: Sequence[RoadNetwork],
    usual: RoadNetwork,
    *,
    demand: Demand | None = None,
    rerouted: Callable[[RoadNetwork], Rerouted | None] = lambda network: None,
    clock: NDArray[np.int64] | None = None,
    closed: float = 0.0,
) -> Floats:
    """[S,E] the flow on every usual road at S times.

    With demand: the usual flow of the road, after detours, scaled by how far its two ends deviate from usual, and at
    most the flow at either end. Without demand: the mean of the two ends.

    Parameters
    ----------
    values
        [S,N] at the nodes, in the unit of the readings; NaN where unknown.
    networks
        [S] the network at each time.
    usual
        The usual roads.
    demand
        Estimated on the usual roads; needs a city of counts.
    rerouted
        How a network's roads change the demand.
    clock
        [S,3] local times, as `frigate.calendar.WALL_CLOCK`; required with demand.
    closed
        The value of roads that are closed: no traffic has no speed.
    """
    flow = np.zeros((len(values), usual.num_edges), np.float32)
    prints = [network.fingerprint for network in networks]
    for each in dict.fromkeys(prints):
        holds = np.array([each == other for other in prints])
        network = networks[prints.index(each)]
        some = _on_one_network(values[holds], usual, demand, rerouted(network), None if clock is None else clock[holds])
        flow[holds] = np.where(closed_roads(usual, network), closed, some)
    return flow


def _on_one_network(
    values: NDArray[np.floating],
    usual: RoadNetwork,
    demand: Demand | None,
    rerouted: Rerouted | None,
    clock: NDArray[np.int64] | None,
) -> NDArray[np.floating]:
    ends = values[:, usual.senders], values[:, usual.receivers]
    if demand is None or clock is None:
        mean: NDArray[np.floating] = (ends[0] + ends[1]) / 2
        return mean
    first, second, share = between_bins(clock, demand.step_s)

    def at(table: Floats) -> NDArray[np.floating]:
        between: NDArray[np.floating] = table[first] + (table[second] - table[first]) * share[:, None]
        return between

    expected = at(demand.node_flow) * (1 if rerouted is None else rerouted.node_change)
    little = LITTLE_FLOW * max(float(demand.node_flow.mean()), 1e-3)
    change = np.clip((values + little) / (expected + little), 1 / MAX_CHANGE, MAX_CHANGE)
    moved = (change[:, usual.senders] + change[:, usual.receivers]) / 2
    flow = at(demand.road_flow) * (1 if rerouted is None else rerouted.road_change)
    least: NDArray[np.floating] = np.minimum(flow * moved, np.minimum(*ends))
    return least


def closed_roads(usual: RoadNetwork, now: RoadNetwork) -> NDArray[np.bool_]:
    """[E] usual roads that another network of the same nodes lacks."""
    usual_keys, keys_now = (network.senders * usual.num_nodes + network.receivers for network in (usual, now))
    return ~np.isin(usual_keys, keys_now)
