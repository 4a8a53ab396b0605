"""What a city's record says, for its page: mean readings, the usual day, and the roads that change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import DAY_S, KIND, KINDS_OF_DAY, SECOND, wall_clock
from frigate.city.network import NodeId, RoadNetwork
from frigate.city.stream import RoadNetworkStream

BLOCK_CELLS = 16_000_000  # values read from the file at once
MIN_BIN_S = 900  # of the usual day

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Usual:
    """Mean readings."""

    of_node: Floats  # [N] NaN: no reading
    of_day: Floats  # [kinds of day,K] by time of day; NaN: no reading
    bin_s: int  # width of a time-of-day bin


def usual(stream: RoadNetworkStream) -> Usual:
    """The mean reading of each node, and of all nodes by kind of day and time of day."""
    S, N = stream.values.shape
    bin_s = min(DAY_S, max(MIN_BIN_S, stream.step_s))
    bins = DAY_S // bin_s
    clock = wall_clock(stream.times_s + stream.utc_offset_s)
    group = clock[:, KIND] * bins + clock[:, SECOND] // bin_s  # [S]
    sums = np.zeros(N)
    counts = np.zeros(N)
    of_day, count_of_day = (np.zeros(len(KINDS_OF_DAY) * bins) for _ in range(2))
    for first in range(0, S, max(1, BLOCK_CELLS // max(1, N))):
        part = slice(first, first + max(1, BLOCK_CELLS // max(1, N)))
        values = stream.values[part]
        observed = stream.observed[part]
        sums += values.sum(axis=0, dtype=np.float64)
        counts += observed.sum(axis=0)
        np.add.at(of_day, group[part], values.sum(axis=1, dtype=np.float64))
        np.add.at(count_of_day, group[part], observed.sum(axis=1))
    with np.errstate(invalid="ignore"):
        return Usual(sums / counts, (of_day / count_of_day).reshape(len(KINDS_OF_DAY), -1), bin_s)


# Roads that change


@dataclass(frozen=True)
class RecordedChange:
    """The roads that close and open at a snapshot. In a city on roads: its turns, and its roads by their own id."""

    time: str  # local
    closed: list[tuple[NodeId, NodeId]]
    opened: list[tuple[NodeId, NodeId]]
    closed_nodes: list[NodeId]
    opened_nodes: list[NodeId]


def road_changes(stream: RoadNetworkStream) -> list[RecordedChange]:
    """Every snapshot whose roads differ from those of the snapshot before."""
    keys = [_keys(network) for network in stream.networks]
    nodes = [_open_nodes(network) for network in stream.networks]
    ids = stream.node_ids.tolist()
    N = stream.num_nodes

    def named(roads: NDArray[np.int64], at: Bools) -> list[tuple[NodeId, NodeId]]:
        """Without those at nodes that close or open themselves."""
        ends = np.stack([roads // N, roads % N], axis=1)
        return [(ids[a], ids[b]) for a, b in ends[~at[ends].any(axis=1)].tolist()]

    changes = []
    for snapshot in (np.flatnonzero(np.diff(stream.network_of)) + 1).tolist():
        before, after = (int(stream.network_of[s]) for s in (snapshot - 1, snapshot))
        closed = np.setdiff1d(keys[before], keys[after])
        opened = np.setdiff1d(keys[after], keys[before])
        if len(closed) or len(opened):
            turned = nodes[before] != nodes[after]
            changes.append(
                RecordedChange(
                    stream.local_time(int(stream.times_s[snapshot])),
                    named(closed, turned),
                    named(opened, turned),
                    [ids[n] for n in np.flatnonzero(turned & nodes[before])],
                    [ids[n] for n in np.flatnonzero(turned & nodes[after])],
                )
            )
    return changes


def every_road(stream: RoadNetworkStream) -> RoadNetwork:
    """The network of all roads that are ever open, as they lie on the map."""
    return reduce(RoadNetwork.map_with, stream.networks).map


@dataclass(frozen=True)
class Changing:
    """What is not always open: for a time, or from some time on to the end."""

    for_a_time: Bools
    lasting: Bools

    @property
    def any(self) -> Bools:
        return self.for_a_time | self.lasting


def changing_roads(stream: RoadNetworkStream, every: RoadNetwork) -> Changing:
    """[E] which of all roads change."""
    key = _keys(every)
    return _changing(stream, [np.isin(key, _keys(network)) for network in stream.networks])


def changing_nodes(stream: RoadNetworkStream) -> Changing:
    """[N] which nodes close and open: in a city on roads, roads."""
    return _changing(stream, [_open_nodes(network) for network in stream.networks])


def _changing(stream: RoadNetworkStream, is_open: list[Bools]) -> Changing:
    first, last = (is_open[int(stream.network_of[end])] if stream.num_snapshots else is_open[-1] for end in (0, -1))
    ever = np.logical_or.reduce(is_open)
    always = np.logical_and.reduce(is_open)
    lasting = first != last
    return Changing(ever & ~always & ~lasting, lasting)


def _keys(network: RoadNetwork) -> NDArray[np.int64]:
    return network.senders * network.num_nodes + network.receivers


def _open_nodes(network: RoadNetwork) -> Bools:
    """[N] in a city on roads, those that are not closed by their own id. Elsewhere nodes do not count: roads do."""
    if not len(network.lines):
        return np.ones(network.num_nodes, bool)
    return np.asarray(network.passable & network.present)
