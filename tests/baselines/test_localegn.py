"""LocaleGN against its equations, road by road; changing roads; any T; that it learns from neighbours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frigate.baselines.localegn import GraphNetwork, LocaleGN
from frigate.config import BaselineSettings, Task
from frigate.errors import SettingsError
from frigate.nn.batch import Batch
from frigate.nn.scaling import Scaling
from tests.support.baseline_towns import exactly, forecast, noisy
from tests.support.towns import bare_topology, random_town

Array = NDArray[np.float64]


def localegn(scaling: Scaling, *, width: int = 5, layers: int = 2, roads: bool = False, seed: int = 0) -> LocaleGN:
    return noisy(
        lambda: LocaleGN(BaselineSettings("localegn", width=width, layers=layers, roads=roads), Task(4, 3), scaling),
        noise=0.1,
        seed=seed,
    ).eval()


# The equations, for one window, one road and one node at a time


def linear(layer: nn.Module, x: Array) -> Array:
    assert isinstance(layer, nn.Linear)
    result: Array = layer.weight.detach().double().numpy() @ x + layer.bias.detach().double().numpy()
    return result


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def read(model: LocaleGN, batch: Batch, b: int, t: int) -> Array:
    """x [N,F]"""
    observed = batch.observed[b, t].numpy()
    scaled = (batch.values[b, t].double().numpy() - float(model.value_offset)) / float(model.value_scale)
    calendar = np.tile(batch.calendar_past[b, t].double().numpy(), (batch.num_nodes, 1))
    x = np.column_stack([np.where(observed, scaled, 0), observed, calendar])
    if model.settings.roads:
        x = np.hstack([x, batch.topologies[int(batch.topology_of[b, t])].road_features.double().numpy()])
    return x


class Recurrence:
    """One graph network and what it remembers; a road is its pair of ends."""

    def __init__(self, network: nn.Module, num_nodes: int) -> None:
        assert isinstance(network, GraphNetwork)
        self.network = network
        self.nothing = np.zeros(network.width)
        self.h = [self.nothing] * num_nodes
        self.g: dict[tuple[int, int], Array] = {}
        self.u = self.nothing

    def step(self, v: list[Array], e: dict[tuple[int, int], Array]) -> None:
        g = {}
        for (s, r), edge in e.items():
            before = self.g.get((s, r), self.nothing)
            parts = [edge, before, v[s], self.h[s], v[r], self.h[r], self.u]
            g[s, r] = relu(linear(self.network.road, np.concatenate(parts)))
        h = []
        for node in range(len(v)):
            out = sum((g[road] for road in g if road[0] == node), self.nothing)
            in_ = sum((g[road] for road in g if road[1] == node), self.nothing)
            h.append(relu(linear(self.network.node, np.concatenate([v[node], self.h[node], out, in_, self.u]))))
        ends = {node for road in g for node in road}
        means = [np.mean(list(g.values()), axis=0), np.mean([h[node] for node in ends], axis=0)]
        self.u = relu(linear(self.network.city, np.concatenate([self.u, *means])))
        self.h, self.g = h, g


def reference(model: LocaleGN, batch: Batch, b: int) -> Array:
    """[H,N] of window b."""
    N = batch.num_nodes
    networks = [Recurrence(network, N) for network in model.networks]
    memory = [np.zeros(model.settings.width)] * N
    for t in range(batch.past):
        topology = batch.topologies[int(batch.topology_of[b, t])]
        x = read(model, batch, b, t)
        v = [relu(linear(model.node_encoder, row)) for row in x]
        e = {}
        for s, r, length_m in zip(topology.senders, topology.receivers, topology.length_m.double(), strict=True):
            length = np.log1p(float(length_m) / model.length_scale_m)
            e[int(s), int(r)] = relu(linear(model.road_encoder, np.array([length])))
        for network in networks:
            network.step(v, e)
            v, e = [below + h for below, h in zip(v, network.h, strict=True)], network.g
        memory = [gru(model.history, row, before) for row, before in zip(x, memory, strict=True)]
    found = []
    for h, alone in zip(networks[-1].h, memory, strict=True):
        steps = linear(model.decoder[3], relu(linear(model.decoder[0], h))) + linear(model.of_history, alone)
        found.append(steps * float(model.value_scale) + float(model.value_offset))
    return np.stack(found, axis=1)


def gru(cell: nn.GRU, x: Array, h: Array) -> Array:
    weights = [weight.detach().double().numpy() for weight in cell.all_weights[0]]
    from_x, from_h = weights[0] @ x + weights[2], weights[1] @ h + weights[3]
    D = len(h)
    r, z = sigmoid(from_x[:D] + from_h[:D]), sigmoid(from_x[D : 2 * D] + from_h[D : 2 * D])
    result: Array = (1 - z) * np.tanh(from_x[2 * D :] + r * from_h[2 * D :]) + z * h
    return result


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("roads", [False, True])
def test_it_is_its_equations(layers: int, roads: bool) -> None:
    town = random_town("default" if roads else "paper", quantity="speed")
    model, batch = localegn(town.scaling, layers=layers, roads=roads), town.batch([7, 20])
    found = exactly(model, batch)
    for b in range(2):
        np.testing.assert_allclose(found[b].numpy(), reference(model, batch, b), rtol=1e-9, atol=1e-9)
    assert found.std(dim=2).min() > 1e-3


def test_it_is_its_equations_on_changing_roads() -> None:
    """Roads close and open again within a window, and windows differ."""
    town = random_town("paper", topologies=3)
    batch = town.batch([11, 21, 16])
    assert len(batch.topologies) == 3
    batch = replace(batch, topology_of=torch.tensor([[0, 1, 0, 2], [1, 1, 2, 0], [2, 2, 2, 2]]))
    model = localegn(town.scaling)
    found = exactly(model, batch)
    for b in range(3):
        np.testing.assert_allclose(found[b].numpy(), reference(model, batch, b), rtol=1e-9, atol=1e-9)
        alone = list(batch.split(1))[b]
        torch.testing.assert_close(exactly(model, alone)[0], found[b], rtol=1e-9, atol=1e-9)


def test_a_reading_travels_one_road_a_snapshot() -> None:
    """The city's state is one snapshot behind: at T = 1 only neighbours hear of a reading."""
    town = random_town("paper", num_nodes=5, isolated=1)
    model = localegn(town.scaling, layers=1)
    batch = replace(town.batch([9], past=1), topologies=(bare_topology(5, [0, 1, 2], [1, 2, 3]),))
    observed = torch.ones_like(batch.observed)
    batch = replace(batch, observed=observed, topology_of=torch.zeros(1, 1, dtype=torch.int64))
    changed = replace(batch, values=batch.values + 5 * (torch.arange(5) == 0))
    difference = (exactly(model, changed) - exactly(model, batch)).abs().amax(dim=(0, 1))
    assert (difference > 1e-6).tolist() == [True, True, False, False, False]


# As a module


def test_any_past_and_no_other_horizon() -> None:
    town = random_town("paper")
    model = localegn(town.scaling)
    for past in (1, 7):
        batch = town.batch([12], past=past)
        np.testing.assert_allclose(exactly(model, batch)[0].numpy(), reference(model, batch, 0), rtol=1e-9, atol=1e-9)
    with pytest.raises(SettingsError, match=r"horizon = 5: LocaleGN was built for 3 .* train again"):
        model(town.batch([12], horizon=5))


@pytest.mark.parametrize("topologies", [1, 2])
def test_gradients_are_finite_and_every_weight_is_used(topologies: int) -> None:
    town = random_town("paper", topologies=topologies)
    model = localegn(town.scaling)
    silent = town.batch([15, 16], inputs=np.zeros(13, bool))
    for batch in (silent, town.batch([5, 15, 16])):
        model.zero_grad()
        found = model(batch)
        assert found.isfinite().all()
        found.abs().sum().backward()
        grads = {name: p.grad for name, p in model.named_parameters()}
        assert all(grad is not None and grad.isfinite().all() for grad in grads.values())
    assert [name for name, grad in grads.items() if grad is None or not grad.any()] == []


def test_a_city_without_roads_is_forecast() -> None:
    town = random_town("paper", num_nodes=5)
    batch = replace(town.batch([9, 10]), topologies=(bare_topology(5, [], []),))
    model = localegn(town.scaling)
    model(batch).sum().backward()
    assert forecast(model, batch).isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def kept_of(model: LocaleGN, batch: Batch) -> int:
    """How many numbers autograd keeps, the weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    stored: dict[int, tuple[int, Tensor]] = {}  # the tensor too, so that no other gets its address

    def note(tensor: Tensor) -> Tensor:
        at = tensor.untyped_storage().data_ptr()
        if tensor.is_floating_point() and at not in weights:
            stored[at] = tensor.untyped_storage().nbytes() // tensor.element_size(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(batch)
    return sum(count for count, _ in stored.values())


@pytest.mark.parametrize(("layers", "topologies"), [(1, 1), (2, 1), (2, 2)])
def test_training_activations_are_what_is_kept(layers: int, topologies: int) -> None:
    town = random_town("paper", num_nodes=60, topologies=topologies)
    model = localegn(town.scaling, width=32, layers=layers)
    batch = town.batch(list(range(13, 17)))
    assert len(batch.topologies) == topologies
    edges = max(topology.num_edges for topology in batch.topologies)
    said = 4 * model.training_activations(nodes=60, edges=edges, past=4, horizon=3)
    assert said / 2 < kept_of(model, batch) < 1.05 * said


def test_it_learns_from_neighbours() -> None:
    """Every window has one level, the same at all nodes; half of the nodes cannot see it for themselves."""
    town = random_town("paper", num_nodes=24, isolated=0)
    rng = np.random.default_rng(0)
    shown = torch.from_numpy(rng.permutation(24) < 12)
    batch = town.batch(list(range(6, 22)))
    level = torch.from_numpy(rng.normal(4, 3, (16, 1, 1)).astype(np.float32))
    observed = shown.expand_as(batch.observed)
    batch = replace(batch, values=(level * observed), observed=observed)
    model = localegn(town.scaling, width=16, layers=1).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        loss = (model(batch) - level).abs()[:, :, ~shown].mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    spread = float((level - level.median()).abs().mean())  # what the best constant would leave
    assert losses[-1] < min(losses[0], spread) / 2
