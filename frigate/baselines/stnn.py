"""STNN: each node is forecast from its local spacetime, with weights that all nodes share (Yang, Liu, Zhao: Space Meets
Time: Local Spacetime Neural Network for Traffic Flow Forecasting, ICDM 2021, arXiv 2109.05225).

The local spacetime of a node is an image: its M = 15 nearest nodes, itself first, by T snapshots. Each pixel, an event,
has the inputs there and the nearness of its node. There are `layers` blocks; in each, with Z the events:

    Z = W_0 Z
    A = Z + gamma * softmax(Q K^T) V                  attention among all M*T events; Q, K of C/8, V of C channels
    Z = s(W_r Z + s(W_c [s(A * region), s(A * time), s(A * space)]))     convolutions 3 x 3, 1 x 3 and 3 x 1

with s the leaky ReLU of slope 0.2; then dropout, and one linear layer from all M*T*C numbers to the H steps ahead,
which fixes T and H.

These are the equations of the authors' code (songyangme/STNN); of the paper, only abstract and introduction were
available. The Frigate paper seems to have run that code unchanged: it has the 313,906 parameters of that paper's table,
69,132 of them in a linear layer that is never called and is omitted here.

Changes, with reasons:
- Their nodes are sensors, ours intersections: a local spacetime has nodes within HOPS roads, upstream or downstream,
  nearest by road first. Ties are broken by the length of the roads at a node, not by the order of the nodes. Nearness
  is exp(-(distance / sigma)^2), sigma twice the median road, as in the other baselines.
- All inputs of `DeepBaseline`; theirs uses the reading and the time of day.
- The nodes are chosen by the roads of the last snapshot (theirs: the nearest at any time, which needs the future).
  Nearness follows each snapshot's own roads, and rows without a node are 0, as in theirs.
- Channels double from block to block up to `width`: 32 and 64, as in theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from frigate.baselines.deep import DeepBaseline
from frigate.config import BaselineSettings, Task
from frigate.nn.batch import Batch
from frigate.nn.scaling import Scaling
from frigate.nn.topology import Topology

CONTEXT = 15  # M, the nodes of a local spacetime
HOPS = 3
SLOPE = 0.2
DROPOUT = 0.3


@dataclass(frozen=True)
class Locale:
    """The nearest nodes of each node in a topology."""

    nodes: Tensor  # [N,M] the nearest nodes, itself first; padded with N
    pairs: Tensor  # [P] node * N + other node, ascending, for all within HOPS roads
    nearness: Tensor  # [P] in [0, 1]

    @classmethod
    def of(cls, topology: Topology, *, length_scale_m: float) -> Locale:
        # Cached for later batches, training included, so it must not be an inference tensor.
        with torch.inference_mode(False), torch.no_grad():
            pairs, distance_m = within_hops(topology)
            return cls(
                nearest(topology, pairs, distance_m), pairs, torch.exp(-((distance_m / (2 * length_scale_m)) ** 2))
            )

    def nearness_of(self, nodes: Tensor) -> Tensor:
        """[N,M] nearness of the nodes [N,M] of any locale; 0 if they are not within HOPS roads here."""
        N = len(nodes)
        wanted = torch.arange(N, device=nodes.device)[:, None] * N + nodes
        at = torch.searchsorted(self.pairs, wanted).clamp(max=len(self.pairs) - 1)
        return self.nearness[at].where((self.pairs[at] == wanted) & (nodes < N), 0.0)


def within_hops(topology: Topology) -> tuple[Tensor, Tensor]:
    """Pairs v * N + u, ascending, of nodes within HOPS roads in either direction, and the shorter distance."""
    N = topology.num_nodes
    device = topology.senders.device
    pairs = torch.arange(N, device=device) * (N + 1)  # each node and itself
    distance_m = topology.length_m.new_zeros(N)
    roads_out = topology.out_start.diff()
    for _ in range(HOPS):
        last = pairs % N
        count = roads_out[last]
        which = torch.repeat_interleave(torch.arange(len(pairs), device=device), count)
        nth = torch.arange(len(which), device=device) - (count.cumsum(0) - count)[which]
        road = topology.out_start[last[which]] + nth
        longer = pairs[which] - last[which] + topology.receivers[road]
        pairs, distance_m = _shortest(
            torch.cat([pairs, longer]), torch.cat([distance_m, distance_m[which] + topology.length_m[road]])
        )
    back = pairs % N * N + pairs // N
    return _shortest(torch.cat([pairs, back]), distance_m.repeat(2))


def _shortest(pairs: Tensor, distance_m: Tensor) -> tuple[Tensor, Tensor]:
    pairs, which = torch.unique(pairs, return_inverse=True)
    far = distance_m.new_full((len(pairs),), torch.inf)
    return pairs, far.scatter_reduce(0, which, distance_m, "amin")


def nearest(topology: Topology, pairs: Tensor, distance_m: Tensor) -> Tensor:
    """[N,M] the nearest of each node's pairs, padded with N."""
    N = topology.num_nodes
    device = pairs.device
    node = pairs // N
    other = pairs % N
    order = torch.arange(len(pairs), device=device)
    for ends in (topology.senders, topology.receivers):  # tie-break: length of the roads at the other node
        at_ends = topology.length_m.new_zeros(N).index_add(0, ends, topology.length_m)
        order = order[torch.argsort(at_ends[other][order], stable=True)]
    order = order[torch.argsort(distance_m[order], stable=True)]
    order = order[torch.argsort(node[order], stable=True)]
    node = node[order]
    other = other[order]
    first = torch.searchsorted(node, torch.arange(N, device=device))
    place = torch.arange(len(node), device=device) - first[node]
    near = place < CONTEXT
    found = torch.full((N, CONTEXT), N, device=device)
    found[node[near], place[near]] = other[near]
    return found


class STNNBlock(nn.Module):
    """One block, on pictures [S,M,T,channels]."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        C = self.channels = channels
        self.start = nn.Linear(inputs, C)  # W_0
        self.query, self.key = (nn.Linear(C, max(1, C // 8)) for _ in range(2))
        self.value = nn.Linear(C, C)
        self.gamma = nn.Parameter(torch.zeros(1))
        self.region = nn.Conv2d(C, C, (3, 3), padding=(1, 1))
        self.time = nn.Conv2d(C, C, (1, 3), padding=(0, 1))
        self.space = nn.Conv2d(C, C, (3, 1), padding=(1, 0))
        self.condense = nn.Linear(3 * C, C)  # W_c
        self.residual = nn.Linear(C, C)  # W_r

    def forward(self, z: Tensor) -> Tensor:
        z = self.start(z)
        a = (z + self.gamma.to(z.dtype) * self.attention(z)).permute(0, 3, 1, 2)  # channels last, for a convolution
        convolved = [leaky(convolution(a)).permute(0, 2, 3, 1) for convolution in (self.region, self.time, self.space)]
        # W_c by columns: concatenating the three would copy them.
        region, time, space = map(functional.linear, convolved, self.condense.weight.chunk(3, dim=1))
        local = leaky(region + time + space + self.condense.bias.to(z.dtype))
        return leaky(self.residual(z) + local)

    def attention(self, z: Tensor) -> Tensor:
        S, M, T, C = z.shape
        value = self.value(z)
        # The fused kernels, which never store (M*T)^2 numbers, need one width for all three; zeros change no product.
        parts = [functional.pad(part(z), (0, C - part.out_features)) for part in (self.query, self.key)]
        q, k, v = (part.view(S, 1, M * T, C) for part in (*parts, value))
        return functional.scaled_dot_product_attention(q, k, v, scale=1.0).view(S, M, T, C)


def leaky(z: Tensor) -> Tensor:
    return functional.leaky_relu(z, SLOPE)


class STNN(DeepBaseline):
    """`layers` blocks; `width` is the number of channels of the last."""

    pictures_at_once = 32_768  # the GPU's attention kernel is limited to 65,535

    def __init__(self, settings: BaselineSettings, task: Task, scaling: Scaling) -> None:
        super().__init__(settings, task, scaling)
        self.blocks = nn.ModuleList()
        channels = self.inputs + 1
        for i in reversed(range(settings.layers)):
            self.blocks.append(STNNBlock(channels, max(1, settings.width // 2**i)))
            channels = max(1, settings.width // 2**i)
        self.dropout = nn.Dropout(DROPOUT)
        self.readout = nn.Linear(CONTEXT * task.past * channels, task.horizon)
        self.locales: WeakKeyDictionary[Topology, Locale] = WeakKeyDictionary()

    def forecast(self, x: Tensor, batch: Batch) -> Tensor:
        self.require_trained(batch, "past", "horizon")
        steps = []
        for events in self.pictures(x, batch):
            z = events.flatten(0, 1)  # [S,M,T,F+1]
            for block in self.blocks:
                z = block(z)
            steps.append(self.readout(self.dropout(z).flatten(1)))
        return torch.cat(steps).view(*x.shape[:2], -1)

    def pictures(self, x: Tensor, batch: Batch) -> Iterator[Tensor]:
        """The local spacetimes [n,B,M,T,F+1] of the nodes, in chunks of nodes."""
        _, B, T, F = x.shape
        nodes, nearness = self.context(batch)
        with_none = torch.cat([x, x.new_zeros(1, B, T, F)])
        windows = torch.arange(B, device=x.device)[:, None]
        size = max(1, self.pictures_at_once // B)
        for some, near in zip(torch.split(nodes, size), torch.split(nearness, size), strict=True):
            events = with_none[some, windows]  # [n,B,M,T,F]
            yield torch.cat([events, near.to(x.dtype).expand(*events.shape[:-1])[..., None]], dim=-1)

    def context(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The nodes [N,B,M] of each node's local spacetime, and their nearness at each snapshot [N,B,M,T].

        If all snapshots have one topology, B and T of the nearness are 1.
        """
        locales = [self.locale(topology) for topology in batch.topologies]
        if len(locales) == 1:
            nodes = locales[0].nodes
            return nodes[:, None].expand(-1, batch.num_windows, -1), locales[0].nearness_of(nodes)[:, None, :, None]
        J = len(locales)
        device = batch.values.device
        last = batch.topology_of[:, -1]
        used, which = torch.unique(last[:, None] * J + batch.topology_of, return_inverse=True)
        tables = [locales[i % J].nearness_of(locales[i // J].nodes) for i in used.tolist()]
        nearness = torch.stack(tables)[which.to(device)].permute(2, 0, 3, 1)
        return torch.stack([locales[i].nodes for i in last.tolist()], dim=1), nearness

    def locale(self, topology: Topology) -> Locale:
        """Cached per topology, because computing it makes the host wait for the device."""
        if topology not in self.locales:
            self.locales[topology] = Locale.of(topology, length_scale_m=self.length_scale_m)
        return self.locales[topology]

    def training_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        channels = sum(block.channels for block in self.blocks if isinstance(block, STNNBlock))
        return nodes * (CONTEXT * past * (self.inputs + 1 + 16 * channels) + horizon)
