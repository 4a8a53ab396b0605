"""Square grids of streets, and readings on them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.nn.topology import make_topology
from frigate.nn.windows import Windows
from frigate.roads.nearest_sensors import nearest_sensors
from tests.support.towns import windows_on


def grid_network(side: int, *, ids: str = "int") -> RoadNetwork:
    """Streets in a square grid, both directions, of uneven length."""
    node = np.arange(side * side).reshape(side, side)
    one = np.concatenate([node[:, :-1].ravel(), node[:-1].ravel()])
    other = np.concatenate([node[:, 1:].ravel(), node[1:].ravel()])
    length_m = np.random.default_rng(5).uniform(80, 160, len(one))
    edges = Edges.of(np.r_[one, other], np.r_[other, one], np.r_[length_m, length_m])
    north, east = np.divmod(np.arange(side * side), side)
    node_ids = np.arange(side * side) + 100 if ids == "int" else np.array([f"n{i}" for i in range(side * side)])
    return RoadNetwork(node_ids, 6.1 + east / 1000, 49.6 + north / 1000, edges)


def grid_stream(side: int = 6, *, snapshots: int = 300, silent: int = 0) -> RoadNetworkStream:
    """Counts at all but the last `silent` nodes."""
    values = np.random.default_rng(3).poisson(4, (snapshots, side * side)).astype(np.float32)
    if silent:
        values[:, -silent:] = np.nan
    return make_stream(values, grid_network(side), start_s=1_704_067_200, step_s=300)


START_S = 1_704_067_200  # Monday 2024-01-01 00:00 UTC


def tidal_grid(*, snapshots: int = 900, step_s: int = 1800, silent: float = 0.1, seed: int = 0) -> RoadNetworkStream:
    """Counts with a daily tide on a 6 x 6 grid; two roads at a corner are closed in the last twentieth."""
    rng = np.random.default_rng(seed)
    network = grid_network(6)
    hour = (np.arange(snapshots) * step_s / 3600) % 24
    tide = 1 + np.sin(np.pi * hour / 24)[:, None]
    values = rng.poisson(tide * rng.gamma(2, 3, 36)).astype(np.float32)
    observed = rng.random(values.shape) >= silent
    closed = network.close([(100, 101), (101, 100)])
    network_of = (np.arange(snapshots) >= snapshots * 19 // 20).astype(np.int64)
    return make_stream(
        values, [network, closed], start_s=START_S, step_s=step_s, observed=observed, network_of=network_of
    )


def windows_of(stream: RoadNetworkStream, sensors: NDArray[np.bool_], *, device: str = "cpu") -> Windows:
    made = []
    for network in stream.networks:
        near, near_m = nearest_sensors(network, sensors, count=32, cutoff_m=1e4)
        nothing = np.zeros((network.num_nodes, 0), np.float32)
        made.append(
            make_topology(network, positions=nothing, road_features=nothing, near_sensor=near, near_distance_m=near_m)
        )
    return windows_on(stream, made, device)
