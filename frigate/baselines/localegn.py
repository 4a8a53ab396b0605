"""LocaleGN: a recurrent graph network over the snapshots beside a GRU for each node (Li, Tang, Ma: Few-Sample Traffic
Prediction with Graph Networks using Locale as Relational Inductive Biases, IEEE T-ITS 2023, arXiv 2203.03965).

At snapshot t, with v = ReLU(W_v x_t), e = ReLU(W_e length), and the state h, g, u of nodes, roads and city, at first 0:

    g' = ReLU(Phi_e [e, g, v_s, h_s, v_r, h_r, u])                                   of a road s -> r
    h' = ReLU(Phi_v [v, h, sum of g' of the roads out, sum of g' of the roads in, u])
    u' = ReLU(Phi_u [u, mean of g', mean of h'])

and the forecast is MLP(h_T) + W_o GRU(x_1 .. x_T).

These are the equations of the authors' code (MingxiLii/LocaleGN); of the paper, only the abstract was available. The
Frigate paper seems to have run that code unchanged: it has the 333,636 parameters of that paper's table, 246,144 of
them in a second graph network that is never called and is omitted here. By default that code returns only the GRU's
part; here the forecast is the sum.

Changes, with reasons:
- All H steps from the readout (theirs: one), and all inputs of `DeepBaseline` (theirs: the reading). T is free.
- `layers` graph networks in a snapshot (theirs: 1), each with its own weights and state; the upper one reads v + h' and
  g' of the lower, as in the authors' residual variant.
- The length of a road is log(1 + length / median); theirs is divided by the longest road, which differs between cities.
- Roads may change between snapshots: g belongs to a pair of nodes and is 0 while there is no road between them.
- The mean of h' is over nodes with a road, so that a removed node does not count.
- Phi_e is applied in parts, the nodes' parts at the nodes, so that backward keeps only g' of each road and snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from frigate.baselines.deep import DeepBaseline
from frigate.config import BaselineSettings, Task
from frigate.nn.batch import Batch
from frigate.nn.model import MLP
from frigate.nn.scaling import Scaling
from frigate.nn.topology import Topology


class GraphState(NamedTuple):
    """The state of a graph network."""

    nodes: Tensor  # h [N,B,D]
    roads: Tensor  # g [E,B,D]
    city: Tensor  # u [B,D]


@dataclass(frozen=True)
class EdgeIndex:
    """The roads of all X topologies, each pair of nodes once; or the roads of one snapshot in X windows."""

    senders: Tensor  # [E]
    receivers: Tensor  # [E]
    length: Tensor  # [E,X,1] log(1 + length / median road)
    there: Tensor  # [E,X,1] 1 where the road exists
    connected: Tensor  # [N,X,1] 1 where the node has a road
    change: bool  # whether there are several topologies

    @classmethod
    def of(cls, topologies: Sequence[Topology], *, length_scale_m: float) -> EdgeIndex:
        N = topologies[0].num_nodes
        keys = [topology.senders * N + topology.receivers for topology in topologies]
        union = keys[0] if len(keys) == 1 else torch.unique(torch.cat(keys))
        length = []
        there = []
        connected = []
        for topology, key in zip(topologies, keys, strict=True):
            at = torch.searchsorted(union, key)
            nothing = topology.length_m.new_zeros(len(union))
            length.append(nothing.index_copy(0, at, torch.log1p(topology.length_m / length_scale_m)))
            there.append(nothing.index_fill(0, at, 1))
            ends = torch.cat([topology.senders, topology.receivers])
            connected.append(topology.length_m.new_zeros(N).index_fill(0, ends, 1))
        parts = [torch.stack(part, dim=1)[:, :, None] for part in (length, there, connected)]
        return cls(union // N, union % N, parts[0], parts[1], parts[2], change=len(topologies) > 1)

    def of_snapshot(self, topology_of: Tensor) -> EdgeIndex:
        """The roads of a snapshot; `topology_of` [B] gives each window's topology."""
        if not self.change:
            return self
        which = topology_of.to(self.senders.device)
        return replace(
            self, length=self.length[:, which], there=self.there[:, which], connected=self.connected[:, which]
        )


class GraphNetwork(nn.Module):
    """One step of the recurrence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.road = nn.Linear(7 * width, width)  # Phi_e
        self.node = nn.Linear(5 * width, width)  # Phi_v
        self.city = nn.Linear(3 * width, width)  # Phi_u

    def forward(self, nodes: Tensor, edges: Tensor, state: GraphState, roads: EdgeIndex) -> GraphState:
        """From nodes v [N,B,D] and edges e [E,1 or B,D]."""
        D = self.width
        of_edge, of_state, *of_ends, of_city = torch.split(self.road.weight, [D, D, 2 * D, 2 * D, D], dim=1)
        both = torch.cat([nodes, state.nodes], dim=-1)
        sender, receiver = functional.linear(both, torch.cat(of_ends)).chunk(2, dim=-1)
        g = functional.linear(edges, of_edge, self.road.bias) + functional.linear(state.city, of_city)
        g = g + functional.linear(state.roads, of_state)
        g = g + sender.index_select(0, roads.senders) + receiver.index_select(0, roads.receivers)
        g = torch.relu(g)
        if roads.change:
            g = g * roads.there.to(g.dtype)

        of_node, of_sums, of_city = torch.split(self.node.weight, [2 * D, 2 * D, D], dim=1)
        wide = g.to(torch.promote_types(g.dtype, torch.float32))  # convert once: index_add saves its input for backward
        nothing = wide.new_zeros(nodes.shape)
        sums = torch.cat([nothing.index_add(0, ends, wide) for ends in (roads.senders, roads.receivers)], dim=-1)
        h = functional.linear(both, of_node, self.node.bias) + functional.linear(sums, of_sums)
        h = torch.relu(h + functional.linear(state.city, of_city))

        means = [mean(g, roads.there), mean(h * roads.connected.to(h.dtype), roads.connected)]
        u = torch.relu(self.city(torch.cat([state.city.to(means[0].dtype), *means], dim=-1)))
        return GraphState(h, g, u)


def mean(part: Tensor, counted: Tensor) -> Tensor:
    """[B,D] mean of part [X,B,D] over the counted entries [X,1 or B,1] (part is 0 elsewhere); 0 if there are none."""
    wide = torch.promote_types(part.dtype, torch.float32)
    return part.sum(dim=0, dtype=wide) / counted.sum(dim=0, dtype=wide).clamp(min=1)


class LocaleGN(DeepBaseline):
    """`layers` graph networks of width D."""

    def __init__(self, settings: BaselineSettings, task: Task, scaling: Scaling) -> None:
        super().__init__(settings, task, scaling)
        D = settings.width
        self.node_encoder = nn.Linear(self.inputs, D)  # W_v
        self.road_encoder = nn.Linear(1, D)  # W_e
        self.networks = nn.ModuleList([GraphNetwork(D) for _ in range(settings.layers)])
        self.decoder = MLP(D, D, task.horizon)
        self.history = nn.GRU(self.inputs, D, batch_first=True)
        self.of_history = nn.Linear(D, task.horizon)  # W_o

    def forecast(self, x: Tensor, batch: Batch) -> Tensor:
        self.require_trained(batch, "horizon")
        N, B, T, F = x.shape
        alone = self.history(x.reshape(N * B, T, F))[1][0].view(N, B, -1)
        forecast: Tensor = self.decoder(self.neighbourhood(x, batch)) + self.of_history(alone)
        return forecast

    def neighbourhood(self, x: Tensor, batch: Batch) -> Tensor:
        """h of the topmost graph network [N,B,D] after the last snapshot."""
        encoded = torch.relu(self.node_encoder(x))  # [N,B,T,D]
        roads = EdgeIndex.of(batch.topologies, length_scale_m=self.length_scale_m)
        N, B, T, D = encoded.shape
        nothing = encoded.new_zeros(1, 1, 1)
        start = GraphState(nothing.expand(N, B, D), nothing.expand(len(roads.senders), B, D), nothing[0].expand(B, D))
        states = [start] * len(self.networks)
        for t in range(T):
            open_roads = roads.of_snapshot(batch.topology_of[:, t])
            nodes = encoded[:, :, t]
            edges = torch.relu(self.road_encoder(open_roads.length))
            for i, network in enumerate(self.networks):
                states[i] = network(nodes, edges, states[i], open_roads)
                nodes = nodes + states[i].nodes
                edges = states[i].roads
        return states[-1].nodes

    def training_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        D = self.settings.width
        layers = self.settings.layers
        of_nodes = nodes * (self.inputs + (10 + 7 * layers) * D)  # input, GRU and encoder; [v, h], sums, h
        of_roads = edges * 4 * layers * D  # g, masked g, and that in float32, which counts twice
        return past * (of_nodes + of_roads) + nodes * (4 * D + 2 * horizon)
