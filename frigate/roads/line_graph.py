"""The line graph of a network: its roads, and the turns from one into the next.

There is one rule for U-turns: they are allowed at dead ends only, where no other turn leads on. Trips are searched on
this graph; `frigate.roads.on_roads` puts a whole city on it. E roads, K turns.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import RoadNetwork
from frigate.draws import keys_of
from frigate.roads.features import travel_time_s


@dataclass(frozen=True)
class LineGraph:
    """Roads and the turns between them, sorted by the road they leave."""

    node_key: NDArray[np.uint64]  # [N] stands for the node in a draw
    senders: NDArray[np.int64]  # [E]
    receivers: NDArray[np.int64]  # [E]
    length_m: NDArray[np.float64]  # [E]
    time_s: NDArray[np.float64]  # [E] to drive the road
    turn_start: NDArray[np.int64]  # [E+1] the turns out of road e are turn_start[e] .. turn_start[e+1]
    turn_into: NDArray[np.int32]  # [K] the road a turn leads into
    turn_angle: NDArray[np.float64]  # [K] 1 - cos of the angle: 0 straight on, 1 for a right angle, 2 straight back
    nodes_are_roads: bool = False  # then whoever starts or ends at a node has driven on it

    @property
    def num_nodes(self) -> int:
        return len(self.node_key)

    @property
    def num_roads(self) -> int:
        return len(self.senders)

    @property
    def road_key(self) -> NDArray[np.uint64]:
        """[E] stands for the road in a draw: it depends on the ids of its ends only."""
        return self.node_key[self.senders] * np.uint64(0x9E3779B97F4A7C15) + self.node_key[self.receivers]

    @property
    def digest(self) -> str:
        """16 hex digits that change with any node, road or turn, and with the order of nodes and roads."""
        arrays = (np.ascontiguousarray(getattr(self, field.name)).tobytes() for field in fields(self))
        return hashlib.sha256(b"".join([str(self.num_nodes).encode(), *arrays])).hexdigest()[:16]


def line_graph(
    network: RoadNetwork,
    forbidden_turns: NDArray[np.int64] | None = None,
    *,
    also: tuple[RoadNetwork, NDArray[np.int64]] | None = None,
    closed: NDArray[np.bool_] | None = None,
) -> LineGraph:
    """The roads of a network and the allowed turns between them.

    Parameters
    ----------
    network
        The roads, all open.
    forbidden_turns
        [K,3] rows of nodes: from the road source -> via into the road via -> target.
    also
        Another network with the same nodes, and the rows of its roads to append after those of the first.
    closed
        [E] roads, of all, that no turn leads into or out of; they keep their places.
    """
    N = network.num_nodes
    senders = network.senders
    receivers = network.receivers
    length_m = network.length_m
    time_s = travel_time_s(network)
    if also is not None:
        other, more = also
        senders = np.concatenate([senders, other.senders[more]])
        receivers = np.concatenate([receivers, other.receivers[more]])
        length_m = np.concatenate([length_m, other.length_m[more]])
        time_s = np.concatenate([time_s, travel_time_s(other)[more]])
    left, entered = every_turn(senders, receivers)
    allowed = np.ones(len(left), bool)
    if forbidden_turns is not None and len(forbidden_turns):
        turn = np.stack([senders[left], receivers[left], receivers[entered]], axis=1)
        key = (turn[:, 0] * N + turn[:, 1]) * N + turn[:, 2]
        banned = (forbidden_turns[:, 0] * N + forbidden_turns[:, 1]) * N + forbidden_turns[:, 2]
        allowed = ~np.isin(key, banned)
    if closed is not None:
        allowed &= ~(closed[left] | closed[entered])
    left = left[allowed]
    entered = entered[allowed]
    kept = onward(senders, receivers, left, entered)
    left = left[kept]
    entered = entered[kept]
    x = np.radians(network.lon) * np.cos(np.radians(network.lat))
    y = np.radians(network.lat)
    dx = x[receivers] - x[senders]
    dy = y[receivers] - y[senders]
    norm = np.maximum(np.hypot(dx, dy), 1e-12)
    cosine = (dx[left] * dx[entered] + dy[left] * dy[entered]) / (norm[left] * norm[entered])
    return LineGraph(
        node_key=keys_of(network.node_ids),
        senders=senders,
        receivers=receivers,
        length_m=length_m,
        time_s=time_s,
        turn_start=np.searchsorted(left, np.arange(len(senders) + 1)),
        turn_into=entered.astype(np.int32),
        turn_angle=1 - np.clip(cosine, -1, 1),
        nodes_are_roads=len(network.lines) > 0,
    )


def every_turn(senders: NDArray[np.int64], receivers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every turn, U-turns included: the roads left and entered [K], sorted by the road left."""
    order = np.argsort(senders, kind="stable")
    begins = np.searchsorted(senders[order], receivers, side="left")
    choices = np.searchsorted(senders[order], receivers, side="right") - begins
    left = np.repeat(np.arange(len(senders)), choices)
    nth = np.arange(len(left)) - np.repeat(np.cumsum(choices) - choices, choices)
    return left, order[np.repeat(begins, choices) + nth]


def onward(
    senders: NDArray[np.int64],
    receivers: NDArray[np.int64],
    left: NDArray[np.int64],
    entered: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """[K] which of these turns are no U-turns, or are U-turns at a dead end."""
    back = receivers[entered] == senders[left]
    kept: NDArray[np.bool_] = ~back | dead_ends(left[~back], len(senders))[left]
    return kept


def dead_ends(left: NDArray[np.int64], num_roads: int) -> NDArray[np.bool_]:
    """[E] the roads that none of these turns onward leaves: one may turn round at their ends, and nowhere else."""
    ends: NDArray[np.bool_] = np.bincount(left, minlength=num_roads) == 0
    return ends
