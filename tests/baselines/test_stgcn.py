"""STGCN against its equations written out with N x N matrices, and what it refuses and learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from frigate.baselines.stgcn import STGCN, Block, GatedTemporal, Residual
from frigate.config import BaselineSettings, Task, preset
from frigate.errors import SettingsError
from frigate.nn.batch import Batch, Windows
from frigate.nn.scaling import Scaling
from frigate.nn.topology import Topology
from tests.support.baseline_towns import dense_normalised, noisy, view, whole_town
from tests.support.towns import in_float64, random_network, random_stream

N = 11
SMALL = BaselineSettings("stgcn", width=20, layers=2)  # wider than the bottleneck and than what is read
TASK = Task(past=10, horizon=3)


def windows_of(windows: Windows, current: list[int], task: Task = TASK) -> Batch:
    inputs = torch.ones(windows.values.shape[1], dtype=torch.bool)
    return windows.batch(np.array(current), past=task.past, horizon=task.horizon, inputs=inputs)


def build(scaling: Scaling, settings: BaselineSettings = SMALL, task: Task = TASK, *, noise: float = 0.2) -> STGCN:
    """Noise on all weights: biases and norms start at 0 and 1, which would hide exchanged ones."""
    return noisy(lambda: STGCN(settings, task, scaling), noise=noise, seed=5)


# The equations


def scaled_laplacian(topology: Topology, length_scale_m: float) -> Tensor:
    """[N,N] 2 L / lambda_max - I with lambda_max = 2."""
    identity = torch.eye(topology.num_nodes, dtype=torch.float64)
    laplacian = identity - dense_normalised(topology, length_scale_m)
    return 2 * laplacian / 2 - identity


def aligned(residual: Residual, x: Tensor, channels: int) -> Tensor:
    if x.shape[-1] > channels:
        assert isinstance(residual.linear, torch.nn.Linear)
        return x @ residual.linear.weight.T
    return torch.cat([x, x.new_zeros(*x.shape[:-1], channels - x.shape[-1])], dim=-1)


def gated(layer: GatedTemporal, x: list[Tensor]) -> list[Tensor]:
    """Of the snapshots x, each [N,C]: one less than the kernel fewer."""
    weight, bias = layer.linear.weight, layer.linear.bias
    outputs, inputs = len(bias) // 2, x[0].shape[1]
    result = []
    for t in range(layer.kernel - 1, len(x)):
        total = bias.expand(len(x[0]), -1)
        for k in range(layer.kernel):
            total = total + x[t - layer.kernel + 1 + k] @ weight[:, k * inputs : (k + 1) * inputs].T
        value = total[:, :outputs] + aligned(layer.residual, x[t], outputs)
        result.append(value * (1 / (1 + torch.exp(-total[:, outputs:]))))
    return result


def norm(layer: torch.nn.LayerNorm, h: Tensor) -> Tensor:
    centred = h - h.mean(dim=1, keepdim=True)
    return centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


def block_by_hand(block: Block, x: list[Tensor], laplacians: list[Tensor]) -> list[Tensor]:
    """`laplacians` are of the last snapshots: as many as there are after the first convolution, at least."""
    h = gated(block.before, x)
    thetas = block.roads.theta.weight.chunk(3)
    mixed = []
    for snapshot, laplacian in zip(h, laplacians[-len(h) :], strict=True):
        identity = torch.eye(len(laplacian), dtype=torch.float64)
        polynomials = (identity, laplacian, 2 * laplacian @ laplacian - identity)
        total = sum(p @ snapshot @ theta.T for p, theta in zip(polynomials, thetas, strict=True))
        mixed.append(torch.relu(total + block.roads.bias + aligned(block.roads.residual, snapshot, 16)))
    return [norm(block.norm, snapshot) for snapshot in gated(block.after, mixed)]


def by_hand(model: STGCN, scaling: Scaling, batch: Batch) -> Tensor:
    """[B,H,N] in the user's unit, window by window."""
    forecasts = []
    for b in range(batch.num_windows):
        laplacians = [
            scaled_laplacian(batch.topologies[i], scaling.length_scale_m) for i in batch.topology_of[b].tolist()
        ]
        x = []
        for t in range(batch.past):
            observed = batch.observed[b, t]
            value = torch.where(observed, (batch.values[b, t] - scaling.value_offset) / scaling.value_scale, 0.0)
            calendar = batch.calendar_past[b, t].expand(batch.num_nodes, -1)
            x.append(torch.cat([value[:, None], observed[:, None].double(), calendar], dim=1))
        for block in model.blocks:
            assert isinstance(block, Block)
            x = block_by_hand(block, x, laplacians)
        (h,) = gated(model.last, x)
        steps = norm(model.norm, h) @ model.readout.weight.T + model.readout.bias
        forecasts.append(steps.T * scaling.value_scale + scaling.value_offset)
    return torch.stack(forecasts)


@pytest.mark.parametrize("topologies", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
def test_it_is_its_equations(topologies: int, layers: int) -> None:
    windows, scaling = whole_town(SMALL, topologies=topologies)
    batch = in_float64(windows_of(windows, [10, 16, 19]))
    assert len(batch.topologies) == topologies
    assert topologies == 1 or 0 < batch.topology_of[1].sum() < TASK.past  # the roads change within a window
    model = build(scaling, replace(SMALL, layers=layers)).double().eval()
    with torch.inference_mode():
        expected = by_hand(model, scaling, batch)
        assert expected.std(dim=2).min() > 1e-2
        # The weights of the roads are kept in fp32.
        torch.testing.assert_close(model(batch), expected, rtol=1e-5, atol=1e-5)


def test_roads_of_every_snapshot_that_meets_them_matter() -> None:
    """The first two snapshots of a window are only convolved before the roads are met."""
    windows, scaling = whole_town(SMALL, topologies=2)
    batch = replace(windows_of(windows, [16]), topology_of=torch.zeros(1, 10, dtype=torch.int64))
    model = build(scaling).eval()
    with torch.inference_mode():
        before = model(batch)
        for t in range(TASK.past):
            topology_of = torch.zeros(1, 10, dtype=torch.int64)
            topology_of[0, t] = 1
            changed = model(replace(batch, topology_of=topology_of))
            assert torch.allclose(changed, before, atol=1e-6) == (t < 2)


# Training


@pytest.mark.parametrize("sensors", [True, False])
def test_gradients_are_finite(sensors: bool) -> None:
    windows, scaling = whole_town(SMALL, topologies=2)
    batch = windows_of(windows, [12, 16])
    if not sensors:
        batch = batch.hide(torch.ones(2, N, dtype=torch.bool))
    model = build(scaling).train()
    model(batch).abs().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_it_learns() -> None:
    """Nodes differ in level, and all swing with the hour: a constant has twice the error that is asked for."""
    stream = random_stream([random_network(40, seed=1)], seed=1, snapshots=60, silent=0, missing=0)
    rng = np.random.default_rng(0)
    swing = 1 + 0.5 * np.sin(2 * np.pi * np.arange(60) / 24)
    windows, scaling = view(replace(stream, values=np.outer(swing, rng.uniform(1, 20, 40)).astype(np.float32)), SMALL)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = STGCN(SMALL, TASK, scaling)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(60):
            batch = windows_of(windows, rng.integers(9, 56, 8).tolist())
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
    model = build(scaling, noise=0.0)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(batch)
    found.sum().backward()
    torch.testing.assert_close(found, model(batch), rtol=0.1, atol=0.1 * scaling.value_scale)


def test_training_activations_are_what_backward_keeps() -> None:
    windows, scaling = whole_town(SMALL, num_nodes=60)
    batch = windows_of(windows, [12, 16, 20])
    model = build(scaling)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    stored: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            stored[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(batch)
    numbers = sum(tensor.untyped_storage().nbytes() for tensor in stored.values()) / 4 / batch.num_windows
    said = model.training_activations(nodes=60, edges=0, past=TASK.past, horizon=TASK.horizon)
    assert numbers <= said <= 1.5 * numbers


# What it refuses


def test_too_few_snapshots_for_the_blocks() -> None:
    _, scaling = whole_town(SMALL)
    assert STGCN(SMALL, Task(past=9, horizon=1), scaling).last.kernel == 1
    with pytest.raises(SettingsError, match=r"past = 8: .* Use past = 9 or more, or layers = 1$"):
        STGCN(SMALL, Task(past=8, horizon=1), scaling)
    with pytest.raises(SettingsError, match=r"past = 4: .* Use past = 9 or more$"):
        STGCN(SMALL, Task(past=4, horizon=1), scaling)


@pytest.mark.parametrize(("name", "task"), [("past", Task(past=9, horizon=3)), ("horizon", Task(past=10, horizon=4))])
def test_another_task_is_refused(name: str, task: Task) -> None:
    windows, scaling = whole_town(SMALL)
    with pytest.raises(SettingsError, match=f"{name} = .*STGCN was built for .*train again"):
        build(scaling)(windows_of(windows, [12], task))


def test_the_presets_size() -> None:
    settings = preset("stgcn")
    assert isinstance(settings.model, BaselineSettings)
    _, scaling = whole_town(SMALL)
    model = STGCN(settings.model, settings.task, scaling)
    assert sum(parameter.numel() for parameter in model.parameters()) == 82_348
