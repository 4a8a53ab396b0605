"""LocaleGN against its equations, road by road; and on changing roads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from frigate.baselines.localegn import GraphNetwork, LocaleGN
from frigate.nn.batch import Batch
from frigate.nn.scaling import Scaling
from tests.support.baselines import Array, in_users_unit, inputs_by_hand, linear, sigmoid, small_baseline
from tests.support.models import assert_same, exactly
from tests.support.towns import bare_topology, random_town


def localegn(scaling: Scaling, *, layers: int = 2, roads: bool = False) -> LocaleGN:
    model = small_baseline("localegn", scaling, past=4, width=5, layers=layers, roads=roads, noise=0.1)
    assert isinstance(model, LocaleGN)
    return model


# The equations, for one window, one road and one node at a time


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


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
        x = inputs_by_hand(model, batch, b, t)
        v = [relu(linear(model.node_encoder, row)) for row in x]
        e = {}
        for s, r, length_m in zip(topology.senders, topology.receivers, topology.length_m.double(), strict=True):
            length = np.log1p(float(length_m) / model.length_scale_m)
            e[int(s), int(r)] = relu(linear(model.road_encoder, np.array([length])))
        for network in networks:
            network.step(v, e)
            v = [below + h for below, h in zip(v, network.h, strict=True)]
            e = network.g
        memory = [gru(model.history, row, before) for row, before in zip(x, memory, strict=True)]
    found = []
    for h, alone in zip(networks[-1].h, memory, strict=True):
        steps = linear(model.decoder[3], relu(linear(model.decoder[0], h))) + linear(model.of_history, alone)
        found.append(in_users_unit(model, steps))
    return np.stack(found, axis=1)


def gru(cell: nn.GRU, x: Array, h: Array) -> Array:
    weights = [weight.detach().double().numpy() for weight in cell.all_weights[0]]
    from_x = weights[0] @ x + weights[2]
    from_h = weights[1] @ h + weights[3]
    D = len(h)
    r = sigmoid(from_x[:D] + from_h[:D])
    z = sigmoid(from_x[D : 2 * D] + from_h[D : 2 * D])
    result: Array = (1 - z) * np.tanh(from_x[2 * D :] + r * from_h[2 * D :]) + z * h
    return result


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("roads", [False, True])
def test_it_is_its_equations(layers: int, roads: bool) -> None:
    town = random_town("default" if roads else "paper", quantity="speed")
    model = localegn(town.scaling, layers=layers, roads=roads)
    batch = town.batch([7, 20])
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
        assert_same(exactly(model, alone)[0], found[b])


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


@pytest.mark.parametrize("past", [1, 7])
def test_it_is_its_equations_for_any_past(past: int) -> None:
    town = random_town("paper")
    model = localegn(town.scaling)
    batch = town.batch([12], past=past)
    np.testing.assert_allclose(exactly(model, batch)[0].numpy(), reference(model, batch, 0), rtol=1e-9, atol=1e-9)
