"""DCRNN against its equations on dense matrices; scheduled sampling; any T and H."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.baselines.dcrnn import DCGRU, DCRNN, SUPPORTS, WINDOWS_A_STEP
from frigate.nn.batch import Batch
from frigate.nn.calendar import calendar
from frigate.nn.scaling import Scaling
from tests.support.baselines import Array, in_users_unit, inputs_by_hand, linear, sigmoid, small_baseline, walks_by_hand
from tests.support.models import assert_same, exactly, forecasts
from tests.support.towns import Town, hide, in_float64, random_town, rows_alone


def dcrnn(scaling: Scaling, **options: Any) -> DCRNN:
    model = small_baseline("dcrnn", scaling, **{"past": 4, **options})
    assert isinstance(model, DCRNN)
    return model


# The equations, for one window at a time, with N x N matrices in float64


def convolve(supports: list[Array], X: Array, theta: Array) -> Array:
    """Eq. 2: the sum over the supports of P X theta_P; theta is [5,C,Q]."""
    total = np.zeros((len(X), theta.shape[2]))
    for P, weight in zip(supports, theta, strict=True):
        total += P @ X @ weight
    return total


def thetas(cell: DCGRU) -> tuple[Array, Array, Array, Array]:
    """Of the gates and of the candidate, each for [x, h], and their biases."""

    def of(weight: Tensor) -> Array:
        return weight.detach().numpy().T.reshape(SUPPORTS, -1, len(weight))

    D = cell.width
    x = cell.read.weight
    bias = cell.read.bias.detach().numpy()
    gates = np.concatenate([of(x[: 2 * D]), of(cell.gates.weight)], axis=1)
    candidate = np.concatenate([of(x[2 * D :]), of(cell.candidate.weight)], axis=1)
    return gates, candidate, bias[: 2 * D], bias[2 * D :]


def cell_step(cell: DCGRU, supports: list[Array], x: Array, h: Array) -> Array:
    """Eq. 3."""
    gates, candidate, bias, candidate_bias = thetas(cell)
    both = sigmoid(convolve(supports, np.hstack([x, h]), gates) + bias)
    r = both[:, : cell.width]
    u = both[:, cell.width :]
    c = np.tanh(convolve(supports, np.hstack([x, r * h]), candidate) + candidate_bias)
    return u * h + (1 - u) * c


def reference(model: DCRNN, batch: Batch, b: int, fed: NDArray[np.bool_] | None = None) -> Array:
    """[H,N] of window b; the truth is fed back where `fed` [H,N]."""
    walks = [walks_by_hand(topology, model.length_scale_m) for topology in batch.topologies]
    N = batch.num_nodes
    D = model.settings.width
    states = [np.zeros((N, D)) for _ in model.encoder]
    for t in range(batch.past):
        x = inputs_by_hand(model, batch, b, t)
        for i, cell in enumerate(model.encoder):
            assert isinstance(cell, DCGRU)
            x = states[i] = cell_step(cell, walks[int(batch.topology_of[b, t])], x, states[i])
    y = np.zeros((N, 1))
    found = []
    for k in range(batch.horizon):
        x = np.hstack([y, np.tile(calendar(batch.time_future[b, k]).double().numpy(), (N, 1))])
        for i, cell in enumerate(model.decoder):
            assert isinstance(cell, DCGRU)
            x = states[i] = cell_step(cell, walks[int(batch.topology_of[b, -1])], x, states[i])
        y = linear(model.readout, x)
        found.append(in_users_unit(model, y[:, 0]))
        if fed is not None and batch.target is not None:
            y = np.where(fed[k], model.scaled(batch.target[b, k]).numpy(), y[:, 0])[:, None]
    return np.array(found)


def assert_equations(found: Tensor, model: DCRNN, batch: Batch, fed: Tensor | None = None) -> None:
    """The walks are kept in fp32, hence the tolerance."""
    expected = [reference(model, batch, b, None if fed is None else fed[b].numpy()) for b in range(batch.num_windows)]
    np.testing.assert_allclose(found.numpy(), np.array(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("quantity", ["count", "speed"])
@pytest.mark.parametrize("topologies", [1, 2, 3])
def test_it_is_its_equations(topologies: int, quantity: str) -> None:
    town = random_town("paper", topologies=topologies, quantity=quantity)
    batch = rows_alone(in_float64(town.batch([9, 12, 16, 21], past=5, horizon=4)))
    assert len(batch.topologies) == topologies
    model = dcrnn(town.scaling).double()
    found = forecasts(model, batch)
    assert_equations(found, model, batch)
    assert found.std(dim=2).min() > 1e-3
    if topologies > 1:  # the roads matter, so that the equality above says something of them
        one = replace(batch, topologies=batch.topologies[:1], topology_of=torch.zeros_like(batch.topology_of))
        assert not torch.allclose(forecasts(model, one), found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [1, 3])
def test_it_is_its_equations_with_road_features_and_other_layers(layers: int) -> None:
    town = random_town("default", topologies=2)
    batch = in_float64(town.batch([15, 16]))
    model = dcrnn(town.scaling, layers=layers, roads=True).double()
    assert_equations(forecasts(model, batch), model, batch)


# Scheduled sampling


def shown_targets(batch: Batch) -> Tensor:
    """[B,H,N] whose truth may be read in training."""
    assert batch.target_observed is not None
    return batch.target_observed & batch.observed.any(dim=1)[:, None]


def training(model: DCRNN, *, step: int) -> DCRNN:
    model.sampled.fill_(step * WINDOWS_A_STEP)
    return model.train()


ALWAYS, NEVER = -100_000, 100_000  # steps at which the share of the truth is 1 and 0


def half_seen(town: Town) -> Batch:
    """Half of the nodes are no input; the others have the truth at most steps ahead."""
    batch = rows_alone(town.batch([9, 12, 16], past=2, horizon=5, inputs=np.arange(13) % 2 == 0))
    shown = shown_targets(batch)
    there = batch.target_observed
    assert there is not None
    assert 0 < shown.sum() < there.sum() < there.numel()
    return batch


def test_the_truth_is_fed_where_it_is_shown_and_nowhere_else() -> None:
    town = random_town("paper", topologies=2)
    batch = in_float64(half_seen(town))
    model = dcrnn(town.scaling).double()
    target = batch.target
    shown = shown_targets(batch)
    assert target is not None
    batch = replace(batch, target=target.double())
    found = forecasts(training(model, step=ALWAYS), batch)
    assert_equations(found, model, batch, fed=shown)
    assert not torch.allclose(found, forecasts(model.eval(), batch), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("step", [ALWAYS, 0, 148])
def test_no_other_truth_can_matter(step: int) -> None:
    town = random_town("paper")
    batch = half_seen(town)
    model = dcrnn(town.scaling)
    shown = shown_targets(batch)
    assert batch.target is not None
    found = []
    for target in (batch.target, batch.target.where(shown, float("nan")), batch.target.where(shown, 1e9)):
        model.zero_grad()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            found_now = training(model, step=step)(replace(batch, target=target))
        found_now.sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        assert all(gradient.isfinite().all() for gradient in gradients)
        found.append([found_now.detach(), *gradients])
    for other in found[1:]:
        assert all(torch.equal(left, right) for left, right in zip(found[0], other, strict=True))


def test_a_hidden_sensors_truth_cannot_matter() -> None:
    town = random_town("paper")
    batch = town.batch([9, 12])
    model = dcrnn(town.scaling)
    hidden = torch.zeros(2, 13, dtype=torch.bool)
    hidden[0, ::2] = True
    hidden[1, 1::2] = True
    assert batch.target is not None
    poisoned = replace(batch, target=batch.target.where(~hidden[:, None], float("nan")))
    found = [forecasts(training(model, step=ALWAYS), hide(each, hidden)) for each in (batch, poisoned)]
    assert torch.equal(*found)


def test_never_in_use() -> None:
    town = random_town("paper")
    batch = town.batch([9, 12])
    model = dcrnn(town.scaling)
    assert batch.target is not None
    model.sampled.fill_(ALWAYS)
    before = torch.random.get_rng_state()
    found = forecasts(model, batch)
    for other in (replace(batch, target=batch.target * float("nan")), replace(batch, target=None)):
        assert torch.equal(forecasts(model, other), found)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert int(model.sampled) == ALWAYS
    # In training without the truth, and at the end of the decay, there is nothing to feed back either.
    assert torch.equal(forecasts(model.train(), replace(batch, target=None)), found)
    assert torch.equal(forecasts(training(model, step=NEVER), batch), found)


def test_it_decays_with_the_steps_of_training() -> None:
    town = random_town("paper")
    batch = town.batch(list(range(4, 24)), horizon=5)
    model = dcrnn(town.scaling)
    shown = shown_targets(batch)
    shares = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for step in (0, 148, 331, 600):
            truth = training(model, step=step).scheduled_truth(batch)
            assert truth is not None
            fed = truth[1].permute(1, 2, 0)
            assert int(model.sampled) == step * WINDOWS_A_STEP + batch.num_windows
            # One coin for each window and step: all of its sensors, or none.
            assert ((fed == shown).all(dim=2) | ~fed.any(dim=2)).all()
            shares.append(float(fed.sum() / shown.sum()))
    assert shares[0] > 0.9
    assert 0.3 < shares[1] < 0.7
    assert shares[2] < 0.1
    assert shares[3] < 0.05
    i = np.array([0, 40, 148, 331, 600])
    expected = 40 / (40 + np.exp(i / 40))
    found = [float(training(model, step=int(each)).truth_share) for each in i]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert float(training(model, step=10**9).truth_share) == 0


def test_the_count_of_steps_goes_with_the_weights() -> None:
    town = random_town("paper")
    batch = town.batch([9, 12])
    model = dcrnn(town.scaling).train()
    for _ in range(3):
        forecasts(model, batch)
    forecasts(model.eval(), batch)
    assert int(model.sampled) == 3 * batch.num_windows
    other = dcrnn(town.scaling, seed=1)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    assert int(other.sampled) == 3 * batch.num_windows
    assert torch.equal(other.truth_share, model.truth_share)
    assert torch.equal(forecasts(other, batch), forecasts(model, batch))


def test_the_draw_is_torchs_own() -> None:
    town = random_town("paper")
    batch = town.batch([9, 12, 15])
    found = []
    with torch.random.fork_rng(devices=[]):
        for seed in (0, 0, 1, 2, 3):
            torch.manual_seed(seed)
            found.append(forecasts(training(dcrnn(town.scaling), step=148), batch))
    assert torch.equal(found[0], found[1])
    assert not all(torch.equal(found[0], each) for each in found[2:])


# Any T and H


def test_past_and_horizon_may_differ_from_training() -> None:
    town = random_town("paper", topologies=2)
    model = dcrnn(town.scaling)
    long = exactly(model, town.batch([16], past=4, horizon=9))
    for horizon in (1, 9):
        found = exactly(model, town.batch([16], past=4, horizon=horizon))
        assert_same(found, long[:, :horizon])
    for past in (1, 13):
        found = exactly(model, town.batch([16], past=past, horizon=2))
        assert found.isfinite().all()
        assert not torch.allclose(found, long[:, :2])
