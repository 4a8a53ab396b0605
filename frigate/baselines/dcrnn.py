"""DCRNN: diffusion convolution inside a GRU, an encoder and a decoder (Li, Yu, Shahabi, Liu, ICLR 2018).

A diffusion convolution (their eq. 2) reads a node, what K = 2 steps of a random walk along the roads bring to it, and
what K steps against them do: five supports with the identity. `layers` cells are stacked in the encoder and as many in
the decoder. Any number of past snapshots and steps ahead is taken.

What was adapted, and why:
- Inputs: the reading and its mask, with the calendar, since readings are missing here and most nodes have none. The
  decoder reads the last value and the calendar of the step it forecasts, which is known; not the roads' features, which
  the encoder has in its state.
- The plain powers of their equation, not the Chebyshev recursion of their code.
- The paper's W joins sensors within reach of each other; here it joins the ends of a road, weighted by its length, so
  that it is as sparse as the map.
- A convolution of [x, h] is the sum of one of x and one of h. x is spread once for both uses, and for all snapshots of
  the encoder at once.
- Scheduled sampling feeds the truth back only at sensors that the window shows, where there is a reading: the rest is
  what the model must do without, so its own forecast is fed there, as in use.
- Each snapshot has its own roads; the decoder has those of the last one.

381,953 parameters at width 64 with 2 layers and 7 inputs. With the 2 inputs of the encoder and 1 of the decoder of
their code it is the paper's 372,353.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from frigate.baselines.deep import DeepBaseline, on_roads, random_walks
from frigate.config import BaselineSettings, Task
from frigate.data.stream import CALENDAR
from frigate.nn.batch import Batch
from frigate.nn.ops import Backend
from frigate.nn.scaling import Scaling

STEPS = 2  # K, of each walk
WINDOWS_A_STEP = 16  # of the protocol
SUPPORTS = 1 + 2 * STEPS
# Theirs is 2000 for some 40,000 steps. The paper's protocol has at most 600, and early stopping ends no training before
# 160: with 40, half of the truth is gone at step 148 and 99 % of it at 331, so that every training reaches the part in
# which the model mostly reads its own forecasts, and a full one spends half its steps there.
TAU = 40.0


class Diffusion:
    """Both random walks on every topology of a batch: made once in a forward pass, walked at each of its steps."""

    def __init__(self, batch: Batch, length_scale_m: float, backend: Backend) -> None:
        self.batch, self.backend = batch, backend
        self.walks = [random_walks(topology, length_scale_m) for topology in batch.topologies]

    def __call__(self, h: Tensor, topology_of: Tensor) -> Tensor:
        """[N,M,SUPPORTS*C] from h [N,M,C] and the topology [M] of each column: I, P, P^2 of each walk, side by side."""
        return on_roads(self.batch, topology_of, h, self._walk)

    def _walk(self, h: Tensor, topology: int) -> Tensor:
        supports = [h]
        for walk in self.walks[topology]:
            reached = h
            for _ in range(STEPS):
                reached = self.backend.sparse_sum(walk, reached)
                supports.append(reached)
        return torch.cat(supports, dim=-1)  # the terms of eq. 2; the linear layer that follows has their weights


class DCGRU(nn.Module):
    """A GRU cell whose products are diffusion convolutions (their eq. 3)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.read = nn.Linear(SUPPORTS * inputs, 3 * width)  # what r, u and C take of x, and their biases
        self.gates = nn.Linear(SUPPORTS * width, 2 * width, bias=False)  # what r and u take of h
        self.candidate = nn.Linear(SUPPORTS * width, width, bias=False)  # what C takes of r * h
        with torch.no_grad():
            self.read.bias.zero_()[: 2 * width] = 1.0  # as theirs: a cell starts by keeping its state

    def forward(self, x: Tensor, h: Tensor | None, diffusion: Diffusion, topology_of: Tensor) -> Tensor:
        """h after each step, [N,B,T,D]: from x [N,B,T,C], h [N,B,D] before (None: 0) and topology_of [B,T]."""
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
        D, L = settings.width, settings.layers
        self.encoder = nn.ModuleList([DCGRU(self.inputs if i == 0 else D, D) for i in range(L)])
        self.decoder = nn.ModuleList([DCGRU(1 + len(CALENDAR) if i == 0 else D, D) for i in range(L)])
        self.readout = nn.Linear(D, 1)
        self.register_buffer("sampled", torch.tensor(0))  # the windows that scheduled sampling has seen

    def training_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        """How many numbers backward keeps of one window. `edges` plays no part: nothing is kept for each road."""
        D, L, S = self.settings.width, self.settings.layers, SUPPORTS
        cells = (past + horizon) * L * (2 * S + 4) * D  # spread h and r * h; r, u, C, h
        between = (L - 1) * (past * (S + 1) + horizon * S) * D  # a cell's inputs from the one below
        first = past * S * self.inputs + horizon * S * (1 + len(CALENDAR))
        reading = past * 3 * D  # `read` of all snapshots: not kept, but there while the cells run
        return nodes * (cells + between + first + reading)

    def forecast(self, x: Tensor, batch: Batch, backend: Backend) -> Tensor:
        """[N,B,H] in the model's unit, from x [N,B,T,F]."""
        diffusion = Diffusion(batch, self.length_scale_m, backend)
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
        calendar = batch.calendar_future.to(states[0].dtype).expand(batch.num_nodes, -1, -1, -1)
        y = states[0].new_zeros(batch.num_nodes, batch.num_windows, 1)  # the GO symbol
        steps = []
        for k in range(batch.horizon):
            x = torch.cat([y, calendar[:, :, k]], dim=-1)
            for i, cell in enumerate(self.decoder):
                x = states[i] = cell(x[:, :, None], states[i], diffusion, last).squeeze(2)
            y = self.readout(x)
            steps.append(y)
            if truth is not None:
                value, fed = truth
                y = torch.where(fed[:, :, k, None], value[:, :, k, None].to(y.dtype), y)
        return torch.cat(steps, dim=-1)

    def scheduled_truth(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """The truth in the model's unit and where it is fed back, each [N,B,H]; None in use.

        A coin falls for each window and step, as drawn from torch's random state. This is a training pass: it counts.
        """
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

        Steps are counted in windows: however memory splits a batch, the share falls at the same pace.
        """
        return torch.sigmoid(math.log(TAU) - self.sampled / WINDOWS_A_STEP / TAU)  # the same, and does not overflow
