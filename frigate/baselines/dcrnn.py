"""DCRNN: diffusion convolution inside a GRU, encoder and decoder (Li, Yu, Shahabi, Liu, ICLR 2018).

A diffusion convolution (their eq. 2) combines a node, K = 2 steps of a random walk along the roads and K steps against
them: five supports with the identity. Encoder and decoder each stack `layers` cells. T and H are free.

Changes, with reasons:
- Inputs: the reading, its mask and the calendar, because most nodes have no reading. The decoder gets the last value
  and the calendar of the step it forecasts.
- Powers of the walk, as in their equation; their code uses a Chebyshev recursion.
- Their W connects sensors within some distance; here it connects the ends of a road, so it is as sparse as the map.
- A convolution of [x, h] is the sum of two. That of x is computed once for both uses, for all snapshots at once.
- Scheduled sampling feeds back the truth only at sensors that are visible in the window. Elsewhere the model reads its
  own forecast, as it must in use.
- Each snapshot has its own roads; the decoder uses those of the last.

381,953 parameters at width 64 with 2 layers; 372,353, as in the paper, with the fewer inputs of their code.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from frigate.baselines.deep import DeepBaseline, on_roads, random_walks
from frigate.config import BaselineSettings, Task
from frigate.nn import ops
from frigate.nn.batch import Batch
from frigate.nn.calendar import CALENDAR, calendar
from frigate.nn.scaling import Scaling

STEPS = 2  # K, of each walk
WINDOWS_A_STEP = 16  # batch size in the training protocol
SUPPORTS = 1 + 2 * STEPS
# Theirs is 2000, for about 40,000 steps. Here a training has 160 to 600 steps: with 40, the truth is fed back half of
# the time at step 148 and 1 % at step 331, so that the model mostly reads its own forecasts by the end.
TAU = 40.0


class Diffusion:
    """Both random walks on every topology of a batch, computed once per forward pass."""

    def __init__(self, batch: Batch, length_scale_m: float) -> None:
        self.batch = batch
        self.walks = [random_walks(topology, length_scale_m) for topology in batch.topologies]

    def __call__(self, h: Tensor, topology_of: Tensor) -> Tensor:
        """[N,M,SUPPORTS*C]: h [N,M,C], and P h and P^2 h of each walk; topology_of [M] gives each column's topology."""
        return on_roads(self.batch, topology_of, h, self._walk)

    def _walk(self, h: Tensor, topology: int) -> Tensor:
        supports = [h]
        for walk in self.walks[topology]:
            reached = h
            for _ in range(STEPS):
                reached = ops.sparse_sum(walk, reached)
                supports.append(reached)
        return torch.cat(supports, dim=-1)  # eq. 2 without its weights, which are in the linear layer that follows


class DCGRU(nn.Module):
    """A GRU cell whose products are diffusion convolutions (their eq. 3)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.read = nn.Linear(SUPPORTS * inputs, 3 * width)  # the part of x in r, u and C, and their biases
        self.gates = nn.Linear(SUPPORTS * width, 2 * width, bias=False)  # the part of h in r and u
        self.candidate = nn.Linear(SUPPORTS * width, width, bias=False)  # the part of r * h in C
        with torch.no_grad():
            self.read.bias.zero_()[: 2 * width] = 1.0  # as in their code: initially, a cell keeps its state

    def forward(self, x: Tensor, h: Tensor | None, diffusion: Diffusion, topology_of: Tensor) -> Tensor:
        """h after each step, [N,B,T,D], from x [N,B,T,C] and the first h [N,B,D] (None: 0)."""
        N, B, T, _ = x.shape
        read = self.read(diffusion(x.reshape(N, B * T, -1), topology_of.reshape(-1))).view(N, B, T, -1)
        h = read.new_zeros(N, B, self.width) if h is None else h
        steps = []
        for t in range(T):
            h = self.step(read[:, :, t], h, diffusion, topology_of[:, t])
            steps.append(h)
        return torch.stack(steps, dim=2)

    def step(self, read: Tensor, h: Tensor, diffusion: Diffusion, topology_of: Tensor) -> Tensor:
        D = self.width
        gates = torch.sigmoid(read[..., : 2 * D] + self.gates(diffusion(h, topology_of)))
        r, u = gates.chunk(2, dim=-1)
        c = torch.tanh(read[..., 2 * D :] + self.candidate(diffusion(r * h, topology_of)))
        return torch.lerp(c, h, u)  # u * h + (1 - u) * c


class DCRNN(DeepBaseline):
    """Encoder and decoder of `layers` cells each."""

    sampled: Tensor

    def __init__(self, settings: BaselineSettings, task: Task, scaling: Scaling) -> None:
        super().__init__(settings, task, scaling)
        D = settings.width
        L = settings.layers
        self.encoder = nn.ModuleList([DCGRU(self.inputs if i == 0 else D, D) for i in range(L)])
        self.decoder = nn.ModuleList([DCGRU(1 + len(CALENDAR) if i == 0 else D, D) for i in range(L)])
        self.readout = nn.Linear(D, 1)
        self.register_buffer("sampled", torch.tensor(0))  # windows trained on so far

    def training_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        D = self.settings.width
        L = self.settings.layers
        S = SUPPORTS
        cells = (past + horizon) * L * (2 * S + 4) * D  # supports of h and r * h; r, u, C, h
        between = (L - 1) * (past * (S + 1) + horizon * S) * D  # a cell's inputs from the one below
        first = past * S * self.inputs + horizon * S * (1 + len(CALENDAR))
        reading = past * 3 * D  # `read` of all snapshots: not saved for backward, but allocated while the cells run
        return nodes * (cells + between + first + reading)

    def forecast(self, x: Tensor, batch: Batch) -> Tensor:
        diffusion = Diffusion(batch, self.length_scale_m)
        return self.decode(self.encode(x, batch, diffusion), batch, diffusion)

    def encode(self, x: Tensor, batch: Batch, diffusion: Diffusion) -> list[Tensor]:
        """The state [N,B,D] of each layer after the last snapshot."""
        states = []
        for cell in self.encoder:
            x = cell(x, None, diffusion, batch.topology_of)
            states.append(x[:, :, -1])
        return states

    def decode(self, states: list[Tensor], batch: Batch, diffusion: Diffusion) -> Tensor:
        """[N,B,H] in the model's unit."""
        last = batch.topology_of[:, -1:]
        truth = self.scheduled_truth(batch)
        known = calendar(batch.time_future).to(states[0].dtype).expand(batch.num_nodes, -1, -1, -1)
        y = states[0].new_zeros(batch.num_nodes, batch.num_windows, 1)  # the GO symbol
        steps = []
        for k in range(batch.horizon):
            x = torch.cat([y, known[:, :, k]], dim=-1)
            for i, cell in enumerate(self.decoder):
                x = states[i] = cell(x[:, :, None], states[i], diffusion, last).squeeze(2)
            y = self.readout(x)
            steps.append(y)
            if truth is not None:
                value, fed = truth
                y = torch.where(fed[:, :, k, None], value[:, :, k, None].to(y.dtype), y)
        return torch.cat(steps, dim=-1)

    def scheduled_truth(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """In training: the truth in the model's unit and where to feed it back, each [N,B,H]. Counts the windows."""
        if not self.training or batch.target is None or batch.target_observed is None:
            return None
        coin = torch.rand(batch.num_windows, batch.horizon, 1, device=batch.values.device)
        shown = batch.observed.any(dim=1, keepdim=True)  # [B,1,N]: no other node's truth may be read
        fed = (coin < self.truth_share) & shown & batch.target_observed
        self.sampled.add_(batch.num_windows)
        return self.scaled(batch.target).permute(2, 0, 1), fed.permute(2, 0, 1)

    @property
    def truth_share(self) -> Tensor:
        """tau / (tau + exp(i / tau)): how often the truth is fed back at step i (their section 2.3).

        Steps are counted in windows, so that splitting a batch for memory changes nothing.
        """
        return torch.sigmoid(math.log(TAU) - self.sampled / WINDOWS_A_STEP / TAU)  # equal, but cannot overflow
