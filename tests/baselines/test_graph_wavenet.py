"""GraphWaveNet against its equations on dense matrices; what it sees of long and short windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from frigate.baselines.graph_wavenet import DiffusionLayer, GatedTime, GraphWaveNet
from frigate.nn.batch import Batch
from frigate.nn.scaling import Scaling
from tests.support.baselines import (
    Array,
    in_users_unit,
    inputs_by_hand,
    layer_norm,
    linear,
    small_baseline,
    walks_by_hand,
)
from tests.support.models import assert_same, exactly, forecasts
from tests.support.towns import in_float64, random_town, rows_alone

FIELD = 13


def graph_wavenet(scaling: Scaling, *, layers: int = 8, **options: Any) -> GraphWaveNet:
    model = small_baseline("graph-wavenet", scaling, **{"past": 4, "width": 5, "layers": layers, **options})
    assert isinstance(model, GraphWaveNet)
    return model


# The equations, for one window at a time, node by matrix, in float64


def gated(module: GatedTime, now: Array, before: Array) -> Array:
    """tanh(W_1 * x + a) . sigmoid(W_2 * x + c), a kernel of two as a sum over its two taps."""
    D = now.shape[1]
    weight = module.linear.weight.detach().numpy()
    bias = module.linear.bias.detach().numpy()
    total = before @ weight[:, :D].T + now @ weight[:, D:].T + bias
    result: Array = np.tanh(total[:, :D]) / (1 + np.exp(-total[:, D:]))
    return result


def diffused(module: DiffusionLayer, walks: list[Array], h: Array, residual: Array) -> Array:
    """The sum over k of P_f^k H W_k1 + P_b^k H W_k2, the residual, and the norm."""
    D = h.shape[1]
    weight = module.linear.weight.detach().numpy()
    total = module.linear.bias.detach().numpy() + residual
    for k, P in enumerate(walks):
        total = total + P @ h @ weight[:, k * D : (k + 1) * D].T
    normed: Array = layer_norm(module.norm, torch.from_numpy(total)).detach().numpy()
    return normed


def reference(model: GraphWaveNet, batch: Batch, b: int) -> Array:
    """[H,N] of window b. Every step of every layer is a matrix [N,D], in a dictionary by its snapshot."""
    walks = [walks_by_hand(topology, model.length_scale_m) for topology in batch.topologies]
    given = [inputs_by_hand(model, batch, b, t) for t in range(batch.past)]
    D = model.settings.width
    T = batch.past
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
                t: diffused(diffusion, walks[int(batch.topology_of[b, max(t, 0)])], h, steps[t])
                for t, h in outputs.items()
            }
    hidden = np.maximum(linear(model.end, np.maximum(sum_of_skips, 0)), 0)
    return in_users_unit(model, linear(model.readout, hidden).T)


def assert_equations(model: GraphWaveNet, batch: Batch) -> None:
    """The walks are kept in fp32, hence the tolerance."""
    expected = np.array([reference(model, batch, b) for b in range(batch.num_windows)])
    np.testing.assert_allclose(forecasts(model, batch).numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("topologies", [1, 2, 3])
@pytest.mark.parametrize("past", [1, 5, 13])
def test_it_is_its_equations(past: int, topologies: int) -> None:
    town = random_town("paper", topologies=topologies, quantity="speed")
    batch = rows_alone(in_float64(town.batch([12, 15, 21], past=past)))
    model = graph_wavenet(town.scaling).double()
    assert_equations(model, batch)
    assert forecasts(model, batch).std(dim=2).min() > 1e-3
    if len(batch.topologies) > 1:  # the roads matter, so that the equality above says something of them
        one = replace(batch, topologies=batch.topologies[:1], topology_of=torch.zeros_like(batch.topology_of))
        assert not torch.allclose(forecasts(model, one), forecasts(model, batch), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [1, 3])
def test_it_is_its_equations_with_road_features_and_other_layers(layers: int) -> None:
    town = random_town("default", topologies=2)
    model = graph_wavenet(town.scaling, layers=layers, roads=True).double()
    assert model.receptive_field == {1: 2, 3: 5}[layers]
    assert_equations(model, in_float64(town.batch([15, 16])))


# Long and short windows


def test_padding_is_missing_readings_of_no_time() -> None:
    """A short window equals a full one whose first snapshots have neither readings nor a calendar."""
    town = random_town("paper", topologies=2)
    model = graph_wavenet(town.scaling).double()
    full, short = (in_float64(town.batch([16], past=past)) for past in (FIELD, 4))
    assert torch.equal(full.topology_of[:, -4:], short.topology_of)
    topology_of = full.topology_of.clone()
    topology_of[:, :-4] = short.topology_of[:, :1]
    with torch.inference_mode():
        x = model.read(full)
        x[:, :, :-4] = 0
        empty = model.forecast(x, replace(full, topology_of=topology_of))
        assert_same(empty, model.forecast(model.read(short), short))
        assert not torch.allclose(empty, model.forecast(model.read(full), full), rtol=1e-4, atol=1e-4)


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


# Training


def test_only_training_drops_out_and_windows_do_not_mix() -> None:
    town = random_town("paper")
    batch = town.batch([9, 15])
    model = graph_wavenet(town.scaling)
    assert torch.equal(forecasts(model, batch), forecasts(model, batch))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.train()
        assert not torch.equal(forecasts(model, batch), forecasts(model, batch))
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                assert module.p == 0.3
                module.p = 0.0
        # No norm over the batch: in training too, a window's forecast is its own.
        assert_same(exactly(model, batch)[:1], exactly(model, town.batch([9])))
