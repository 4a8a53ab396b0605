"""STNN against its equations, picture by picture; who is near whom; one T and H; that it learns from neighbours."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frigate.baselines.stnn import CONTEXT, HOPS, STNN, Block, Locale
from frigate.config import BaselineSettings, Task
from frigate.data.network import RoadNetwork
from frigate.errors import SettingsError
from frigate.nn.batch import Batch
from frigate.nn.scaling import Scaling
from frigate.nn.topology import Topology
from tests.support.baseline_towns import exactly, forecast, noisy
from tests.support.towns import (
    Town,
    bare_topology,
    make_town,
    random_network,
    random_stream,
    random_town,
    small_settings,
)

Array = NDArray[np.float64]


def stnn(scaling: Scaling, *, width: int = 16, layers: int = 2, roads: bool = False, seed: int = 0) -> STNN:
    return noisy(
        lambda: STNN(BaselineSettings("stnn", width=width, layers=layers, roads=roads), Task(4, 3), scaling),
        noise=0.1,
        seed=seed,
    ).eval()


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
        topology = batch.topologies[int(batch.topology_of[b, t])]
        metres = distances_m(topology)
        for i, other in enumerate(chosen):
            seen = bool(batch.observed[b, t, other])
            value = (float(batch.values[b, t, other]) - float(model.value_offset)) / float(model.value_scale)
            near = np.exp(-((metres.get((node, other), np.inf) / (2 * model.length_scale_m)) ** 2))
            roads = topology.road_features[other].tolist() if model.settings.roads else []
            events[i, t] = [value if seen else 0, seen, *batch.calendar_past[b, t].tolist(), *roads, near]
    return events


def linear(layer: nn.Module, x: Array) -> Array:
    assert isinstance(layer, nn.Linear)
    result: Array = x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
    return result


def convolve(layer: nn.Conv2d, z: Array) -> Array:
    weight, bias = layer.weight.detach().double().numpy(), layer.bias
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
    assert isinstance(block, Block)
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
    return linear(model.readout, z.reshape(-1)) * float(model.value_scale) + float(model.value_offset)


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
        torch.testing.assert_close(exactly(model, alone)[0], found[b], rtol=1e-9, atol=1e-9)


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


def permuted(network: RoadNetwork, order: NDArray[np.int64]) -> RoadNetwork:
    new_row = np.argsort(order)
    edges = replace(network.edges, senders=new_row[network.senders], receivers=new_row[network.receivers])
    return RoadNetwork(network.node_ids[order], network.lon[order], network.lat[order], edges, network.present[order])


@pytest.mark.parametrize("seed", range(8))
def test_permuting_the_nodes_permutes_the_forecast(seed: int) -> None:
    """Whole metres: some nodes are equally near in some of these towns."""
    network = random_network(30, seed=seed, isolated=1)
    stream = random_stream([network], seed=seed, snapshots=8)
    order = np.random.default_rng(seed).permutation(30)
    moved = replace(
        stream,
        values=stream.values[:, order],
        observed=stream.observed[:, order],
        topologies=(permuted(network, order),),
    )
    towns = [make_town(each, small_settings("paper")) for each in (stream, moved)]
    model = stnn(towns[0].scaling, seed=seed)
    left, right = (exactly(model, town.batch([4])) for town in towns)
    torch.testing.assert_close(right, left[:, :, order], rtol=1e-9, atol=1e-9)


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


def town_and_batch(*, topologies: int = 1) -> tuple[Town, Batch]:
    town = random_town("paper", topologies=topologies)
    return town, town.batch([15, 16, 17])


def test_another_past_or_horizon_is_refused() -> None:
    town, _ = town_and_batch()
    model = stnn(town.scaling)
    with pytest.raises(SettingsError, match="past = 5: STNN was built for 4"):
        model(town.batch([12], past=5))
    with pytest.raises(SettingsError, match="horizon = 2: STNN was built for 3"):
        model(town.batch([12], horizon=2))


@pytest.mark.parametrize("topologies", [1, 2])
def test_gradients_are_finite_and_every_weight_is_used(topologies: int) -> None:
    town, batch = town_and_batch(topologies=topologies)
    model = stnn(town.scaling).train()
    assert forecast(model, batch).isfinite().all()  # in use first: what is kept of it must be fit for training
    for each in (town.batch([15, 16], inputs=np.zeros(13, bool)), batch):
        model.zero_grad()
        found = model(each)
        assert found.isfinite().all()
        found.abs().sum().backward()
        grads = {name: p.grad for name, p in model.named_parameters()}
        assert all(grad is not None and grad.isfinite().all() for grad in grads.values())
    assert [name for name, grad in grads.items() if grad is None or not grad.any()] == []


def test_a_copy_forecasts_the_same() -> None:
    town, batch = town_and_batch()
    model = stnn(town.scaling)
    before = forecast(model, batch)
    assert torch.equal(forecast(copy.deepcopy(model), batch), before)
    assert len(model.locales) == 1
    forecast(model, replace(batch, topologies=(bare_topology(13, [0], [1]),)))
    assert len(model.locales) == 1  # a topology that is gone is forgotten


def test_a_city_without_roads_is_forecast() -> None:
    town = random_town("paper", num_nodes=5)
    batch = replace(town.batch([9, 10]), topologies=(bare_topology(5, [], []),))
    assert_equations(stnn(town.scaling), batch)


def kept_of(model: STNN, batch: Batch) -> int:
    """How many numbers autograd keeps, the weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}  # the tensor too, so that no other gets its address

    def note(tensor: Tensor) -> Tensor:
        at = tensor.untyped_storage().data_ptr()
        if tensor.is_floating_point() and at not in weights:
            kept[at] = tensor.untyped_storage().nbytes() // tensor.element_size(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(batch)
    return sum(count for count, _ in kept.values())


@pytest.mark.parametrize(("layers", "topologies"), [(1, 1), (2, 1), (2, 2)])
def test_training_activations_are_what_is_kept(layers: int, topologies: int) -> None:
    town = random_town("paper", num_nodes=40, topologies=topologies)
    model = stnn(town.scaling, layers=layers).train()
    batch = town.batch(list(range(13, 17)))
    assert len(batch.topologies) == topologies
    said = 4 * model.training_activations(nodes=40, edges=0, past=4, horizon=3)
    assert said / 2 < kept_of(model, batch) < 1.05 * said


def test_it_learns_from_neighbours() -> None:
    """Every window has one level, the same at all nodes; half of the nodes cannot see it for themselves."""
    town = random_town("paper", num_nodes=24, isolated=0)
    rng = np.random.default_rng(0)
    shown = torch.from_numpy(rng.permutation(24) < 12)
    batch = town.batch(list(range(6, 22)))
    level = torch.from_numpy(rng.normal(4, 3, (16, 1, 1)).astype(np.float32))
    observed = shown.expand_as(batch.observed)
    batch = replace(batch, values=level * observed, observed=observed)
    model = stnn(town.scaling, width=8, layers=1).train()
    losses = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(40):
            loss = (model(batch) - level).abs()[:, :, ~shown].mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    spread = float((level - level.median()).abs().mean())  # what the best constant would leave
    assert losses[-1] < min(losses[0], spread) / 2
