"""STGCN: gated temporal convolutions around a Chebyshev graph convolution (Yu, Yin, Zhu, IJCAI 2018).

A block is v' = norm(G1 *T relu(Theta *G (G0 *T v))) (their eq. 8): a gated convolution over 3 snapshots, a graph
convolution of order 3 through a bottleneck of 16 channels, another gated convolution. After `layers` blocks (theirs:
2), each of which consumes 4 snapshots, a gated convolution over the remaining snapshots and a linear layer follow,
which fix T and H. As in the authors' code, every convolution has a residual: the last snapshots of its input, padded
with zeros to more channels or mapped to fewer.

Changes, with reasons:
- Theta *G v is two sparse products with the roads, never a matrix of all pairs of nodes.
- The Laplacian is scaled with lambda_max = 2, the bound for any network, so that weights mean the same on every network
  and no eigenvalues are needed. Then L~ = 2 L / lambda_max - I = -D^-1/2 W D^-1/2.
- W has the roads in both directions, weighted by exp(-(length / sigma)^2) as in theirs, without a cut-off.
- Layer norm over the channels of a node and snapshot. Theirs is over all nodes, with two parameters per node.
- All H steps at once. Theirs forecasts one step and feeds it back as a reading, which a node without a sensor lacks.
- The readout has a bias per step, not per node.
- Both temporal convolutions are gated, as in the paper; in the authors' code, the second has a ReLU.
- Mask and calendar are additional inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from frigate.baselines.deep import DeepBaseline, on_roads, symmetric
from frigate.config import BaselineSettings, Task
from frigate.errors import SettingsError
from frigate.nn import ops
from frigate.nn.batch import Batch
from frigate.nn.scaling import Scaling

KERNEL = 3  # snapshots per temporal convolution
TAKEN = 2 * (KERNEL - 1)  # snapshots that a block consumes
ORDER = 3  # of the Chebyshev polynomial: T_0, T_1, T_2
BOTTLENECK = 16  # channels of the graph convolution


class STGCN(DeepBaseline):
    def __init__(self, settings: BaselineSettings, task: Task, scaling: Scaling) -> None:
        super().__init__(settings, task, scaling)
        D = settings.width
        left = task.past - TAKEN * settings.layers
        if left < 1:
            fewer = (task.past - 1) // TAKEN
            raise SettingsError(
                f"past = {task.past}: each of STGCN's {settings.layers} blocks consumes {TAKEN} snapshots, and one "
                f"must remain. Use past = {TAKEN * settings.layers + 1} or more"
                + (f", or layers = {fewer}" if fewer else "")
            )
        self.blocks = nn.ModuleList(STGCNBlock(D if i else self.inputs, D) for i in range(settings.layers))
        self.last = GatedTemporal(D, D, kernel=left)
        self.norm = nn.LayerNorm(D)
        self.readout = nn.Linear(D, task.horizon)

    def forecast(self, x: Tensor, batch: Batch) -> Tensor:
        self.require_trained(batch, "past", "horizon")
        matrices = [symmetric(topology, self.length_scale_m) for topology in batch.topologies]

        def spread(h: Tensor) -> Tensor:
            """D^-1/2 W D^-1/2 h for h [N,B,T',C], where each step uses the roads of its last snapshot."""
            N, B, left, C = h.shape
            last_seen = batch.topology_of[:, -left:].reshape(-1)
            columns = h.reshape(N, B * left, C)
            return on_roads(batch, last_seen, columns, lambda x, i: ops.sparse_sum(matrices[i], x)).view_as(h)

        h = x
        for block in self.blocks:
            h = block(h, spread)
        h = self.last(h).squeeze(2)
        steps: Tensor = self.readout(self.norm(h).to(h.dtype))  # autocast normalises in fp32
        return steps

    def training_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        # A gated convolution saves its slices, both factors and the product; a norm its input, in fp32.
        D = self.settings.width
        inputs = self.inputs
        numbers = 0
        left = past
        for _ in self.blocks:
            left -= KERNEL - 1
            numbers += left * (KERNEL * inputs + 3 * D + 2 * BOTTLENECK)
            left -= KERNEL - 1
            numbers += left * (KERNEL * BOTTLENECK + 6 * D)
            inputs = D
        return nodes * (numbers + left * D + 6 * D + horizon)


class STGCNBlock(nn.Module):
    """ST-Conv: time, roads, time."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.before = GatedTemporal(inputs, width, kernel=KERNEL)
        self.roads = Chebyshev(width, BOTTLENECK)
        self.after = GatedTemporal(BOTTLENECK, width, kernel=KERNEL)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, spread: Callable[[Tensor], Tensor]) -> Tensor:
        """[N,B,T-4,D]"""
        h: Tensor = self.after(self.roads(self.before(x), spread))
        normalised: Tensor = self.norm(h)
        return normalised.to(h.dtype)  # autocast normalises in fp32


class GatedTemporal(nn.Module):
    """(P + residual) * sigmoid(Q), both convolutions over `kernel` snapshots: no padding, T' = T - kernel + 1."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.linear = nn.Linear(kernel * inputs, 2 * outputs)
        self.residual = Residual(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[N,B,T',outputs] from x [N,B,T,inputs]."""
        left = x.shape[2] - self.kernel + 1
        slices = torch.cat([x[:, :, k : k + left] for k in range(self.kernel)], dim=-1)
        value, gate = self.linear(slices).chunk(2, dim=-1)
        gated: Tensor = (value + self.residual(x[:, :, -left:]).to(value.dtype)) * torch.sigmoid(gate)
        return gated


class Chebyshev(nn.Module):
    """relu(Theta *G h + residual) with Theta *G h = sum over k of T_k(L~) h Theta_k and L~ = -S = -D^-1/2 W D^-1/2.

    Channels are mixed first, so that the products with the roads have few channels. With z_k = h Theta_k, T_0 = 1,
    T_1 = -S and T_2 = 2 S S - 1, the sum is z_0 - z_2 - S (z_1 - 2 S z_2).
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.theta = nn.Linear(inputs, ORDER * outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.residual = Residual(inputs, outputs)

    def forward(self, h: Tensor, spread: Callable[[Tensor], Tensor]) -> Tensor:
        z_0, z_1, z_2 = self.theta(h).chunk(ORDER, dim=-1)
        mixed = z_0 - z_2 - spread(z_1 - 2 * spread(z_2))
        return torch.relu(mixed + self.bias.to(mixed.dtype) + self.residual(h).to(mixed.dtype))


class Residual(nn.Module):
    """The input with as many channels as the output: mapped to fewer, or padded with zeros."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.missing = max(0, outputs - inputs)
        self.linear = nn.Linear(inputs, outputs, bias=False) if inputs > outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        fewer: Tensor = self.linear(x)
        return functional.pad(fewer, (0, self.missing)) if self.missing else fewer
