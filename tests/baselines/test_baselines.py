"""The six baselines are held to what Frigate is held to: inductive, blind to what was not observed.

Each baseline's own file of tests has its equations.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from frigate.city.network import RoadNetwork
from frigate.city.split import Split
from frigate.config import BASELINES, BaselineSettings, preset
from frigate.errors import SettingsError
from frigate.nn.batch import Batch
from frigate.nn.scaling import Scaling, build_topologies, fit_scaling
from frigate.roads.features import FEATURES, road_features
from frigate.training.run import build_model
from tests.support.baselines import OTHER_HORIZON, OTHER_PAST, H, T, in_training, small_baseline
from tests.support.errors import raises
from tests.support.memory import NoSquare, kept_by_backward
from tests.support.models import assert_same, exactly, forecasts
from tests.support.towns import (
    Town,
    bare_topology,
    edited,
    hide,
    in_float64,
    make_town,
    random_network,
    random_stream,
    random_town,
    reordered,
    roads_at,
    seen_by,
    small_settings,
    windows_on,
    without_readings,
)

EVERY = pytest.mark.parametrize("name", BASELINES)
ROADS = pytest.mark.parametrize("roads", [False, True], ids=["plain", "roads"])
DROPS_OUT = {"graph-wavenet", "stgode", "stnn"}


@cache
def place(*, topologies: int = 1, quantity: str = "count") -> Town:
    """A town with road features, which a baseline without `roads` passes over."""
    return random_town("default", topologies=topologies, quantity=quantity)


def windows(at: Town, current: list[int], **options: Any) -> Batch:
    return at.batch(current, **{"past": T, "horizon": H, **options})


# Inductivity


@cache
def network_of(num_nodes: int, past: int) -> tuple[Scaling, Batch]:
    """What training would keep of a network of this size, and one window of it."""
    network = random_network(num_nodes, seed=1)
    stream = random_stream([network], seed=1, snapshots=past + H, silent=1 - min(1.0, 30 / num_nodes))
    none = np.zeros(num_nodes, bool)
    split = Split(stream.sensors, none, none, (0, past), (0, 0), (0, 0))
    raw = np.random.default_rng(0).random((num_nodes, len(FEATURES)), np.float32)  # betweenness would take long
    scaling = fit_scaling(stream, split, BaselineSettings("stnn", 8, 2, roads=True), features=raw, seed=0)
    topologies, _ = build_topologies([network], scaling, sensors=stream.sensors, features=[raw])
    inputs = torch.ones(num_nodes, dtype=torch.bool)
    return scaling, windows_on(stream, topologies).batch(np.array([past - 1]), past=past, horizon=H, inputs=inputs)


@EVERY
@ROADS
def test_number_of_parameters_is_the_same_for_every_network(name: str, roads: bool) -> None:
    counts = []
    for num_nodes in (20, 2000):
        scaling, batch = network_of(num_nodes, T)
        model = small_baseline(name, scaling, roads=roads)
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
        found = forecasts(model, batch)
        assert found.shape == (1, H, num_nodes)
        assert found.isfinite().all()
    assert counts[0] == counts[1]


@EVERY
@ROADS
def test_weights_of_one_network_forecast_another(name: str, roads: bool) -> None:
    here = place()
    there = seen_by(random_stream([random_network(21, seed=8)], seed=8), here.settings, here.scaling)
    found = forecasts(small_baseline(name, here.scaling, roads=roads), windows(there, [9, 12]))
    assert found.shape == (2, H, 21)
    assert found.isfinite().all()
    assert found.std(dim=2).min() > 0


@EVERY
@ROADS
def test_nothing_as_large_as_all_pairs_of_nodes(name: str, roads: bool) -> None:
    N = 5000
    past = 5 if name == "stgcn" else 2  # STNN has (15 T)^2 numbers of a node, and so has no more than N of them
    scaling, batch = network_of(N, past)
    model = small_baseline(name, scaling, roads=roads, past=past, layers=1 if name == "stgcn" else 2)
    with NoSquare(N) as watched:
        model.train()(batch).sum().backward()
    assert watched.largest >= N * past * model.inputs * 4  # it saw the input


# Permutation


@EVERY
@ROADS
@pytest.mark.parametrize("seed", [3, 7])
def test_permuting_the_nodes_permutes_the_forecast(name: str, roads: bool, seed: int) -> None:
    before, after = moved_towns(seed)
    order = np.random.default_rng(seed).permutation(12)
    model = small_baseline(name, before.scaling, roads=roads, seed=seed)
    batch = windows(before, [9, 11])
    assert len(batch.topologies) == 2
    left = exactly(model, batch)
    right = exactly(model, windows(after, [9, 11]))
    # Road features are sums in another order, rounded to float32.
    torch.testing.assert_close(right, left[:, :, order], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(right, left, rtol=1e-3, atol=1e-3)


@cache
def moved_towns(seed: int) -> tuple[Town, Town]:
    """A town whose roads change, and the same with its nodes in another order; the roads in another order, too."""
    networks = [random_network(12, seed=seed, isolated=1)]
    networks.append(edited(networks[0], seed=seed).remove_nodes(networks[0].node_ids[:1].tolist()))
    stream = random_stream(networks, seed=seed, snapshots=20)
    order = np.random.default_rng(seed).permutation(12)
    before, after = (make_town(each, small_settings("default")) for each in (stream, reordered(stream, order)))
    assert after.scaling.length_scale_m == before.scaling.length_scale_m
    assert set(after.stream.node_ids.tolist()) == set(before.stream.node_ids.tolist())
    return before, after


# Missing readings


@EVERY
@ROADS
def test_a_node_without_any_reading_gets_a_forecast(name: str, roads: bool) -> None:
    at = place()
    model = small_baseline(name, at.scaling, roads=roads)
    assert not at.stream.sensors.all()
    assert forecasts(model, windows(at, [9])).isfinite().all()
    nothing = windows(at, [9], inputs=np.zeros(13, bool))
    assert not nothing.observed.any()
    assert forecasts(model, nothing).isfinite().all()


@EVERY
@ROADS
@pytest.mark.parametrize("noise", [0.0, 0.2], ids=["at the start", "later"])
def test_gradients_are_finite_without_any_reading(name: str, roads: bool, noise: float) -> None:
    at = place(topologies=2)
    model = small_baseline(name, at.scaling, roads=roads, noise=noise).train()
    found = model(windows(at, [15, 18], inputs=np.zeros(13, bool)))
    assert found.isfinite().all()
    found.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert sum(bool(gradient.any()) for gradient in gradients) > len(gradients) / 2


@EVERY
def test_a_city_without_roads_is_forecast(name: str) -> None:
    at = random_town("paper", num_nodes=5)
    batch = replace(windows(at, [9, 10]), topologies=(bare_topology(5, [], []),))
    model = small_baseline(name, at.scaling)
    found = model(batch)
    assert found.isfinite().all()
    found.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@EVERY
@ROADS
def test_a_true_zero_is_data(name: str, roads: bool) -> None:
    at = place()
    model = small_baseline(name, at.scaling, roads=roads)
    batch = windows(at, [12])
    node = int(batch.observed[0].sum(dim=0).argmax())
    values = batch.values.clone()
    observed = batch.observed.clone()
    values[..., node] = 0
    zero = replace(batch, values=values)
    observed[..., node] = False
    difference = (forecasts(model, zero) - forecasts(model, replace(zero, observed=observed))).abs().amax(dim=(0, 1))
    assert difference[node] > 1e-4
    assert (difference > 1e-4).sum() > 1  # the neighbours see it too


@EVERY
@ROADS
@pytest.mark.parametrize("quantity", ["count", "speed"])
def test_unobserved_values_have_no_influence(name: str, roads: bool, quantity: str) -> None:
    at = place(quantity=quantity, topologies=2)
    model = small_baseline(name, at.scaling, roads=roads)
    batch = windows(at, [15, 17])
    assert 0 < batch.observed.float().mean() < 1
    for poison in (1e6, -1.0, float("nan")):
        poisoned = replace(batch, values=batch.values.where(batch.observed, poison))
        for found in (forecasts, in_training):
            assert torch.equal(found(model, poisoned), found(model, batch))
    poisoned = replace(batch, target=torch.full_like(batch.values[:, :H], 1e6), target_observed=None)
    assert torch.equal(forecasts(model, poisoned), forecasts(model, batch))


@EVERY
@ROADS
def test_the_truth_of_a_node_that_is_not_shown_cannot_matter_even_in_training(name: str, roads: bool) -> None:
    """DCRNN is fed with truth in training: at sensors that the window shows, and there alone."""
    at = place()
    model = small_baseline(name, at.scaling, roads=roads)
    inputs = np.random.default_rng(4).random(13) < 0.5
    batch = windows(at, [10, 14], inputs=inputs)
    assert batch.target is not None and batch.target_observed is not None
    shown = batch.observed.any(dim=1, keepdim=True) & batch.target_observed
    assert 0 < shown.float().mean() < batch.target_observed.float().mean()
    for poison in (-9e5, float("nan")):
        poisoned = replace(batch, target=batch.target.where(shown, poison))
        for found in (forecasts, in_training):
            assert torch.equal(found(model, poisoned), found(model, batch))
    told = replace(batch, target=batch.target + 50)
    assert torch.equal(forecasts(model, told), forecasts(model, batch))
    assert torch.equal(in_training(model, told), in_training(model, batch)) == (name != "dcrnn")


@EVERY
@ROADS
def test_hiding_a_node_equals_never_having_had_its_readings(name: str, roads: bool) -> None:
    at = place(topologies=2)
    model = small_baseline(name, at.scaling, roads=roads)
    batch = windows(at, [15, 18])
    node = int(torch.nonzero(batch.observed.any(dim=1).all(dim=0))[0])
    hidden = torch.zeros(2, 13, dtype=torch.bool)
    hidden[:, node] = True
    never = windows(replace(at, windows=windows_on(without_readings(at.stream, node), at.topologies)), [15, 18])
    hiding = hide(batch, hidden)
    assert torch.equal(forecasts(model, hiding), forecasts(model, never))
    assert torch.equal(in_training(model, hiding), in_training(model, never))
    assert not torch.allclose(forecasts(model, hiding), forecasts(model, batch))


@EVERY
def test_hiding_is_for_each_window(name: str) -> None:
    at = place()
    model = small_baseline(name, at.scaling)
    batch = windows(at, [9, 9])
    hidden = torch.zeros(2, 13, dtype=torch.bool)
    hidden[1] = True
    found = exactly(model, hide(batch, hidden))
    assert_same(found[:1], exactly(model, windows(at, [9])))
    assert not torch.allclose(found[1], found[0])


# Windows and topologies


@EVERY
@ROADS
def test_splitting_a_batch_changes_nothing(name: str, roads: bool) -> None:
    at = place(topologies=3)
    model = small_baseline(name, at.scaling, roads=roads)
    batch = windows(at, [8, 12, 15, 21, 26])
    whole = exactly(model, batch)
    for size in (1, 2, 3, 9):
        parts = [model.double()(in_float64(part)) for part in batch.split(size)]
        assert_same(batch.join(torch.cat(parts)), whole)


@EVERY
@ROADS
def test_windows_of_mixed_topologies_equal_the_windows_alone(name: str, roads: bool) -> None:
    at = place(topologies=3)
    current = [8, 12, 15, 21, 26]
    model = small_baseline(name, at.scaling, roads=roads)
    batch = windows(at, current)
    assert len(batch.topologies) == 3
    assert len({tuple(row) for row in batch.topology_of.tolist()}) > 5  # the roads change ahead of some
    together = exactly(model, batch)
    for i, last in enumerate(current):
        assert_same(exactly(model, windows(at, [last])), together[i : i + 1])


@EVERY
@ROADS
def test_topologies_in_another_order_and_twice_are_the_same(name: str, roads: bool) -> None:
    at = place(topologies=2)
    model = small_baseline(name, at.scaling, roads=roads)
    batch = windows(at, [18])
    found = exactly(model, batch)
    swapped = replace(batch, topologies=batch.topologies[::-1], topology_of=1 - batch.topology_of)
    assert_same(exactly(model, swapped), found)
    twice = replace(batch, topologies=batch.topologies * 2, topology_of=batch.topology_of + 2 * (torch.arange(T) % 2))
    assert_same(exactly(model, twice), found)
    first = replace(batch, topologies=batch.topologies[:1], topology_of=torch.zeros(1, T, dtype=torch.int64))
    assert not torch.allclose(exactly(model, first), found)


@EVERY
@ROADS
def test_a_closed_road_equals_a_network_without_it(name: str, roads: bool) -> None:
    at = place()
    network = at.stream.network
    keep = ~np.isin(np.arange(network.num_edges), [0, 3])
    ids = network.node_ids.tolist()
    shut = [(ids[network.senders[e]], ids[network.receivers[e]]) for e in (0, 3)]
    model = small_baseline(name, at.scaling, roads=roads)
    found = [
        forecasts(model, windows(seen_by(at.stream.on(changed), at.settings, at.scaling), [9, 12]))
        for changed in (network.close(shut), network.with_roads(network.edges.take(keep)))
    ]
    assert torch.equal(*found)
    assert not torch.allclose(found[0], forecasts(model, windows(at, [9, 12])))


@EVERY
@ROADS
def test_an_absent_node_sends_no_messages(name: str, roads: bool) -> None:
    """Removed, or without roads and readings, or never in the table: all one to the others."""
    at = place()
    node = 4
    network = at.stream.network
    others = np.arange(13) != node
    removed = network.remove_nodes(network.node_ids[node : node + 1].tolist())
    features = road_features(removed)
    model = small_baseline(name, at.scaling, roads=roads)
    found = []
    for changed in (removed, network.close(roads_at(network, node))):
        stream = without_readings(at.stream.on(changed), node)
        there = seen_by(stream, at.settings, at.scaling, features=[features])
        found.append(exactly(model, windows(there, [9, 12]))[:, :, others])
    new_row = np.cumsum(others) - 1
    ends = {"senders": new_row[removed.senders], "receivers": new_row[removed.receivers]}
    fewer = RoadNetwork(
        network.node_ids[others], network.lon[others], network.lat[others], replace(removed.edges, **ends)
    )
    stream = at.stream
    stream = replace(stream, values=stream.values[:, others], observed=stream.observed[:, others], networks=(fewer,))
    there = seen_by(stream, at.settings, at.scaling, features=[features[others]])
    found.append(exactly(model, windows(there, [9, 12])))
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])
    assert not torch.allclose(found[0], exactly(model, windows(at, [9, 12]))[:, :, others])


@EVERY
@pytest.mark.parametrize(("past", "horizon"), [(4, H), (T - 1, H), (T + 4, H), (T, 1), (T, 6)])
def test_another_past_or_horizon_is_taken_or_refused(name: str, past: int, horizon: int) -> None:
    at = place()
    model = small_baseline(name, at.scaling)
    batch = windows(at, [14], past=past, horizon=horizon)
    what, taken = ("past", OTHER_PAST) if past != T else ("horizon", OTHER_HORIZON)
    if name in taken:
        found = forecasts(model, batch)
        assert found.shape == (1, horizon, 13)
        assert found.isfinite().all()
        return
    here = getattr(batch, what)
    built = {"past": T, "horizon": H}[what]
    with raises(SettingsError, f"{what} = {here}", BASELINES[name], f"{what} = {built}"):
        model(batch)


# The model as a module


@EVERY
@ROADS
def test_use_is_deterministic_and_only_training_drops_out(name: str, roads: bool) -> None:
    at = place()
    model = small_baseline(name, at.scaling, roads=roads)
    batch = replace(windows(at, [9]), target=None, target_observed=None)
    assert torch.equal(forecasts(model, batch), forecasts(model, batch))
    same = torch.equal(in_training(model, batch, seed=0), in_training(model, batch, seed=1))
    assert same == (name not in DROPS_OUT)


@EVERY
@ROADS
def test_the_scale_is_of_the_users_unit(name: str, roads: bool) -> None:
    at = place(quantity="speed")
    batch = windows(at, [9, 12])
    factor, shift = 1.609344, 10.0
    scale = at.scaling.value_scale * factor
    offset = at.scaling.value_offset * factor + shift
    other = small_baseline(name, replace(at.scaling, value_scale=scale, value_offset=offset), roads=roads)
    moved = replace(batch, values=(batch.values * factor + shift) * batch.observed)
    expected = forecasts(small_baseline(name, at.scaling, roads=roads), batch) * factor + shift
    torch.testing.assert_close(forecasts(other, moved), expected, rtol=1e-4, atol=1e-4)


@EVERY
@ROADS
def test_every_weight_is_used(name: str, roads: bool) -> None:
    """But one: what STNN adds to every key adds the same to all scores of a query, and the softmax takes no notice."""
    at = place(topologies=2)
    model = small_baseline(name, at.scaling, roads=roads).double()
    model(in_float64(windows(at, [9, 12, 15, 18]))).abs().sum().backward()
    unused = {k for k, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-9}
    assert unused == ({"blocks.0.key.bias", "blocks.1.key.bias"} if name == "stnn" else set())


@EVERY
@ROADS
def test_training_activations_grow_with_the_network(name: str, roads: bool) -> None:
    model = small_baseline(name, place().scaling, roads=roads)
    sizes = [model.training_activations(nodes=n, edges=3 * n, past=T, horizon=H) for n in (1, 100, 200)]
    assert 0 < 100 * sizes[0] == sizes[1] < sizes[2] == 2 * sizes[1]
    wider = small_baseline(name, place().scaling, roads=roads, width=12)
    assert wider.training_activations(nodes=1, edges=3, past=T, horizon=H) > sizes[0]


@EVERY
@pytest.mark.parametrize("topologies", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
def test_training_activations_are_what_backward_keeps(name: str, layers: int, topologies: int) -> None:
    at = random_town("paper", num_nodes=60, topologies=topologies)
    model = small_baseline(name, at.scaling, width=32, layers=layers).train()
    batch = windows(at, [13, 14, 15, 16])
    assert len(batch.topologies) == topologies
    edges = max(topology.num_edges for topology in batch.topologies)
    estimate = batch.num_windows * model.training_activations(nodes=60, edges=edges, past=T, horizon=H)
    least = {"localegn": 0.55, "graph-wavenet": 0.65}.get(
        name, 0.7
    )  # LocaleGN's estimate allows for float32 sums on a GPU
    assert least * estimate <= kept_by_backward(model, batch) <= 1.02 * estimate


@EVERY
def test_bf16_is_near_fp32(name: str) -> None:
    """A GPU trains in bf16: no step may mix dtypes."""
    at = place(topologies=2)
    model = small_baseline(name, at.scaling, width=16, noise=0.02)
    batch = windows(at, [12, 16])
    exact = forecasts(model, batch)
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(0)
        rough = forecasts(model, batch)
        model.train()(batch).sum().backward()
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).abs().max() < 0.05 * exact.abs().max()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


PARAMETERS = {  # of the presets, which are those of the paper that compares them as far as they can be
    "dcrnn": 381_953,  # the paper: 372_353, with 5 inputs fewer at the encoder and 5 at the decoder
    "stgcn": 82_348,
    "graph-wavenet": 247_756,  # the paper: 247_660
    "stgode": 504_762,  # the paper: 558_582, of which 6 * 3 * 3193 belong to the nodes of Chengdu
    "localegn": 82_008,
    "stnn": 244_934,  # the paper: 313_906, of which 69_132 are in a layer that is never called
}


@EVERY
def test_the_presets_size(name: str) -> None:
    model = build_model(preset(name), place().scaling)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@EVERY
def test_it_learns_from_neighbours(name: str) -> None:
    """Every window has one level, the same at all nodes; half of the nodes cannot see it for themselves."""
    at = random_town("paper", num_nodes=24, isolated=0)
    rng = np.random.default_rng(0)
    shown = torch.from_numpy(rng.permutation(24) < 12)
    batch = windows(at, list(range(9, 19)))
    level = torch.from_numpy(rng.normal(4, 3, (10, 1, 1)).astype(np.float32))
    observed = shown.expand_as(batch.observed)
    batch = replace(batch, values=level * observed, observed=observed, target=None)
    constant = float((level - level.median()).abs().mean())  # what the best constant would leave
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = small_baseline(name, at.scaling, noise=0.1, width=16, layers=4 if name == "graph-wavenet" else 1)
        optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
        for _ in range(20):
            for _ in range(5):
                loss = (model.train()(batch) - level).abs()[:, :, ~shown].mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            error = float((forecasts(model.eval(), batch) - level).abs()[:, :, ~shown].mean())
            if error < constant / 2:
                return
    pytest.fail(f"the error is still {error:.2f}; a constant's is {constant:.2f}")
