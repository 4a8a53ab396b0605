"""Cities with little in them, or with much that is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from frigate.city.city import City
from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import RoadNetworkStream, make_stream
from tests.support.chains import city_of, noise
from tests.support.towns import START_S


def spoilt(stream: RoadNetworkStream) -> RoadNetworkStream:
    """A third of the nodes with sensors, one of them dead, one stuck, one silent, one with a gap."""
    observed = stream.observed.copy()
    values = stream.values.copy()
    S, N = values.shape
    observed[:, N // 3 :] = False
    observed[:, : N // 3] = True
    values[:, 0], values[10:150, 1] = 0, 5
    observed[S // 2 :, 2], observed[20:90, 3] = False, False
    return replace(stream, values=np.where(observed, values, 0).astype(np.float32), observed=observed)


def lonely() -> City:
    network = RoadNetwork(np.array([7]), np.array([6.1]), np.array([49.6]), Edges.none())
    return City("one", make_stream(noise(30, 1), network, start_s=START_S, step_s=60))


def roadless() -> City:
    network = RoadNetwork(np.arange(5), 6.1 + np.arange(5) / 100, np.full(5, 49.6), Edges.none())
    values = np.full((30, 5), np.nan)
    values[:, 0] = 3
    return City("no roads", make_stream(values, network, start_s=START_S, step_s=60))


def empty() -> City:
    return city_of(np.zeros((0, 4)))


def gone() -> City:
    stream = city_of(noise(30, 4)).stream
    return City("gone", stream.on(stream.network.remove_nodes(stream.node_ids.tolist())))


def years() -> City:
    return city_of(noise(60, 2), step_s=86_400 * 30)


ODD_CITIES = (lonely, roadless, empty, gone, years)
