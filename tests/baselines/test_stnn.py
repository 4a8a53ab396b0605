"""STNN against its equations, picture by picture; and who is near whom."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from frigate.baselines.stnn import CONTEXT, HOPS, STNN, Locale, STNNBlock
from frigate.nn.batch import Batch
from frigate.nn.scaling import Scaling
from frigate.nn.topology import Topology
from tests.support.baselines import Array, in_users_unit, inputs_by_hand, linear, small_baseline
from tests.support.models import assert_same, exactly, forecasts
from tests.support.towns import (
    bare_topology,
    make_town,
    random_network,
    random_stream,
    random_town,
    reordered,
    small_settings,
)


def stnn(scaling: Scaling, *, layers: int = 2, roads: bool = False, seed: int = 0) -> STNN:
    options = {"past": 4, "width": 16, "layers": layers, "roads": roads}
    model = small_baseline("stnn", scaling, noise=0.1, seed=seed, **options)
    assert isinstance(model, STNN)
    return model


# The equations, for one node of one window at a time


def distances_m(topology: Topology) -> dict[tuple[int, int], float]:
    """Of all nodes within HOPS roads one way or the other, by walking every path."""
    found: dict[tuple[int, int], float] = {}
    roads = list(zip(topology.senders.tolist(), topology.receivers.tolist(), topology.length_m.tolist(), strict=True))

    def walk(first: int, last: int, length_m: float, hops: int) -> None:
        for pair in ((first, last), (last, first)):
            found[pair] = min(length_m, found.get(pair, np.inf))
        if hops:
            for s, r, more_m in roads:
                if s == last:
                    walk(first, r, length_m + more_m, hops - 1)

    for node in range(topology.num_nodes):
        walk(node, node, 0.0, HOPS)
    return found


def neighbours(topology: Topology, node: int) -> list[int]:
    """The nearest first; of equally near ones the one with the shorter roads in, then out."""
    metres = distances_m(topology)
    length_m = topology.length_m

    def key(other: int) -> tuple[float, float, float]:
        at = [float(length_m[ends == other].sum()) for ends in (topology.receivers, topology.senders)]
        return metres[node, other], at[0], at[1]

    return sorted((v for u, v in metres if u == node), key=key)[:CONTEXT]


def picture(model: STNN, batch: Batch, b: int, node: int) -> Array:
    """[M,T,F+1]"""
    chosen = neighbours(batch.topologies[int(batch.topology_of[b, -1])], node)
    events = np.zeros((CONTEXT, batch.past, model.inputs + 1))
    for t in range(batch.past):
        x = inputs_by_hand(model, batch, b, t)
        metres = distances_m(batch.topologies[int(batch.topology_of[b, t])])
        for i, other in enumerate(chosen):
            near = np.exp(-((metres.get((node, other), np.inf) / (2 * model.length_scale_m)) ** 2))
            events[i, t] = [*x[other], near]
    return events


def convolve(layer: nn.Conv2d, z: Array) -> Array:
    weight = layer.weight.detach().double().numpy()
    bias = layer.bias
    assert bias is not None
    high, wide = weight.shape[2:]
    M, T, _ = z.shape
    padded = np.pad(z, ((high // 2,) * 2, (wide // 2,) * 2, (0, 0)))
    found = np.tile(bias.detach().double().numpy(), (M, T, 1))
    for m in range(M):
        for t in range(T):
            found[m, t] += np.einsum("ijc,ocij->o", padded[m : m + high, t : t + wide], weight)
    return found


def leaky(z: Array) -> Array:
    return np.where(z > 0, z, 0.2 * z)


def through(block: nn.Module, z: Array) -> Array:
    assert isinstance(block, STNNBlock)
    z = linear(block.start, z)
    M, T, C = z.shape
    events = z.reshape(M * T, C)
    energy = linear(block.query, events) @ linear(block.key, events).T
    weight = np.exp(energy - energy.max(axis=1, keepdims=True))
    attended = weight / weight.sum(axis=1, keepdims=True) @ linear(block.value, events)
    a = z + float(block.gamma.detach()) * attended.reshape(M, T, C)
    parts = [leaky(convolve(layer, a)) for layer in (block.region, block.time, block.space)]
    return leaky(linear(block.residual, z) + leaky(linear(block.condense, np.concatenate(parts, axis=-1))))


def reference(model: STNN, batch: Batch, b: int, node: int) -> Array:
    """[H]"""
    z = picture(model, batch, b, node)
    for block in model.blocks:
        z = through(block, z)
    return in_users_unit(model, linear(model.readout, z.reshape(-1)))


def assert_equations(model: STNN, batch: Batch) -> None:
    found = exactly(model, batch)
    for b in range(batch.num_windows):
        for node in range(batch.num_nodes):
            np.testing.assert_allclose(
                found[b, :, node].numpy(), reference(model, batch, b, node), rtol=1e-9, atol=1e-9
            )
    assert found.std(dim=2).min() > 1e-3


@pytest.mark.parametrize("layers", [1, 2])
def test_it_is_its_equations(layers: int) -> None:
    town = random_town("paper", quantity="speed")
    assert_equations(stnn(town.scaling, layers=layers), town.batch([7, 20]))


def test_it_is_its_equations_with_road_features_and_some_nodes_at_a_time() -> None:
    town = random_town("default")
    model = stnn(town.scaling, roads=True)
    model.pictures_at_once = 9  # four nodes of two windows
    assert_equations(model, town.batch([7, 20]))


def test_it_is_its_equations_on_changing_roads() -> None:
    """The nodes are the last snapshot's, how near they are is each snapshot's own."""
    town = random_town("paper", topologies=3)
    batch = town.batch([11, 21])
    batch = replace(batch, topologies=town.topologies, topology_of=torch.tensor([[0, 1, 0, 2], [2, 2, 2, 0]]))
    model = stnn(town.scaling)
    assert_equations(model, batch)
    found = exactly(model, batch)
    for b, alone in enumerate(batch.split(1)):
        assert_same(exactly(model, alone)[0], found[b])


# Who is near whom


def test_the_nearest_by_road_come_first_and_missing_ones_are_none() -> None:
    # 0 -> 1 -> 2 -> 3 -> 4, roads of 1 m; 5 has no road.
    locale = Locale.of(bare_topology(6, [0, 1, 2, 3], [1, 2, 3, 4]), length_scale_m=1.0)
    near = [[node for node in row if node < 6] for row in locale.nodes.tolist()]
    assert near[5] == [5]
    assert near[0] == [0, 1, 2, 3]  # 4 is four roads away
    assert near[2][0] == 2
    assert set(near[2][1:3]) == {1, 3}
    assert set(near[2][3:]) == {0, 4}
    assert locale.nodes.shape == (6, CONTEXT)
    assert (locale.nodes.sort(dim=1).values[:, 5:] == 6).all()
    torch.testing.assert_close(locale.nearness_of(locale.nodes)[0, :5], torch.exp(-torch.tensor([0, 1, 4, 9, 1e9]) / 4))


def test_a_large_neighbourhood_is_cut() -> None:
    N = 40
    topology = bare_topology(N, [0] * (N - 1), list(range(1, N)))
    topology = replace(topology, length_m=torch.arange(N - 1, 0, -1).float())
    locale = Locale.of(topology, length_scale_m=1.0)
    assert locale.nodes[0].tolist() == [0, *range(N - 1, N - CONTEXT, -1)]
    assert locale.nodes[7, :2].tolist() == [7, 0]


@pytest.mark.parametrize("seed", range(8))
def test_permuting_the_nodes_permutes_the_forecast(seed: int) -> None:
    """Whole metres: some nodes are equally near in some of these towns."""
    network = random_network(30, seed=seed, isolated=1)
    stream = random_stream([network], seed=seed, snapshots=8)
    order = np.random.default_rng(seed).permutation(30)
    towns = [make_town(each, small_settings("paper")) for each in (stream, reordered(stream, order))]
    model = stnn(towns[0].scaling, seed=seed)
    left, right = (exactly(model, town.batch([4])) for town in towns)
    assert_same(right, left[:, :, order])


def test_equally_near_nodes_occur() -> None:
    """Or the test above would show less than it says."""
    ties = 0
    for seed in range(8):
        topology = make_town(random_stream([random_network(30, seed=seed)], seed=0), small_settings("paper")).topologies
        metres = distances_m(topology[0])
        rows = [[m for (u, _), m in metres.items() if u == node] for node in range(30)]
        ties += sum(len(row) - len(set(row)) for row in rows)
    assert ties > 20


# As a module


def test_a_copy_forecasts_the_same() -> None:
    town = random_town("paper")
    batch = town.batch([15, 16, 17])
    model = stnn(town.scaling)
    before = forecasts(model, batch)
    model(batch).sum().backward()  # what was kept while in use must be fit for training
    assert torch.equal(forecasts(copy.deepcopy(model), batch), before)
    assert len(model.locales) == 1
    forecasts(model, replace(batch, topologies=(bare_topology(13, [0], [1]),)))
    assert len(model.locales) == 1  # a topology that is gone is forgotten


def test_a_city_without_roads_is_forecast() -> None:
    town = random_town("paper", num_nodes=5)
    batch = replace(town.batch([9, 10]), topologies=(bare_topology(5, [], []),))
    assert_equations(stnn(town.scaling), batch)
