"""STGODE: graph ODEs between temporal convolutions (Fang, Long, Song, Xie, KDD 2021), on the road graph alone.

A block is norm(TCN(relu(ODE(TCN(x))))). The ODE of a state x over nodes, snapshots and channels,

    dx/dt = (A - I) x + x U - x + x W - x + x_0,    A = alpha/2 (I + D^-1/2 W_roads D^-1/2),

mixes nodes by A, snapshots by U [T,T] and channels by W [D,D]; it runs from 0 to 6. U and W are symmetric with
eigenvalues in [0, 1]. Branches of `layers` blocks (theirs: 2) run in parallel; the maximum of their outputs goes
through two linear layers to all H steps. U and the last layers fix T and H.

Changes, with reasons:
- Three branches, on the roads. The authors' other three use a graph of similar series, but a node without a sensor has
  no series; the FRIGATE paper omits them too.
- S = D^-1/2 W_roads D^-1/2 is a sparse product, with the roads of the window's last snapshot.
- One learned alpha per block, initially 0.8, as in the paper's equation. The authors' code has one per node.
- Layer norm over the channels of a node and snapshot. The authors' batch norm has statistics per node.
- Ten Euler steps of 0.6. The authors take one step of 6, which is far from the solution: rates lie between -3 and 0, so
  modes are multiplied by up to -17. Steps below 2/3 are stable whatever is learned.
- The eigenvectors of U and W are the orthogonal factor of a learned matrix, so that the eigenvalues stay as clamped. In
  the basis of these eigenvectors, a step is a polynomial in S, so all ten steps cost ten products with S.
- The gradient also goes through x_0, which the authors' code detaches.
- Every TCN convolves, with dilations 1, 2, 4 through [D, D/2, D] channels and a residual. In the authors' code, due to
  operator precedence, all but the first TCN of a branch return their input.
- Mask and calendar are additional inputs.

504,762 parameters with D = 64 and T = H = 12; the FRIGATE paper's 558,582 have 18 more for each of 3,193 nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional

from frigate.baselines.deep import DeepBaseline, on_roads, symmetric
from frigate.config import BaselineSettings, Task
from frigate.nn import ops
from frigate.nn.batch import Batch
from frigate.nn.scaling import Scaling

BRANCHES = 3
DILATIONS = (1, 2, 4)
DROPOUT = 0.2  # after each convolution of a TCN
STEPS = 10  # of the integration from 0 to 6
STEP = 0.6
ALPHA_AT_START = 0.8
HIDDEN = 32  # of the last layers, for each step ahead


class STGODE(DeepBaseline):
    def __init__(self, settings: BaselineSettings, task: Task, scaling: Scaling) -> None:
        super().__init__(settings, task, scaling)
        D = settings.width
        T = task.past
        H = task.horizon
        self.branches = nn.ModuleList(
            Branch(STGODEBlock(D if i else self.inputs, D, past=T) for i in range(settings.layers))
            for _ in range(BRANCHES)
        )
        self.readout = nn.Sequential(nn.Linear(T * D, H * HIDDEN), nn.ReLU(), nn.Linear(H * HIDDEN, H))

    def forecast(self, x: Tensor, batch: Batch) -> Tensor:
        self.require_trained(batch, "past", "horizon")
        N, B, _, _ = x.shape
        matrices = [symmetric(topology, self.length_scale_m) for topology in batch.topologies]

        def spread(h: Tensor) -> Tensor:
            """S h for h [N*B,T,D]."""
            last = batch.topology_of[:, -1]
            windows = h.reshape(N, B, -1)
            return on_roads(batch, last, windows, lambda x, i: ops.sparse_sum(matrices[i], x)).view_as(h)

        outputs = [branch(x.flatten(0, 1), spread) for branch in self.branches]
        steps: Tensor = self.readout(reduce(torch.maximum, outputs).flatten(1))
        return steps.view(N, B, -1)

    def training_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        # Per node and snapshot, in widths: each TCN saves 5, the ODE one per power of S and 5 at its ends, a norm its
        # input and output in fp32.
        D = self.settings.width
        layers = self.settings.layers
        block = D * (2 * 5 + STEPS + 1 + 5 + 4)
        return nodes * (past * (BRANCHES * layers * block + 3 * D + 2 * self.inputs) + horizon * (HIDDEN + 1))


class Branch(nn.ModuleList):
    """Blocks in sequence."""

    def forward(self, h: Tensor, spread: Callable[[Tensor], Tensor]) -> Tensor:
        for block in self:
            h = block(h, spread)
        return h


class STGODEBlock(nn.Module):
    """TCN, graph ODE, TCN."""

    def __init__(self, inputs: int, width: int, *, past: int) -> None:
        super().__init__()
        self.before = TCN(inputs, width)
        self.ode = GraphODE(width, past=past)
        self.after = TCN(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, spread: Callable[[Tensor], Tensor]) -> Tensor:
        """[N*B,T,D]"""
        h: Tensor = self.after(torch.relu(self.ode(self.before(x), spread)))
        normalised: Tensor = self.norm(h)
        return normalised.to(h.dtype)  # autocast normalises in fp32


class TCN(nn.Module):
    """Causal convolutions over pairs of snapshots, 1, 2 and 4 apart, with a residual around all of them."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        channels = (inputs, width, max(1, width // 2), width)
        self.convolutions = nn.ModuleList(
            Causal(channels[i], channels[i + 1], dilation=dilation) for i, dilation in enumerate(DILATIONS)
        )
        self.residual = nn.Identity() if inputs == width else nn.Linear(inputs, width)

    def forward(self, x: Tensor) -> Tensor:
        """[M,T,D] from x [M,T,inputs]."""
        h = x
        for convolution in self.convolutions:
            # Equal to dropout after the ReLU, but saves one tensor less for backward.
            h = torch.relu(functional.dropout(convolution(h), DROPOUT, self.training))
        residual: Tensor = self.residual(x)
        return torch.relu(h + residual.to(h.dtype))


class Causal(nn.Module):
    """y_t = a x_t + b x_(t - dilation) + bias, with zeros before the first snapshot; keeps T."""

    def __init__(self, inputs: int, outputs: int, *, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.linear = nn.Linear(inputs, 2 * outputs, bias=False)  # a and b
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        # Shifting after the product saves x only once for backward.
        now, before = self.linear(x).chunk(2, dim=-1)
        T = x.shape[1]
        moved = min(self.dilation, T)
        y: Tensor = now + self.bias.to(now.dtype) + functional.pad(before[:, : T - moved], (0, 0, moved, 0))
        return y


class GraphODE(nn.Module):
    """Integrates x from 0 to 6 in Euler steps y + STEP dy/dt."""

    def __init__(self, width: int, *, past: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.logit(torch.tensor(ALPHA_AT_START)))
        self.snapshots = Symmetric(past)  # U
        self.channels = Symmetric(width)  # W

    def forward(self, x: Tensor, spread: Callable[[Tensor], Tensor]) -> Tensor:
        """[M,T,D] from x [M,T,D]; `spread` is the product with S = D^-1/2 W_roads D^-1/2."""
        over_time, time_rates = self.snapshots()
        basis, rates = self.channels()
        powers = self.powers(time_rates[:, None] + rates).to(x.dtype)
        moved = torch.einsum("st,msd->mtd", over_time.to(x.dtype), x @ basis.to(x.dtype))
        y = moved * powers[0]
        for weight in powers[1:]:
            moved = spread(moved)
            y = torch.addcmul(y, moved, weight)
        end: Tensor = torch.einsum("ts,msd->mtd", over_time.to(y.dtype), y) @ basis.T.to(y.dtype)
        return end

    def powers(self, mixing: Tensor) -> Tensor:
        """[STEPS+1,T,D] the coefficients of S^k x_0 after all steps, for each snapshot and channel.

        A step is y + STEP ((alpha/2 (1 + S) + mixing - 3) y + x_0): it raises the degree of the polynomial by one.
        """
        half = torch.sigmoid(self.alpha) / 2
        own = 1 + STEP * (half - 3 + mixing)
        state = functional.pad(torch.ones_like(own)[None], (0, 0, 0, 0, 0, STEPS))  # x_0 itself
        start = STEP * state
        for _ in range(STEPS):
            state = own * state + STEP * half * functional.pad(state[:-1], (0, 0, 0, 0, 1, 0)) + start
        return state


class Symmetric(nn.Module):
    """Eigenvectors and eigenvalues of a learned symmetric matrix: eigenvalues in [0, 1], initially the identity."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.eye(size))
        self.values = nn.Parameter(torch.ones(size))

    def forward(self) -> tuple[Tensor, Tensor]:
        return torch.linalg.qr(self.vectors)[0], self.values.clamp(0, 1)
