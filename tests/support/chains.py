"""Cities along one street."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import make_stream
from tests.support.towns import START_S

FIVE_MIN = 300


def chain(num_nodes: int) -> RoadNetwork:
    """A street with a node every few metres, both ways."""
    rows = np.arange(num_nodes)
    ahead = Edges.of(rows[:-1], rows[1:], np.full(num_nodes - 1, 100.0))
    back = Edges.of(rows[1:], rows[:-1], np.full(num_nodes - 1, 100.0))
    ids = np.array([f"n{i}" for i in rows], np.str_)
    return RoadNetwork(ids, 6.1 + rows / 1000, np.full(num_nodes, 49.6), ahead.join(back))


def city_of(values: NDArray[np.floating], *, quantity: str = "speed", step_s: int = FIVE_MIN) -> City:
    """A chain with a column for each node; NaN is not observed."""
    network = chain(values.shape[1])
    return City("chain", make_stream(values, network, start_s=START_S, step_s=step_s, quantity=quantity))


def noise(snapshots: int, nodes: int = 2, *, quantity: str = "speed") -> NDArray[np.float64]:
    rng = np.random.default_rng(0)
    if quantity == "speed":
        return rng.normal(50, 5, (snapshots, nodes))
    return rng.poisson(9.0, (snapshots, nodes)).astype(np.float64) + 1
