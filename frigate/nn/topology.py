"""Topology: one road network as model input, with roads indexed for sums over neighbours."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from frigate.city.network import RoadNetwork
from frigate.nn.shapes import Shape, shapes_in


@dataclass(frozen=True)
class Topology:
    """The roads of one network, sorted by sender, then receiver, and the static features of its nodes.

    Two CSR indices: row v of the outgoing one lists the roads v -> u, row v of the incoming one the roads u -> v.
    """

    senders: Annotated[Tensor, Shape("E")]
    receivers: Annotated[Tensor, Shape("E")]
    length_m: Annotated[Tensor, Shape("E")]
    neighbour_of: Annotated[Tensor, Shape("P")]  # nodes v, and
    neighbour: Annotated[Tensor, Shape("P")]  # their in- or out-neighbours u, each pair once
    positions: Annotated[Tensor, Shape("NK")]  # in [0, 1]; 0 is infinitely far
    road_features: Annotated[Tensor, Shape("NR")]  # standardised
    near_sensor: Annotated[Tensor, Shape("NM")]  # the nearest other sensors by road; padded with the node itself
    near_distance_m: Annotated[Tensor, Shape("NM")]  # infinite in the padding
    presence: Annotated[Tensor, Shape("N", read=False)]  # bool
    out_start: Tensor  # [N+1] the roads that leave v are out_start[v] .. out_start[v+1]
    in_start: Tensor  # [N+1] the roads that arrive at v are in_order[in_start[v] .. in_start[v+1]]
    in_order: Annotated[Tensor, Shape("E", read=False)]  # roads sorted by receiver, then sender
    visit_order: Annotated[Tensor, Shape("N", read=False)]  # nodes in an order that keeps neighbours close together

    @property
    def num_nodes(self) -> int:
        return len(self.presence)

    @property
    def num_edges(self) -> int:
        return len(self.senders)

    def to(self, device: torch.device | str) -> Topology:
        return Topology(*(getattr(self, f.name).to(device) for f in fields(self)))


TOPOLOGY_SHAPES = shapes_in(Topology)


def make_topology(
    network: RoadNetwork,
    *,
    positions: NDArray[np.float32],
    road_features: NDArray[np.float32],
    near_sensor: NDArray[np.int64],
    near_distance_m: NDArray[np.float32],
) -> Topology:
    """Convert a network to model input.

    Parameters
    ----------
    network : RoadNetwork
        Its roads may be in any order.
    positions : [N,K]
        Each node's position relative to the anchors.
    road_features : [N,R]
        Standardised road features.
    near_sensor, near_distance_m : [N,M]
        Each node's nearest sensors and their road distance; padded with -1 and infinity.
    """
    order = np.lexsort((network.receivers, network.senders))
    senders = network.senders[order]
    receivers = network.receivers[order]
    N = network.num_nodes
    pairs = np.unique(np.concatenate([senders * N + receivers, receivers * N + senders]))
    missing = near_sensor < 0
    return Topology(
        **index_roads(senders, receivers, N),
        length_m=torch.from_numpy(network.length_m[order].astype(np.float32)),
        positions=torch.from_numpy(positions),
        road_features=torch.from_numpy(road_features),
        presence=torch.from_numpy(network.present.copy()),
        neighbour_of=torch.from_numpy(pairs // N),
        neighbour=torch.from_numpy(pairs % N),
        near_sensor=torch.from_numpy(np.where(missing, np.arange(N)[:, None], near_sensor)),
        near_distance_m=torch.from_numpy(near_distance_m),
    )


def index_roads(senders: NDArray[np.int64], receivers: NDArray[np.int64], num_nodes: int) -> dict[str, Tensor]:
    """The fields of a Topology that depend only on its roads, which must be sorted by sender, then receiver."""
    rows = np.arange(num_nodes + 1)
    in_order = np.lexsort((senders, receivers))
    arrays = {
        "senders": senders,
        "receivers": receivers,
        "out_start": np.searchsorted(senders, rows),
        "in_start": np.searchsorted(receivers[in_order], rows),
        "in_order": in_order,
        "visit_order": _visit_order(senders, receivers, num_nodes),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _visit_order(senders: NDArray[np.int64], receivers: NDArray[np.int64], num_nodes: int) -> NDArray[np.int64]:
    """The nodes in an order that keeps neighbours close together (reverse Cuthill-McKee), for cache locality."""
    if len(senders) == 0:
        return np.arange(num_nodes)
    ones = np.ones(len(senders), np.int8)
    joined = csr_array((ones, (senders, receivers)), (num_nodes, num_nodes))
    return reverse_cuthill_mckee(joined + joined.T, symmetric_mode=True).astype(np.int64)
