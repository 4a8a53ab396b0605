"""STGODE against its equations written out with N x N matrices, and its ODE against the exact solution."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from frigate.baselines.stgode import STGODE, TCN, Branch, Causal, GraphODE, STGODEBlock
from frigate.nn.batch import Batch
from tests.support.baselines import inputs_by_hand, layer_norm, normalised_by_hand, small_baseline
from tests.support.towns import in_float64, random_town

N = 13
PAST = 6


# The equations


def matrices(ode: GraphODE, roads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A [N,N], U [T,T], W [D,D]."""
    alpha = 1 / (1 + torch.exp(-ode.alpha.detach()))
    made = [alpha / 2 * (torch.eye(len(roads), dtype=torch.float64) + roads)]
    for part in (ode.snapshots, ode.channels):
        vectors = torch.from_numpy(np.linalg.qr(part.vectors.detach().numpy())[0])
        made.append(vectors @ torch.diag(part.values.detach().clamp(0, 1)) @ vectors.T)
    return made[0], made[1], made[2]


def slope(x: Tensor, start: Tensor, A: Tensor, U: Tensor, W: Tensor) -> Tensor:
    """dx/dt of x [N,T,D], its three modes one by one."""
    nodes = torch.einsum("nm,mtd->ntd", A, x) - x
    snapshots = torch.einsum("ts,nsd->ntd", U, x) - x
    channels = torch.einsum("de,nte->ntd", W, x) - x
    return nodes + snapshots + channels + start


def euler(x: Tensor, A: Tensor, U: Tensor, W: Tensor, *, steps: int) -> Tensor:
    start = x
    for _ in range(steps):
        x = x + 6 / steps * slope(x, start, A, U, W)
    return x


def causal(layer: Causal, x: Tensor) -> Tensor:
    now, before = layer.linear.weight.chunk(2)
    result = []
    for t in range(x.shape[1]):
        y = x[:, t] @ now.T + layer.bias
        if t >= layer.dilation:
            y = y + x[:, t - layer.dilation] @ before.T
        result.append(y)
    return torch.stack(result, dim=1)


def tcn(layer: TCN, x: Tensor) -> Tensor:
    h = x
    for convolution in layer.convolutions:
        assert isinstance(convolution, Causal)
        h = torch.relu(causal(convolution, h))
    return torch.relu(h + (linear(layer.residual, x) if x.shape[-1] != h.shape[-1] else x))


def linear(layer: torch.nn.Module, x: Tensor) -> Tensor:
    assert isinstance(layer, torch.nn.Linear)
    return x @ layer.weight.T + layer.bias


def branch_by_hand(branch: torch.nn.Module, x: Tensor, roads: Tensor) -> Tensor:
    assert isinstance(branch, Branch)
    for block in branch:
        assert isinstance(block, STGODEBlock)
        h = euler(tcn(block.before, x), *matrices(block.ode, roads), steps=10)
        x = layer_norm(block.norm, tcn(block.after, torch.relu(h)))
    return x


def by_hand(model: STGODE, batch: Batch) -> Tensor:
    """[B,H,N] in the user's unit, window by window; a window has the roads of its last snapshot."""
    found = []
    for b in range(batch.num_windows):
        roads = normalised_by_hand(batch.topologies[int(batch.topology_of[b, -1])], model.length_scale_m)
        x = torch.from_numpy(np.stack([inputs_by_hand(model, batch, b, t) for t in range(batch.past)], axis=1))
        outputs = torch.stack([branch_by_hand(branch, x, roads) for branch in model.branches])
        hidden = torch.relu(linear(model.readout[0], outputs.max(dim=0).values.flatten(1)))
        found.append(model.unscaled(linear(model.readout[2], hidden).T))
    return torch.stack(found)


@pytest.mark.parametrize("topologies", [1, 2])
@pytest.mark.parametrize("past", [2, PAST])
def test_it_is_its_equations(topologies: int, past: int) -> None:
    town = random_town("paper", topologies=topologies)
    batch = in_float64(town.batch([10, 15, 19], past=past))
    assert len(batch.topologies) == topologies
    assert topologies == 1 or batch.topology_of[1, 0] != batch.topology_of[1, -1]
    model = small_baseline("stgode", town.scaling, past=past, width=10, seed=5).double()
    assert isinstance(model, STGODE)
    with torch.inference_mode():
        expected = by_hand(model, batch)
        assert expected.std(dim=2).min() > 1e-2
        # The weights of the roads are kept in fp32.
        torch.testing.assert_close(model(batch), expected, rtol=1e-5, atol=1e-5)


def normalised_roads() -> Tensor:
    town = random_town("paper")
    return normalised_by_hand(town.topologies[0], town.scaling.length_scale_m)


def solved(ode: GraphODE, x: Tensor, roads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The model's x at 6, the ODE's, and what the authors' one step makes of it."""
    A, U, W = matrices(ode, roads)
    identities = [torch.eye(len(each), dtype=torch.float64) for each in (A, U, W)]
    rate = -3 * torch.eye(x.numel(), dtype=torch.float64)
    for i, mode in enumerate((A, U, W)):
        parts = [mode if i == k else identity for k, identity in enumerate(identities)]
        rate += torch.kron(torch.kron(parts[0], parts[1]), parts[2])
    grown = torch.from_numpy(scipy.linalg.expm(6 * rate.numpy()))
    identity = torch.eye(x.numel(), dtype=torch.float64)
    exact = (grown + torch.linalg.solve(rate, grown - identity)) @ x.flatten()
    found = ode(x, lambda h: torch.einsum("nm,mtd->ntd", roads, h)).detach()
    return found, exact.view_as(x), euler(x, A, U, W, steps=1)


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_ten_steps_come_near_the_solution_and_one_does_not(spread: float) -> None:
    """Departs from the authors' code. `spread` is how far eigenvalues are from 1, where they start."""
    roads = normalised_roads()
    generator = torch.Generator().manual_seed(0)
    ode = GraphODE(4, past=3).double()
    with torch.no_grad():
        for part in (ode.snapshots, ode.channels):
            part.values.sub_(spread * torch.rand(part.values.shape, generator=generator))
            part.vectors.add_(torch.randn(part.vectors.shape, generator=generator), alpha=spread)
    x = torch.rand(N, 3, 4, generator=generator, dtype=torch.float64)
    found, exact, one_step = solved(ode, x, roads)
    assert (found - exact).norm() < 0.05 * exact.norm()
    if spread:
        assert (one_step - exact).norm() > 0.5 * exact.norm()


def test_no_weights_make_it_diverge() -> None:
    roads = normalised_roads()
    generator = torch.Generator().manual_seed(1)
    ode = GraphODE(5, past=4).double()
    x = torch.randn(N, 4, 5, generator=generator, dtype=torch.float64)
    for _ in range(20):
        with torch.no_grad():
            ode.alpha.fill_(30.0)  # alpha = 1: the most that roads can carry
            for part in (ode.snapshots, ode.channels):
                part.values.copy_(5 * torch.randn(part.values.shape, generator=generator))
                part.vectors.copy_(5 * torch.randn(part.vectors.shape, generator=generator))
        # The start comes again and again, so that at most all of its parts add up: 1 + 6.
        assert ode(x, lambda h: torch.einsum("nm,mtd->ntd", roads, h)).norm() <= 7 * x.norm()
