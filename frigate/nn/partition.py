"""Parts of a network: some nodes plus everything their forecast reads, so that memory does not grow with the network.

A part gives its core nodes the same forecast as the whole network would, up to rounding. Around the core is a halo: one
ring of nodes per layer, and the sensors that the kernel mean reads, wherever they are. Training uses one part per step
(`TrainSettings.parts`); forecasting goes through the network block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.nn.batch import Batch
from frigate.nn.forecast_model import ForecastModel, Reach
from frigate.nn.scaling import NEAR_SENSORS
from frigate.nn.topology import Topology, index_roads


@dataclass(frozen=True)
class Part:
    """The nodes and roads of a part, numbered from 0, core nodes first."""

    core: Tensor  # [C] rows of the network
    nodes: Tensor  # [n] rows of the network
    topologies: tuple[Topology, ...]  # of these nodes
    cut_from: tuple[Topology, ...]  # of the whole network

    @property
    def num_nodes(self) -> int:
        return len(self.nodes)

    @property
    def num_edges(self) -> int:
        return max(topology.num_edges for topology in self.topologies)

    def to(self, device: torch.device) -> Part:
        topologies = tuple(topology.to(device) for topology in self.topologies)
        return Part(self.core.to(device), self.nodes.to(device), topologies, self.cut_from)

    def of(self, batch: Batch) -> Batch:
        """The batch restricted to this part: readings of its nodes, targets of its core nodes."""
        which = [next(i for i, t in enumerate(self.cut_from) if t is topology) for topology in batch.topologies]
        changed = batch.only("N", self.nodes)
        changed["topologies"] = tuple(self.topologies[i] for i in which)
        for name in {"target", "target_observed"} & changed.keys():
            changed[name] = getattr(batch, name)[:, :, self.core]
        return replace(batch, **changed)


def cut_parts(topologies: Sequence[Topology], areas: Iterable[NDArray[np.int64]], reach: Reach) -> Iterator[Part]:
    """One part per area (the rows of its core nodes), with everything those nodes read on any of the topologies."""
    host = [topology.to("cpu") for topology in topologies]
    for core in areas:
        local, rings = _rings(host, core, reach.hops)
        nodes = np.concatenate(rings)
        inner = len(nodes) - len(rings[-1])
        ball = len(nodes)
        if reach.sensors:
            near = [t.near_sensor.numpy()[nodes][np.isfinite(t.near_distance_m.numpy()[nodes])] for t in host]
            more = np.unique(np.concatenate(near))
            more = more[local[more] < 0]
            local[more] = ball + np.arange(len(more))
            nodes = np.concatenate([nodes, more])
        parts = tuple(_within(t, nodes, local, len(core), inner, ball if reach.sensors else None) for t in host)
        device = topologies[0].presence.device
        yield Part(torch.from_numpy(core), torch.from_numpy(nodes), parts, tuple(topologies)).to(device)


def _rings(
    topologies: Sequence[Topology], core: NDArray[np.int64], hops: int
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """The local index [N] of each node, -1 outside the part; and the rows of each ring: the core, one hop away, ..."""
    local = np.full(topologies[0].num_nodes, -1)
    local[core] = np.arange(len(core))
    rings = [core]
    count = len(core)
    for _ in range(hops):
        ends = []
        for topology in topologies:
            out, _ = _roads_at(topology.out_start, rings[-1])
            in_ = topology.in_order.numpy()[_roads_at(topology.in_start, rings[-1])[0]]
            ends += [topology.receivers.numpy()[out], topology.senders.numpy()[in_]]
        ring = np.unique(np.concatenate(ends))
        ring = ring[local[ring] < 0]
        local[ring] = count + np.arange(len(ring))
        rings.append(ring)
        count += len(ring)
    return local, rings


def _within(
    topology: Topology, nodes: NDArray[np.int64], local: NDArray[np.int64], core: int, inner: int, ball: int | None
) -> Topology:
    """The topology of a part: roads at the first `inner` nodes, neighbours of the `core`, sensors near the `ball`.

    Roads between two nodes of the last ring affect no encoding that is read. `ball` is None if no sensors are needed.
    """
    roads, _ = _roads_at(topology.out_start, nodes)
    senders = local[topology.senders.numpy()[roads]]
    receivers = local[topology.receivers.numpy()[roads]]
    keep = (np.minimum(senders, receivers) >= 0) & (np.minimum(senders, receivers) < inner)
    order = np.flatnonzero(keep)[np.lexsort((receivers[keep], senders[keep]))]
    roads = roads[order]
    senders = senders[order]
    receivers = receivers[order]
    first, last = (np.searchsorted(topology.neighbour_of.numpy(), nodes[:core] + more) for more in (0, 1))
    pairs, neighbour_of = _ranges(first, last)
    near, near_m = _near(topology, nodes, local, ball)
    rows = torch.from_numpy(nodes)
    return Topology(
        **index_roads(senders, receivers, len(nodes)),
        length_m=topology.length_m[torch.from_numpy(roads)],
        positions=topology.positions[rows],
        road_features=topology.road_features[rows],
        presence=topology.presence[rows],
        neighbour_of=torch.from_numpy(neighbour_of),
        neighbour=torch.from_numpy(local[topology.neighbour.numpy()[pairs]]),
        near_sensor=torch.from_numpy(near),
        near_distance_m=torch.from_numpy(near_m),
    )


def _near(
    topology: Topology, nodes: NDArray[np.int64], local: NDArray[np.int64], ball: int | None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    if ball is None:
        return np.zeros((len(nodes), 0), np.int64), np.zeros((len(nodes), 0), np.float32)
    metres = topology.near_distance_m.numpy()[nodes]
    metres[ball:] = np.inf
    sensor = local[topology.near_sensor.numpy()[nodes]]
    return np.where(np.isfinite(metres), sensor, np.arange(len(nodes))[:, None]), metres


def _roads_at(start: Tensor, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return _ranges(start.numpy()[rows], start.numpy()[rows + 1])


def _ranges(first: NDArray[np.int64], last: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ranges first[i] .. last[i] (exclusive), concatenated; and the range that each number belongs to."""
    each = last - first
    of = np.repeat(np.arange(len(each)), each)
    return first[of] + np.arange(len(of)) - (np.cumsum(each) - each)[of], of


def in_parts(model: ForecastModel, batch: Batch, parts: Iterable[Part]) -> Tensor:
    """[B,H,N] in the user's unit; 0 at nodes outside every part's core."""
    result = batch.values.new_zeros(batch.num_windows, batch.horizon, batch.num_nodes)
    for part in parts:
        result[:, :, part.core] = model.forecast_at(part.of(batch), slice(len(part.core)))
    return result


def forecast_bytes(model: ForecastModel, *, nodes: int, edges: int, past: int, horizon: int) -> int:
    """Bytes of activations per window at inference."""
    layers = model.forecast_activations(nodes=nodes, edges=edges, past=past, horizon=horizon)
    return 4 * (layers + past * (3 * NEAR_SENSORS * nodes + 8 * edges))  # the last term: kernel mean and moments
