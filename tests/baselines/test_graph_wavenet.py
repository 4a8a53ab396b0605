"""GraphWaveNet against its equations on dense matrices; any T but one H; that it learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frigate.baselines.graph_wavenet import DiffusionLayer, GatedTime, GraphWaveNet
from frigate.config import BaselineSettings, Task, preset
from frigate.errors import SettingsError
from frigate.nn.batch import Batch
from frigate.nn.scaling import Scaling
from frigate.nn.topology import Topology
from tests.support.baseline_towns import assert_it_learns_tides, exactly, forecast, noisy
from tests.support.towns import in_float64, random_town

Array = NDArray[np.float64]
FIELD = 13


def graph_wavenet(
    scaling: Scaling, *, width: int = 5, layers: int = 8, roads: bool = False, horizon: int = 3, noise: float = 0.2
) -> GraphWaveNet:
    settings = BaselineSettings("graph-wavenet", width=width, layers=layers, roads=roads)
    return noisy(lambda: GraphWaveNet(settings, Task(4, horizon), scaling), noise=noise, seed=0).eval()


def assert_same(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


# The equations, for one window at a time, node by matrix, in float64


def walks(topology: Topology, scale_m: float) -> tuple[Array, Array]:
    """P_f and P_b, N x N."""
    N = topology.num_nodes
    W = np.zeros((N, N))
    length_m = topology.length_m.double().numpy()
    np.add.at(W, (topology.senders.numpy(), topology.receivers.numpy()), np.exp(-((length_m / (2 * scale_m)) ** 2)))
    found = []
    for walk in (W, W.T):
        degree = walk.sum(axis=1, keepdims=True)
        found.append(np.divide(walk, degree, out=np.zeros((N, N)), where=degree > 0))
    return found[0], found[1]


def linear(module: nn.Linear, x: Array) -> Array:
    result: Array = x @ module.weight.detach().numpy().T + module.bias.detach().numpy()
    return result


def inputs(model: GraphWaveNet, batch: Batch, b: int) -> list[Array]:
    """Of each snapshot of window b, [N,F]."""
    found = []
    for t in range(batch.past):
        observed = batch.observed[b, t].numpy()
        value = (batch.values[b, t].numpy() - float(model.value_offset)) / float(model.value_scale)
        calendar = np.tile(batch.calendar_past[b, t].numpy(), (batch.num_nodes, 1))
        x = np.column_stack([np.where(observed, value, 0), observed, calendar])
        if model.settings.roads:
            x = np.hstack([x, batch.topologies[int(batch.topology_of[b, t])].road_features.numpy()])
        found.append(x)
    return found


def gated(module: GatedTime, now: Array, before: Array) -> Array:
    """tanh(W_1 * x + a) . sigmoid(W_2 * x + c), a kernel of two as a sum over its two taps."""
    D = now.shape[1]
    weight, bias = module.linear.weight.detach().numpy(), module.linear.bias.detach().numpy()
    total = before @ weight[:, :D].T + now @ weight[:, D:].T + bias
    result: Array = np.tanh(total[:, :D]) / (1 + np.exp(-total[:, D:]))
    return result


def diffused(module: DiffusionLayer, pair: tuple[Array, Array], h: Array, residual: Array) -> Array:
    """The sum over k of P_f^k H W_k1 + P_b^k H W_k2, the residual, and the norm."""
    D = h.shape[1]
    weight = module.linear.weight.detach().numpy()
    forward, backward = pair
    total = module.linear.bias.detach().numpy() + residual
    for k, P in enumerate([np.eye(len(h)), forward, forward @ forward, backward, backward @ backward]):
        total = total + P @ h @ weight[:, k * D : (k + 1) * D].T
    mean, variance = total.mean(axis=1, keepdims=True), total.var(axis=1, keepdims=True)
    normed: Array = (total - mean) / np.sqrt(variance + module.norm.eps)
    normed = normed * module.norm.weight.detach().numpy() + module.norm.bias.detach().numpy()
    return normed


def reference(model: GraphWaveNet, batch: Batch, b: int) -> Array:
    """[H,N] of window b. Every step of every layer is a matrix [N,D], in a dictionary by its snapshot."""
    pairs = [walks(topology, model.length_scale_m) for topology in batch.topologies]
    given = inputs(model, batch, b)
    D, T = model.settings.width, batch.past
    nothing = np.zeros_like(given[0])
    steps = {t: linear(model.start, given[t] if t >= 0 else nothing) for t in range(T - model.receptive_field, T)}
    sum_of_skips = model.skip.bias.detach().numpy()
    for i, time in enumerate(model.times):
        assert isinstance(time, GatedTime)
        d = [1, 2][i % 2]
        outputs = {t: gated(time, x, steps[t - d]) for t, x in steps.items() if t - d in steps}
        sum_of_skips = sum_of_skips + outputs[T - 1] @ model.skip.weight.detach().numpy()[:, i * D : (i + 1) * D].T
        if i < len(model.diffusions):
            diffusion = model.diffusions[i]
            assert isinstance(diffusion, DiffusionLayer)
            steps = {
                t: diffused(diffusion, pairs[int(batch.topology_of[b, max(t, 0)])], h, steps[t])
                for t, h in outputs.items()
            }
    hidden = np.maximum(linear(model.end, np.maximum(sum_of_skips, 0)), 0)
    found: Array = linear(model.readout, hidden).T * float(model.value_scale) + float(model.value_offset)
    return found


def assert_equations(model: GraphWaveNet, batch: Batch) -> None:
    """The walks are kept in fp32, hence the tolerance."""
    expected = np.array([reference(model, batch, b) for b in range(batch.num_windows)])
    np.testing.assert_allclose(forecast(model, batch).numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("topologies", [1, 2, 3])
@pytest.mark.parametrize("past", [1, 5, 13])
def test_it_is_its_equations(past: int, topologies: int) -> None:
    town = random_town("paper", topologies=topologies, quantity="speed")
    batch = in_float64(town.batch([12, 15, 21], past=past))
    model = graph_wavenet(town.scaling).double()
    assert_equations(model, batch)
    assert forecast(model, batch).std(dim=2).min() > 1e-3
    if len(batch.topologies) > 1:  # the roads matter, so that the equality above says something of them
        one = replace(batch, topologies=batch.topologies[:1], topology_of=torch.zeros_like(batch.topology_of))
        assert not torch.allclose(forecast(model, one), forecast(model, batch), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [1, 3])
def test_it_is_its_equations_with_road_features_and_other_layers(layers: int) -> None:
    town = random_town("default", topologies=2)
    model = graph_wavenet(town.scaling, layers=layers, roads=True).double()
    assert model.receptive_field == {1: 2, 3: 5}[layers]
    assert_equations(model, in_float64(town.batch([15, 16])))


def test_parameters_are_near_the_papers_and_of_no_network() -> None:
    settings = preset("graph-wavenet")
    assert isinstance(settings.model, BaselineSettings)
    counts = []
    for num_nodes in (9, 21):
        model = GraphWaveNet(settings.model, settings.task, random_town("paper", num_nodes=num_nodes).scaling)
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
        assert model.receptive_field == FIELD
    assert counts == [247_756, 247_756]  # the paper: 247,660


# Any T, one H


def test_padding_is_missing_readings_of_no_time() -> None:
    """A short window equals a full one whose first snapshots have neither readings nor a calendar."""
    town = random_town("paper", topologies=2)
    model = graph_wavenet(town.scaling)
    full = town.batch([16], past=FIELD)
    short = town.batch([16], past=4)
    assert torch.equal(full.topology_of[:, -4:], short.topology_of)
    observed, calendar, topology_of = full.observed.clone(), full.calendar_past.clone(), full.topology_of.clone()
    observed[:, :-4], calendar[:, :-4], topology_of[:, :-4] = False, 0.0, short.topology_of[:, :1]
    empty = replace(full, observed=observed, calendar_past=calendar, topology_of=topology_of)
    assert_same(exactly(model, empty), exactly(model, short))
    assert not torch.allclose(exactly(model, full), exactly(model, short), rtol=1e-4, atol=1e-4)


def test_snapshots_before_the_receptive_field_cannot_matter() -> None:
    town = random_town("paper", topologies=2)
    model = graph_wavenet(town.scaling)
    found = exactly(model, town.batch([20], past=FIELD))
    assert_same(exactly(model, town.batch([20], past=18)), found)
    # The first of the field still does.
    batch = town.batch([20], past=FIELD)
    values = batch.values.clone()
    values[:, 0] += 50
    moved = exactly(model, replace(batch, values=values * batch.observed))
    assert (moved - found).abs().max() > 1e-6


def test_another_horizon_is_refused() -> None:
    town = random_town("paper")
    model = graph_wavenet(town.scaling)
    assert forecast(model, town.batch([9], past=7, horizon=3)).shape == (1, 3, 13)
    with pytest.raises(SettingsError, match=r"horizon = 5: GraphWaveNet was built for 3 .* Use horizon = 3, or train"):
        model(town.batch([9], horizon=5))


def test_windows_of_mixed_topologies_equal_the_windows_alone() -> None:
    town = random_town("paper", topologies=3)
    model, batch = graph_wavenet(town.scaling), town.batch([5, 10, 15, 21, 26])
    together = exactly(model, batch)
    assert_same(torch.cat([exactly(model, part) for part in batch.split(2)]), together)
    assert_same(torch.cat([exactly(model, town.batch([last])) for last in (5, 10, 15, 21, 26)]), together)


# Missing readings, training


@pytest.mark.parametrize("roads", [False, True])
def test_gradients_reach_every_weight_and_are_finite(roads: bool) -> None:
    town = random_town("default" if roads else "paper", topologies=2)
    model = graph_wavenet(town.scaling, roads=roads).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model(town.batch([5, 9, 16])).abs().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.any(), name
            assert parameter.grad.isfinite().all(), name
        model.zero_grad()
        found = model(town.batch([9], inputs=np.zeros(13, bool)))
    found.sum().backward()
    assert found.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_what_was_not_observed_cannot_matter() -> None:
    town = random_town("paper")
    batch, model = town.batch([9, 15]), graph_wavenet(town.scaling)
    poisoned = replace(batch, values=batch.values.where(batch.observed, float("nan")), target=None)
    assert torch.equal(forecast(model, poisoned), forecast(model, batch))


def test_only_training_drops_out_and_windows_do_not_mix() -> None:
    town = random_town("paper")
    batch, model = town.batch([9, 15]), graph_wavenet(town.scaling)
    assert torch.equal(forecast(model, batch), forecast(model, batch))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.train()
        assert not torch.equal(forecast(model, batch), forecast(model, batch))
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                assert module.p == 0.3
                module.p = 0.0
        # No norm over the batch: in training too, a window's forecast is its own.
        assert_same(exactly(model, batch)[:1], exactly(model, town.batch([9])))


# In the harness


def test_bf16_is_near_fp32() -> None:
    town = random_town("paper", topologies=2)
    batch, model = town.batch([9, 16]), graph_wavenet(town.scaling, width=16, noise=0.02)
    exact = forecast(model, batch)
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(0)
        rough = forecast(model, batch)
        model.train()(batch).sum().backward()
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).abs().max() < 0.05 * exact.abs().max()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def kept_by_backward(model: GraphWaveNet, batch: Batch) -> int:
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    stored: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            stored[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = model(batch)
    assert result.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in stored.values())


def test_what_backward_keeps_is_what_it_says() -> None:
    town = random_town("paper", num_nodes=40)
    model = graph_wavenet(town.scaling, width=32).train()
    batch = town.batch([14], past=12)
    said = model.training_activations(nodes=40, edges=60, past=12, horizon=3)
    assert 0.7 * 4 * said <= kept_by_backward(model, batch) <= 4 * said
    with torch.autocast("cpu", torch.bfloat16):
        weights = 2 * sum(parameter.numel() for parameter in model.parameters())  # autocast's copies: once a step
        assert 0.7 * 2 * said <= kept_by_backward(model, batch) - weights <= 2 * said


def test_it_learns() -> None:
    assert_it_learns_tides(lambda scaling: graph_wavenet(scaling, width=8, noise=0.0))
