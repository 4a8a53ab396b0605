"""The paper's promises, for both presets, through the whole path: network, stream, topologies, windows, model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frigate.city.network import Edges
from frigate.city.split import Split
from frigate.config import ModelSettings, preset
from frigate.nn.batch import Batch
from frigate.nn.model import DefaultEmbedding, Frigate
from frigate.nn.moments import moments
from frigate.nn.scaling import Scaling, build_topologies, fit_scaling
from frigate.roads.features import FEATURES, road_features
from tests.support.memory import NoSquare
from tests.support.models import assert_same, exactly, forecasts
from tests.support.towns import (
    PRESETS,
    Town,
    build_model,
    edited,
    hide,
    keep_past,
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

pytestmark = pytest.mark.parametrize("name", PRESETS)


def town_and_model(name: str, **options: Any) -> tuple[Town, Frigate]:
    town = random_town(name, **options)
    return town, build_model(town.settings, town.scaling)


# Inductivity


def fitted_on(num_nodes: int, model: ModelSettings) -> tuple[Frigate, Batch]:
    """A model that was fitted on a network of this size, and a window of two snapshots of it."""
    network = random_network(num_nodes, seed=1)
    stream = random_stream([network], seed=1, snapshots=4, silent=1 - min(1.0, 30 / num_nodes))
    none = np.zeros(num_nodes, bool)
    split = Split(stream.sensors, none, none, (0, 4), (0, 0), (0, 0))
    # Raw features from anywhere will do: betweenness of the larger network would take most of the test's time.
    raw = np.random.default_rng(0).random((num_nodes, len(FEATURES)), np.float32) if model.preset == "default" else None
    scaling = fit_scaling(stream, split, model, features=raw, seed=0)
    topologies, _ = build_topologies(
        [network], scaling, sensors=stream.sensors, features=None if raw is None else [raw]
    )
    batch = windows_on(stream, topologies).batch(
        np.array([1]), past=2, horizon=1, inputs=torch.ones(num_nodes, dtype=torch.bool)
    )
    return build_model(model, scaling), batch


def test_number_of_parameters_is_the_same_for_every_network(name: str) -> None:
    counts = []
    settings = preset(name).model
    assert isinstance(settings, ModelSettings)
    for num_nodes in (50, 3_000):
        model, batch = fitted_on(num_nodes, settings)
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
        found = forecasts(model, batch)
        assert found.shape == (1, 1, num_nodes)
        assert found.isfinite().all()
    assert counts[0] == counts[1]
    if name == "paper":
        assert 190_000 <= counts[0] <= 210_000


def test_weights_of_one_network_forecast_another(name: str) -> None:
    here, model = town_and_model(name, num_nodes=9)
    there = seen_by(random_stream([random_network(21, seed=8)], seed=8), here.settings, here.scaling)
    found = forecasts(model, there.batch([9, 12]))
    assert found.shape == (2, 3, 21)
    assert found.isfinite().all()
    assert found.std(dim=2).min() > 0


def test_nothing_as_large_as_all_pairs_of_nodes(name: str) -> None:
    N = 5000
    model, batch = fitted_on(N, small_settings(name))
    with NoSquare(N) as watched:
        model.train()(batch).sum().backward()
    assert watched.largest >= N * 2 * 3 * 8  # it saw [h, out, in] of both snapshots
    with pytest.raises(AssertionError, match="makes"), NoSquare(N):
        torch.zeros(N, 1) @ torch.zeros(1, N)


# Permutation


@settings(max_examples=6)
@given(seed=st.integers(0, 10_000))
def test_permuting_the_nodes_permutes_the_forecast(name: str, seed: int) -> None:
    networks = [random_network(12, seed=seed, isolated=1)]
    networks.append(edited(networks[0], seed=seed).remove_nodes(networks[0].node_ids[:1].tolist()))
    stream = random_stream(networks, seed=seed, snapshots=10)
    order = np.random.default_rng(seed).permutation(12)
    other = reordered(stream, order)
    town = make_town(stream, small_settings(name))
    moved = make_town(other, small_settings(name))
    assert moved.scaling.anchors == town.scaling.anchors
    assert moved.scaling.length_scale_m == town.scaling.length_scale_m
    assert moved.scaling.position_scale_m == town.scaling.position_scale_m
    model = build_model(town.settings, town.scaling, seed=seed)
    left = exactly(model, town.batch([5, 6]))
    right = exactly(model, moved.batch([5, 6]))
    assert len(town.batch([5, 6]).topologies) == 2
    # Road features are sums in another order, rounded to float32.
    torch.testing.assert_close(right, left[:, :, order], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(right, left, rtol=1e-3, atol=1e-3)


# Missing readings


def test_a_node_without_any_reading_gets_a_forecast(name: str) -> None:
    town, model = town_and_model(name)
    assert not town.stream.sensors.all()
    assert forecasts(model, town.batch([9])).isfinite().all()
    nothing = town.batch([9], inputs=np.zeros(13, bool))
    assert not nothing.observed.any()
    assert forecasts(model, nothing).isfinite().all()


def test_gradients_are_finite_without_any_reading(name: str) -> None:
    town, model = town_and_model(name)
    batch = town.batch([9, 12], inputs=np.zeros(13, bool))
    model.train()(batch).sum().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_true_zero_is_data(name: str) -> None:
    town, model = town_and_model(name)
    batch = town.batch([9])
    observed = batch.observed.clone()
    node = int(torch.nonzero(observed.all(dim=1)[0])[0])
    values = batch.values.clone()
    values[..., node] = 0
    zero = replace(batch, values=values)
    observed[..., node] = False
    missing = replace(zero, observed=observed)
    difference = (forecasts(model, zero) - forecasts(model, missing)).abs().amax(dim=(0, 1))
    assert difference[node] > 1e-4
    assert (difference > 1e-4).sum() > 1  # the neighbours see it too


@pytest.mark.parametrize("quantity", ["count", "speed"])
def test_unobserved_values_have_no_influence(name: str, quantity: str) -> None:
    town, model = town_and_model(name, quantity=quantity, topologies=2)
    batch = town.batch([15, 16])
    assert 0 < batch.observed.float().mean() < 1
    for poison in (1e6, -1.0, float("nan")):
        poisoned = replace(batch, values=batch.values.where(batch.observed, poison))
        assert torch.equal(forecasts(model, poisoned), forecasts(model, batch))
    poisoned = replace(batch, target=torch.full_like(batch.values[:, :3], 1e6), target_observed=None)
    assert torch.equal(forecasts(model, poisoned), forecasts(model, batch))


@settings(max_examples=6)
@given(seed=st.integers(0, 10_000))
def test_an_unseen_nodes_truth_cannot_matter(name: str, seed: int) -> None:
    """Its readings are in the stream, and are no input."""
    town, model = town_and_model(name, seed=seed % 7)
    inputs = np.random.default_rng(seed).random(13) < 0.5
    values = np.where(inputs, town.stream.values, np.float32(-9e5))
    other = replace(town, windows=windows_on(replace(town.stream, values=values), town.topologies))
    batch = town.batch([9, 11], inputs=inputs)
    assert torch.equal(forecasts(model, other.batch([9, 11], inputs=inputs)), forecasts(model, batch))
    hidden = torch.from_numpy(~inputs).expand(2, -1)
    assert torch.equal(forecasts(model, hide(other.batch([9, 11]), hidden)), forecasts(model, batch))


def test_hiding_a_node_equals_never_having_had_its_readings(name: str) -> None:
    town, model = town_and_model(name, topologies=2)
    batch = town.batch([14, 15])
    node = int(torch.nonzero(batch.observed.any(dim=1).all(dim=0))[0])
    hidden = torch.zeros(2, 13, dtype=torch.bool)
    hidden[:, node] = True
    never = replace(town, windows=windows_on(without_readings(town.stream, node), town.topologies)).batch([14, 15])
    hiding = hide(batch, hidden)
    assert torch.equal(forecasts(model, hiding), forecasts(model, never))
    assert torch.equal(moments(hiding, hiding.values), moments(never, never.values))
    changed = (moments(hiding, hiding.values) != moments(batch, batch.values)).any(dim=2).all(dim=1)
    around = set()
    for topology in batch.topologies:
        around |= set(topology.neighbour[topology.neighbour_of == node].tolist())
    assert set(torch.nonzero(changed).flatten().tolist()) == around
    if isinstance(model.embedding, DefaultEmbedding):
        kernel = model.embedding.kernel
        assert torch.equal(kernel(hiding, hiding.values), kernel(never, never.values))
        assert not torch.equal(kernel(hiding, hiding.values), kernel(batch, batch.values))


def test_hiding_is_for_each_window(name: str) -> None:
    town, model = town_and_model(name)
    batch = town.batch([9, 9])
    hidden = torch.zeros(2, 13, dtype=torch.bool)
    hidden[1] = True
    found = exactly(model, hide(batch, hidden))
    assert_same(found[:1], exactly(model, town.batch([9])))
    assert not torch.allclose(found[1], found[0])


# Any T and H, any snapshots


def test_past_and_horizon_may_differ_from_training(name: str) -> None:
    town, model = town_and_model(name)
    long = exactly(model, town.batch([12], past=4, horizon=9))
    for horizon in (1, 2, 9):
        assert_same(exactly(model, town.batch([12], past=4, horizon=horizon)), long[:, :horizon])
    for past in (1, 2, 13):
        found = exactly(model, town.batch([12], past=past, horizon=2))
        assert found.shape == (1, 2, 13)
        assert found.isfinite().all()
        assert not torch.allclose(found, long[:, :2])


def test_snapshots_may_be_missing(name: str) -> None:
    town, model = town_and_model(name, topologies=3)
    batch = town.batch([11, 21], past=6)
    kept = keep_past(batch, [0, 3, 4])
    assert kept.past == 3
    assert torch.equal(kept.values[:, 1], batch.values[:, 3])
    assert exactly(model, kept).isfinite().all()
    # What is gone cannot matter: neither its readings nor its roads.
    values = batch.values.clone()
    topology_of = batch.topology_of.clone()
    values[:, [1, 2, 5]] += 50
    topology_of[:, [1, 2, 5]] = 0
    assert_same(
        exactly(model, keep_past(replace(batch, values=values, topology_of=topology_of), [0, 3, 4])),
        exactly(model, kept),
    )
    assert_same(exactly(model, keep_past(batch, range(6))), exactly(model, batch))
    assert_same(exactly(model, keep_past(batch, [4, 5])), exactly(model, town.batch([11, 21], past=2)))


def test_a_snapshot_may_be_without_readings(name: str) -> None:
    town, model = town_and_model(name)
    batch = town.batch([9, 14])
    observed = batch.observed.clone()
    observed[:, 1:3] = False
    silent = replace(batch, observed=observed, values=batch.values * observed)
    found = forecasts(model, silent)
    assert found.isfinite().all()
    assert not torch.allclose(found, forecasts(model, batch))
    # The rest of the window is still read.
    assert not torch.allclose(found, forecasts(model, hide(batch, torch.ones(2, 13, dtype=torch.bool))))


# Topologies


def test_each_snapshot_has_its_own_topology(name: str) -> None:
    town, model = town_and_model(name, topologies=2)
    batch = town.batch([16], past=4)
    assert batch.topology_of.tolist() == [[0, 0, 1, 1]]
    found = exactly(model, batch)
    for i in (0, 1):
        one = replace(batch, topologies=batch.topologies[i : i + 1], topology_of=torch.zeros(1, 4, dtype=torch.int64))
        assert not torch.allclose(found, exactly(model, one))
    # The same networks in another order, and twice, are the same.
    swapped = replace(batch, topologies=batch.topologies[::-1], topology_of=1 - batch.topology_of)
    assert_same(exactly(model, swapped), found)
    twice = replace(batch, topologies=batch.topologies * 2, topology_of=torch.tensor([[2, 0, 1, 3]]))
    assert_same(exactly(model, twice), found)


def test_windows_of_mixed_topologies_equal_the_windows_alone(name: str) -> None:
    town, model = town_and_model(name, topologies=3)
    current = [5, 10, 15, 21, 26]
    batch = town.batch(current)
    assert len(batch.topologies) == 3
    assert len({tuple(row) for row in batch.topology_of.tolist()}) >= 4
    together = exactly(model, batch)
    for i, last in enumerate(current):
        assert_same(exactly(model, town.batch([last])), together[i : i + 1])


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_splitting_a_batch_changes_nothing(name: str, size: int) -> None:
    town, model = town_and_model(name, topologies=3)
    batch = town.batch([5, 10, 15, 21, 26])
    parts = list(batch.split(size))
    assert [part.num_windows for part in parts][:-1] == [size] * (len(parts) - 1)
    assert_same(torch.cat([exactly(model, part) for part in parts]), exactly(model, batch))
    assert batch.target is not None
    assert torch.equal(torch.cat([part.target for part in parts if part.target is not None]), batch.target)


def test_a_closed_road_equals_a_network_without_it(name: str) -> None:
    town, model = town_and_model(name)
    network = town.stream.network
    keep = ~np.isin(np.arange(network.num_edges), [0, 3])
    ends = zip(
        network.node_ids[network.senders[~keep]].tolist(),
        network.node_ids[network.receivers[~keep]].tolist(),
        strict=True,
    )
    shut = list(ends)
    closed = network.close(shut)
    without = network.with_roads(network.edges.take(keep))
    assert closed.fingerprint == without.fingerprint
    found = [
        forecasts(model, seen_by(town.stream.on(changed), town.settings, town.scaling).batch([9, 12]))
        for changed in (closed, without)
    ]
    assert torch.equal(*found)
    assert not torch.allclose(found[0], forecasts(model, town.batch([9, 12])))
    again = exactly(model, seen_by(town.stream.on(closed.reopen(shut)), town.settings, town.scaling).batch([9, 12]))
    torch.testing.assert_close(again, exactly(model, town.batch([9, 12])), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("node", [0, 4, 7])
def test_an_absent_node_sends_no_messages(name: str, node: int) -> None:
    """Removed, or without roads and readings: all one to the others."""
    town, model = town_and_model(name)
    network = town.stream.network
    removed = network.remove_nodes(network.node_ids[node : node + 1].tolist())
    isolated = network.close(roads_at(network, node))
    # The mean betweenness is over the nodes that are there, so the features of the two differ by that; not asked here.
    raw = [road_features(removed)] if name == "default" else None
    found = []
    for changed in (removed, isolated):
        stream = without_readings(town.stream.on(changed), node)
        found.append(exactly(model, seen_by(stream, town.settings, town.scaling, features=raw).batch([9, 12])))
    others = np.arange(13) != node
    assert_same(found[0][:, :, others], found[1][:, :, others])
    assert not torch.allclose(found[0][:, :, others], exactly(model, town.batch([9, 12]))[:, :, others])


# The model as a module


def test_use_is_deterministic_and_training_drops_out(name: str) -> None:
    town, model = town_and_model(name)
    batch = town.batch([9])
    assert torch.equal(forecasts(model, batch), forecasts(model, batch))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.train()
        same = torch.equal(forecasts(model, batch), forecasts(model, batch))
    assert same == (name == "paper")  # the paper's model has no dropout


def test_the_scale_is_of_the_users_unit(name: str) -> None:
    """Readings and forecasts in another unit, with the scale of that unit: the same forecasts, in it."""
    town, model = town_and_model(name, quantity="speed")
    batch = town.batch([9, 12])
    factor, shift = 1.609344, 10.0
    other_kept: Scaling = replace(
        town.scaling,
        value_scale=town.scaling.value_scale * factor,
        value_offset=town.scaling.value_offset * factor + shift,
    )
    other = build_model(town.settings, other_kept)
    moved = replace(batch, values=(batch.values * factor + shift) * batch.observed)
    torch.testing.assert_close(forecasts(other, moved), forecasts(model, batch) * factor + shift, rtol=1e-4, atol=1e-4)


def test_every_weight_is_used(name: str) -> None:
    town, model = town_and_model(name)
    model(town.batch([5, 9, 12, 15])).abs().sum().backward()
    unused = [k for k, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert unused == []


def test_unknown_road_attributes_are_accepted(name: str) -> None:
    """A network without class, lanes and speed, under a model that was fitted with them; and the other way round."""
    known = random_network(13, seed=0)
    bare = known.with_roads(Edges.of(known.senders, known.receivers, known.length_m))
    for here, there in ((known, bare), (bare, known)):
        town = make_town(random_stream([here], seed=0), small_settings(name))
        model = build_model(town.settings, town.scaling)
        assert (
            forecasts(model, seen_by(random_stream([there], seed=0), town.settings, town.scaling).batch([9]))
            .isfinite()
            .all()
        )
