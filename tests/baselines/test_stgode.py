"""STGODE against its equations written out with N x N matrices, its ODE against the exact solution, what it learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from frigate.baselines.stgode import STGODE, TCN, Block, Branch, Causal, GraphODE
from frigate.config import BaselineSettings, Task, preset
from frigate.errors import SettingsError
from frigate.nn.batch import Batch, Windows
from frigate.nn.scaling import Scaling
from tests.support.baseline_towns import dense_normalised, noisy, view, whole_town
from tests.support.towns import in_float64, random_network, random_stream

N = 11
SMALL = BaselineSettings("stgode", width=10, layers=2)
TASK = Task(past=6, horizon=3)


def windows_of(windows: Windows, current: list[int], task: Task = TASK) -> Batch:
    inputs = torch.ones(windows.values.shape[1], dtype=torch.bool)
    return windows.batch(np.array(current), past=task.past, horizon=task.horizon, inputs=inputs)


def build(scaling: Scaling, settings: BaselineSettings = SMALL, task: Task = TASK, *, noise: float = 0.2) -> STGODE:
    """Noise on all weights: U and W start as the identity, which would hide exchanged ones."""
    return noisy(lambda: STGODE(settings, task, scaling), noise=noise, seed=5)


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


def norm(layer: torch.nn.LayerNorm, h: Tensor) -> Tensor:
    centred = h - h.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


def branch_by_hand(branch: torch.nn.Module, x: Tensor, roads: Tensor) -> Tensor:
    assert isinstance(branch, Branch)
    for block in branch:
        assert isinstance(block, Block)
        h = euler(tcn(block.before, x), *matrices(block.ode, roads), steps=10)
        x = norm(block.norm, tcn(block.after, torch.relu(h)))
    return x


def by_hand(model: STGODE, scaling: Scaling, batch: Batch) -> Tensor:
    """[B,H,N] in the user's unit, window by window; a window has the roads of its last snapshot."""
    forecasts = []
    for b in range(batch.num_windows):
        roads = dense_normalised(batch.topologies[int(batch.topology_of[b, -1])], scaling.length_scale_m)
        observed = batch.observed[b].T  # [N,T]
        value = torch.where(observed, (batch.values[b].T - scaling.value_offset) / scaling.value_scale, 0.0)
        calendar = batch.calendar_past[b].expand(batch.num_nodes, -1, -1)
        x = torch.cat([value[..., None], observed[..., None].double(), calendar], dim=-1)
        outputs = torch.stack([branch_by_hand(branch, x, roads) for branch in model.branches])
        hidden = torch.relu(linear(model.readout[0], outputs.max(dim=0).values.flatten(1)))
        forecasts.append(linear(model.readout[2], hidden).T * scaling.value_scale + scaling.value_offset)
    return torch.stack(forecasts)


@pytest.mark.parametrize("topologies", [1, 2])
@pytest.mark.parametrize("past", [2, 6])
def test_it_is_its_equations(topologies: int, past: int) -> None:
    windows, scaling = whole_town(SMALL, topologies=topologies)
    task = replace(TASK, past=past)
    batch = in_float64(windows_of(windows, [10, 15, 19], task))
    assert len(batch.topologies) == topologies
    assert topologies == 1 or batch.topology_of[1, 0] != batch.topology_of[1, -1]
    model = build(scaling, task=task).double().eval()
    with torch.inference_mode():
        expected = by_hand(model, scaling, batch)
        assert expected.std(dim=2).min() > 1e-2
        # The weights of the roads are kept in fp32.
        torch.testing.assert_close(model(batch), expected, rtol=1e-5, atol=1e-5)


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
    windows, scaling = whole_town(SMALL)
    roads = dense_normalised(windows.topologies[0], scaling.length_scale_m)
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
    windows, scaling = whole_town(SMALL)
    roads = dense_normalised(windows.topologies[0], scaling.length_scale_m)
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


# Training


@pytest.mark.parametrize("sensors", [True, False])
def test_gradients_are_finite(sensors: bool) -> None:
    windows, scaling = whole_town(SMALL, topologies=2)
    batch = windows_of(windows, [12, 16])
    if not sensors:
        batch = batch.hide(torch.ones(2, N, dtype=torch.bool))
    model = build(scaling).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model(batch).abs().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_it_learns() -> None:
    """Nodes differ in level, and all swing with the hour: a constant has twice the error that is asked for."""
    stream = random_stream([random_network(25, seed=1)], seed=1, snapshots=60, silent=0, missing=0)
    rng = np.random.default_rng(0)
    swing = 1 + 0.5 * np.sin(2 * np.pi * np.arange(60) / 24)
    windows, scaling = view(replace(stream, values=np.outer(swing, rng.uniform(1, 20, 25)).astype(np.float32)), SMALL)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = STGODE(replace(SMALL, width=16), TASK, scaling)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(40):
            batch = windows_of(windows, rng.integers(9, 56, 4).tolist())
            assert batch.target is not None
            loss = (model(batch) - batch.target).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    constant = float((windows.values - windows.values.median()).abs().mean())
    assert np.mean(losses[-5:]) < 0.5 * constant
    assert np.mean(losses[-5:]) < 0.5 * losses[0]


def test_autocast() -> None:
    """A GPU trains in bf16: no step may mix dtypes."""
    windows, scaling = whole_town(SMALL, topologies=2)
    batch = windows_of(windows, [12, 16])
    model = build(scaling, noise=0.0).eval()
    with torch.autocast("cpu", torch.bfloat16):
        found = model(batch)
    found.sum().backward()
    torch.testing.assert_close(found, model(batch), rtol=0.1, atol=0.1 * scaling.value_scale)


def test_training_activations_are_what_backward_keeps() -> None:
    windows, scaling = whole_town(SMALL, num_nodes=100)
    batch = windows_of(windows, [12, 16, 20])
    model = build(scaling)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    stored: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            stored[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(batch)
    numbers = sum(tensor.untyped_storage().nbytes() for tensor in stored.values()) / 4 / batch.num_windows
    said = model.training_activations(nodes=100, edges=0, past=TASK.past, horizon=TASK.horizon)
    assert numbers <= said <= 1.5 * numbers


# What it refuses


@pytest.mark.parametrize(("name", "task"), [("past", Task(past=7, horizon=3)), ("horizon", Task(past=6, horizon=4))])
def test_another_task_is_refused(name: str, task: Task) -> None:
    windows, scaling = whole_town(SMALL)
    with pytest.raises(SettingsError, match=f"{name} = .*STGODE was built for .*train again"):
        build(scaling)(windows_of(windows, [12], task))


def test_the_presets_size() -> None:
    """The FRIGATE paper's 558,582, less what the authors keep for each node, for what else is read and learned here."""
    settings = preset("stgode")
    assert isinstance(settings.model, BaselineSettings)
    _, scaling = whole_town(SMALL)
    model = STGODE(settings.model, settings.task, scaling)
    for_nodes = 6 * 3 * 3193  # an alpha, and a batch norm's scale and shift, in each block for each node of Chengdu
    features = 3 * (7 - 2) * (2 * 64 + 64)  # the first convolution and residual of a branch: here 7 numbers, there 2
    ours = 6 * (2 * 64 + 1)  # layer norms and alphas
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == 558_582 - for_nodes + features + ours == 504_762
