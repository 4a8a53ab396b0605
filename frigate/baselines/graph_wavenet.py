"""Graph WaveNet: gated dilated convolutions in time, diffusion over the roads (Wu et al., IJCAI 2019).

`layers` layers with dilations 1, 2, 1, 2, ... and kernels of 2: with 8 of them the last step sees 13 snapshots. A layer
is a gated temporal convolution (their eq. 8) with a skip connection to the readout, then a diffusion convolution (their
eq. 4, which is DCRNN's) with a residual. Shorter windows are padded on the left with missing readings, longer ones are
cut, so T is free; the readout fixes H.

Changes, with reasons:
- No adaptive adjacency matrix: its node embeddings belong to one network. The paper omits it too.
- LayerNorm over the channels instead of BatchNorm, whose running means belong to one network and one share of sensors,
  and which mixes the windows of a batch.
- The forecast reads only the last step, so all skip connections are one product there.
- No diffusion after the last layer: in the original, nothing reads it.
- A step uses the roads of its last snapshot; padded steps use those of the first.

247,756 parameters at width 32 with 8 layers and 12 steps ahead; the paper has 247,660. To match it, the last hidden
layer has 416 channels. The original has 512 (273,580 parameters); the paper's number is the original's without
diffusion.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from frigate.baselines.dcrnn import SUPPORTS, Diffusion
from frigate.baselines.deep import DeepBaseline
from frigate.config import BaselineSettings, Task
from frigate.nn.batch import Batch
from frigate.nn.scaling import Scaling

SKIP = 8  # width of the skip connections, in residual widths: 256
END = 13  # and of the last hidden layer: 416
DROPOUT = 0.3


class GatedTime(nn.Module):
    """tanh(filter) * sigmoid(gate) of a step and the one `dilation` before it (their eq. 8)."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.linear = nn.Linear(2 * width, 2 * width)  # both size-2 kernels as one product on two time slices

    def forward(self, x: Tensor) -> Tensor:
        """[N,B,T-dilation,D] from x [N,B,T,D]"""
        pairs = torch.cat([x[:, :, : -self.dilation], x[:, :, self.dilation :]], dim=-1)
        filtered, gate = self.linear(pairs).chunk(2, dim=-1)
        return torch.tanh(filtered) * torch.sigmoid(gate)


class DiffusionLayer(nn.Module):
    """Diffusion convolution (their eq. 4) with dropout, residual and norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(SUPPORTS * width, width)
        self.dropout = nn.Dropout(DROPOUT)
        self.norm = nn.LayerNorm(width)

    def forward(self, gated: Tensor, residual: Tensor, diffusion: Diffusion, topology_of: Tensor) -> Tensor:
        """[N,B,T,D] from `gated` and `residual` of that shape and the topology [B,T] of each step."""
        N, B, T, D = gated.shape
        spread = diffusion(gated.reshape(N, B * T, D), topology_of.reshape(-1)).view(N, B, T, -1)
        h: Tensor = self.norm(self.dropout(self.linear(spread)) + residual)
        return h.to(gated.dtype)  # autocast normalises in fp32


class GraphWaveNet(DeepBaseline):
    """Gated temporal convolutions with diffusion layers in between."""

    def __init__(self, settings: BaselineSettings, task: Task, scaling: Scaling) -> None:
        super().__init__(settings, task, scaling)
        D = settings.width
        L = settings.layers
        self.start = nn.Linear(self.inputs, D)
        self.times = nn.ModuleList([GatedTime(D, dilation) for dilation in dilations(L)])
        self.diffusions = nn.ModuleList([DiffusionLayer(D) for _ in range(L - 1)])
        self.skip = nn.Linear(L * D, SKIP * D)  # the sum of one 1x1 convolution for each layer
        self.end = nn.Linear(SKIP * D, END * D)
        self.readout = nn.Linear(END * D, task.horizon)

    @property
    def receptive_field(self) -> int:
        """The number of snapshots that the last step sees."""
        return 1 + sum(dilations(self.settings.layers))

    def training_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        D = self.settings.width
        steps = self.receptive_field
        numbers = steps * (self.inputs + D)
        for dilation in dilations(self.settings.layers):
            steps -= dilation
            # Two slices, filter and gate, the supports, dropout's output, and the norm's input and output in fp32.
            numbers += steps * D * (2 + 2 + SUPPORTS + 1 + 4)
        return nodes * (numbers + (self.settings.layers + SKIP + END) * D)

    def forecast(self, x: Tensor, batch: Batch) -> Tensor:
        self.require_trained(batch, "horizon")
        field = self.receptive_field
        missing = max(0, field - batch.past)
        x = functional.pad(x[:, :, -field:], (0, 0, missing, 0))
        topology_of = batch.topology_of[:, -field:]
        topology_of = torch.cat([topology_of[:, :1].expand(-1, missing), topology_of], dim=1)  # [B,field]
        diffusion = Diffusion(batch, self.length_scale_m)
        x = self.start(x)
        skips = []
        for i, time in enumerate(self.times):
            gated = time(x)
            skips.append(gated[:, :, -1])
            if i < len(self.diffusions):
                left = gated.shape[2]
                x = self.diffusions[i](gated, x[:, :, -left:], diffusion, topology_of[:, -left:])
        skip = torch.relu(self.skip(torch.cat(skips, dim=-1)))
        forecast: Tensor = self.readout(torch.relu(self.end(skip)))
        return forecast


def dilations(layers: int) -> list[int]:
    return [1 + i % 2 for i in range(layers)]
