"""The six baselines are held to what Frigate is held to: inductive, blind to what was not observed.

Each baseline's own file of tests has its equations. STGCN needs 9 snapshots, so all windows here have as many.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from frigate.baselines.deep import DeepBaseline
from frigate.cli.main import main
from frigate.config import BASELINES, PRESETS, BaselineSettings, Settings, Task, change, preset
from frigate.data.city import write_city
from frigate.data.network import RoadNetwork
from frigate.data.split import Split, make_split
from frigate.errors import SettingsError
from frigate.evaluation.evaluate import evaluate
from frigate.forecasting.forecast import forecast
from frigate.graph.road_features import FEATURES, road_features
from frigate.nn.batch import Batch, Windows
from frigate.nn.scaling import Scaling, build_topologies, fit_scaling
from frigate.training.checkpoint import load_checkpoint, load_run
from frigate.training.run import Run, build_model
from frigate.training.train import train
from frigate.training.trainer import StepReport
from tests.support.memory import NoSquare
from tests.support.towns import (
    Town,
    edited,
    in_float64,
    make_town,
    permuted,
    random_network,
    random_stream,
    random_town,
    roads_at,
    seen_by,
    small_settings,
    without_readings,
)
from tests.support.training_runs import equal, garbage, log, tensors, town, weights, with_readings

T, H = 9, 3
EVERY = pytest.mark.parametrize("name", BASELINES)
ROADS = pytest.mark.parametrize("roads", [False, True], ids=["plain", "roads"])
LAYERS = {"graph-wavenet": 4}  # of the tests; else the preset's
DROPS_OUT = {"graph-wavenet", "stgode", "stnn"}

# What a baseline takes beside the T and H that it was built for. Anything else is refused.
OTHER_PAST = {"dcrnn", "graph-wavenet", "localegn"}
OTHER_HORIZON = {"dcrnn"}


def sized(name: str, *, roads: bool = False, past: int = T, **model: int) -> Settings:
    sizes = {"width": 6, "layers": LAYERS.get(name, preset(name).model.layers), "roads": roads, **model}
    return change(preset(name), {"task": {"past": past, "horizon": H}, "model": sizes})


def baseline(name: str, scaling: Scaling, *, seed: int = 0, noise: float = 0.2, **sizes: Any) -> DeepBaseline:
    """A model in use. Noise on all weights: some start at 0 or at the identity, which would hide much."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(sized(name, **sizes), scaling)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=noise)
    assert isinstance(model, DeepBaseline)
    return model.eval()


@cache
def place(*, topologies: int = 1, quantity: str = "count") -> Town:
    """A town with road features, which a baseline without `roads` passes over."""
    return random_town("default", topologies=topologies, quantity=quantity)


def windows(at: Town, current: list[int], **options: Any) -> Batch:
    return at.batch(current, **{"past": T, "horizon": H, **options})


def forecasts(model: DeepBaseline, batch: Batch) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(batch)
    return found


def exactly(model: DeepBaseline, batch: Batch) -> Tensor:
    """In float64, so that only a real difference shows."""
    return forecasts(model.double(), in_float64(batch))


def in_training(model: DeepBaseline, batch: Batch, seed: int = 0) -> Tensor:
    """As a step of training would see it, of a copy: DCRNN counts the windows that it has seen."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return forecasts(copy.deepcopy(model).train(), batch)


def assert_same(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


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
    return scaling, Windows(stream, topologies).batch(np.array([past - 1]), past=past, horizon=H, inputs=inputs)


@EVERY
@ROADS
def test_number_of_parameters_is_the_same_for_every_network(name: str, roads: bool) -> None:
    counts = []
    for num_nodes in (20, 2000):
        scaling, batch = network_of(num_nodes, T)
        model = baseline(name, scaling, roads=roads)
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
    found = forecasts(baseline(name, here.scaling, roads=roads), windows(there, [9, 12]))
    assert found.shape == (2, H, 21)
    assert found.isfinite().all()
    assert found.std(dim=2).min() > 0


@EVERY
@ROADS
def test_nothing_as_large_as_all_pairs_of_nodes(name: str, roads: bool) -> None:
    N = 5000
    past = 5 if name == "stgcn" else 2  # STNN has (15 T)^2 numbers of a node, and so has no more than N of them
    scaling, batch = network_of(N, past)
    model = baseline(name, scaling, roads=roads, past=past, layers=1 if name == "stgcn" else 2)
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
    model = baseline(name, before.scaling, roads=roads, seed=seed)
    batch = windows(before, [9, 11])
    assert len(batch.topologies) == 2
    left, right = exactly(model, batch), exactly(model, windows(after, [9, 11]))
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
    other = replace(
        stream,
        values=stream.values[:, order],
        observed=stream.observed[:, order],
        topologies=tuple(permuted(network, order) for network in networks),
    )
    before, after = (make_town(each, small_settings("default")) for each in (stream, other))
    assert after.scaling.length_scale_m == before.scaling.length_scale_m
    assert set(after.stream.node_ids.tolist()) == set(before.stream.node_ids.tolist())
    return before, after


# Missing readings


@EVERY
@ROADS
def test_a_node_without_any_reading_gets_a_forecast(name: str, roads: bool) -> None:
    at = place()
    model = baseline(name, at.scaling, roads=roads)
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
    model = baseline(name, at.scaling, roads=roads, noise=noise).train()
    model(windows(at, [15, 18], inputs=np.zeros(13, bool))).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert sum(bool(gradient.any()) for gradient in gradients) > len(gradients) / 2


@EVERY
@ROADS
def test_a_true_zero_is_data(name: str, roads: bool) -> None:
    at = place()
    model, batch = baseline(name, at.scaling, roads=roads), windows(at, [12])
    node = int(batch.observed[0].sum(dim=0).argmax())
    values, observed = batch.values.clone(), batch.observed.clone()
    values[..., node] = 0
    zero = replace(batch, values=values)
    observed[..., node] = False
    difference = (forecasts(model, zero) - forecasts(model, replace(zero, observed=observed))).abs().amax(dim=(0, 1))
    assert difference[node] > 1e-4
    assert (difference > 1e-4).sum() > 1  # the neighbours see it too


@EVERY
@ROADS
@pytest.mark.parametrize("quantity", ["count", "speed"])
def test_what_was_not_observed_cannot_matter(name: str, roads: bool, quantity: str) -> None:
    at = place(quantity=quantity, topologies=2)
    model, batch = baseline(name, at.scaling, roads=roads), windows(at, [15, 17])
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
    model = baseline(name, at.scaling, roads=roads)
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
    model, batch = baseline(name, at.scaling, roads=roads), windows(at, [15, 18])
    node = int(torch.nonzero(batch.observed.any(dim=1).all(dim=0))[0])
    hidden = torch.zeros(2, 13, dtype=torch.bool)
    hidden[:, node] = True
    never = windows(replace(at, windows=Windows(without_readings(at.stream, node), at.topologies)), [15, 18])
    hiding = batch.hide(hidden)
    assert torch.equal(forecasts(model, hiding), forecasts(model, never))
    assert torch.equal(in_training(model, hiding), in_training(model, never))
    assert not torch.allclose(forecasts(model, hiding), forecasts(model, batch))


@EVERY
def test_hiding_is_for_each_window(name: str) -> None:
    at = place()
    model, batch = baseline(name, at.scaling), windows(at, [9, 9])
    hidden = torch.zeros(2, 13, dtype=torch.bool)
    hidden[1] = True
    found = exactly(model, batch.hide(hidden))
    assert_same(found[:1], exactly(model, windows(at, [9])))
    assert not torch.allclose(found[1], found[0])


# Windows and topologies


@EVERY
@ROADS
def test_splitting_a_batch_changes_nothing(name: str, roads: bool) -> None:
    at = place(topologies=3)
    model, batch = baseline(name, at.scaling, roads=roads), windows(at, [8, 12, 15, 21, 26])
    whole = exactly(model, batch)
    for size in (1, 2, 3, 9):
        assert_same(torch.cat([exactly(model, part) for part in batch.split(size)]), whole)


@EVERY
@ROADS
def test_windows_of_mixed_topologies_equal_the_windows_alone(name: str, roads: bool) -> None:
    at = place(topologies=3)
    current = [8, 12, 15, 21, 26]
    model, batch = baseline(name, at.scaling, roads=roads), windows(at, current)
    assert len(batch.topologies) == 3
    assert len({tuple(row) for row in batch.topology_of.tolist()}) == 5
    together = exactly(model, batch)
    for i, last in enumerate(current):
        assert_same(exactly(model, windows(at, [last])), together[i : i + 1])


@EVERY
@ROADS
def test_topologies_in_another_order_and_twice_are_the_same(name: str, roads: bool) -> None:
    at = place(topologies=2)
    model, batch = baseline(name, at.scaling, roads=roads), windows(at, [18])
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
    model = baseline(name, at.scaling, roads=roads)
    found = [
        forecasts(model, windows(seen_by(at.stream.on(changed), at.settings, at.scaling), [9, 12]))
        for changed in (network.close(shut), replace(network, edges=network.edges.take(keep)))
    ]
    assert torch.equal(*found)
    assert not torch.allclose(found[0], forecasts(model, windows(at, [9, 12])))


@EVERY
@ROADS
def test_an_absent_node_sends_no_messages(name: str, roads: bool) -> None:
    """Removed, or without roads and readings, or never in the table: all one to the others."""
    at, node = place(), 4
    network, others = at.stream.network, np.arange(13) != node
    removed = network.remove_nodes(network.node_ids[node : node + 1].tolist())
    features, model, found = road_features(removed), baseline(name, at.scaling, roads=roads), []
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
    stream = replace(stream, values=stream.values[:, others], observed=stream.observed[:, others], topologies=(fewer,))
    there = seen_by(stream, at.settings, at.scaling, features=[features[others]])
    found.append(exactly(model, windows(there, [9, 12])))
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])
    assert not torch.allclose(found[0], exactly(model, windows(at, [9, 12]))[:, :, others])


@EVERY
@pytest.mark.parametrize(("past", "horizon"), [(4, H), (T - 1, H), (T + 4, H), (T, 1), (T, 6)])
def test_another_past_or_horizon_is_taken_or_refused(name: str, past: int, horizon: int) -> None:
    at = place()
    model = baseline(name, at.scaling)
    batch = windows(at, [14], past=past, horizon=horizon)
    what, taken = ("past", OTHER_PAST) if past != T else ("horizon", OTHER_HORIZON)
    if name in taken:
        found = forecasts(model, batch)
        assert found.shape == (1, horizon, 13)
        assert found.isfinite().all()
        return
    here, built = getattr(batch, what), {"past": T, "horizon": H}[what]
    words = f"{what} = {here}: {BASELINES[name]} was built for {built} and takes no other. Use {what} = {built}"
    with pytest.raises(SettingsError, match=f"^{re.escape(words)}"):
        model(batch)


# The model as a module


@EVERY
@ROADS
def test_use_is_deterministic_and_only_training_drops_out(name: str, roads: bool) -> None:
    at = place()
    model = baseline(name, at.scaling, roads=roads)
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
    scale, offset = at.scaling.value_scale * factor, at.scaling.value_offset * factor + shift
    other = baseline(name, replace(at.scaling, value_scale=scale, value_offset=offset), roads=roads)
    moved = replace(batch, values=(batch.values * factor + shift) * batch.observed)
    expected = forecasts(baseline(name, at.scaling, roads=roads), batch) * factor + shift
    torch.testing.assert_close(forecasts(other, moved), expected, rtol=1e-4, atol=1e-4)


@EVERY
@ROADS
def test_every_weight_is_used(name: str, roads: bool) -> None:
    """But one: what STNN adds to every key adds the same to all scores of a query, and the softmax takes no notice."""
    at = place(topologies=2)
    model = baseline(name, at.scaling, roads=roads).double()
    model(in_float64(windows(at, [9, 12, 15, 18]))).abs().sum().backward()
    unused = {k for k, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-9}
    assert unused == ({"blocks.0.key.bias", "blocks.1.key.bias"} if name == "stnn" else set())


@EVERY
@ROADS
def test_training_activations_grow_with_the_network(name: str, roads: bool) -> None:
    model = baseline(name, place().scaling, roads=roads)
    sizes = [model.training_activations(nodes=n, edges=3 * n, past=T, horizon=H) for n in (1, 100, 200)]
    assert 0 < 100 * sizes[0] == sizes[1] < sizes[2] == 2 * sizes[1]
    assert (
        baseline(name, place().scaling, roads=roads, width=12).training_activations(nodes=1, edges=3, past=T, horizon=H)
        > sizes[0]
    )


# In the harness


def brief(name: str, *, roads: bool = False, **training: Any) -> Settings:
    """Settings of a preset, shrunk: everything else is the protocol's."""
    steps = {"epochs": 3, "steps_per_epoch": 2, "batch_size": 4, "warmup_steps": 2, "validation_windows": 4}
    return change(sized(name, roads=roads), {"train": {"learning_rate": 5e-3, **steps, **training}})


@pytest.fixture(scope="module", params=BASELINES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A baseline trained on a town, straight through."""
    folder = tmp_path_factory.mktemp(request.param)
    write_city(town(), folder / "city")
    run = train(town(), seen=0.6, settings=brief(request.param), folder=folder / "run", device="cpu")
    assert run.progress.finished
    return run


def test_an_interrupted_run_that_goes_on_equals_a_straight_one(trained: Run, tmp_path: Path) -> None:
    assert trained.folder is not None

    def stop(tick: StepReport) -> None:
        if (tick.epoch, tick.step) == (1, 2):
            raise KeyboardInterrupt

    half = train(town(), seen=0.6, settings=trained.settings, folder=tmp_path, device="cpu", on_step=stop)
    assert (half.progress.epoch, half.progress.finished) == (1, False)
    whole = train(town(), settings=trained.settings, folder=tmp_path, resume=True, device="cpu")
    assert equal(weights(trained), weights(whole))
    assert equal(tensors(trained.folder), tensors(tmp_path))
    assert log(trained.folder) == log(tmp_path)
    if trained.settings.model.preset == "dcrnn":
        assert load_checkpoint(tmp_path, city=town())[2]["model.sampled"] == 3 * 2 * 4  # windows: sampling went on


def test_a_run_is_evaluated_and_forecasts(trained: Run) -> None:
    assert trained.folder is not None
    run = load_run(trained.folder)
    assert isinstance(run.model, DeepBaseline)
    result = evaluate(run, town(), stride=4, device="cpu")
    assert result.model.name == BASELINES[run.settings.model.preset]
    assert result.model.unseen is not None and np.isfinite(result.model.unseen.mae.value)
    assert {"zero", "nearest sensors"} <= {row.name for row in result.rows}
    found = forecast(run, stream=town(), device="cpu")
    assert found.values.shape == (H, 30)
    assert np.isfinite(found.values).all() and (found.values >= 0).all()
    closed = forecast(run, stream=town(), close=[one_way_road()], device="cpu")
    assert np.isfinite(closed.values).all()
    assert not np.array_equal(closed.values, found.values)


def one_way_road() -> tuple[Any, Any]:
    """To STGCN and STGODE a road is the same both ways."""
    network, ids = town().network, town().stream.node_ids.tolist()
    roads = set(zip(network.senders.tolist(), network.receivers.tolist(), strict=True))
    u, v = min(road for road in roads if road[::-1] not in roads)
    return ids[u], ids[v]


def test_a_run_refuses_to_forecast_what_its_weights_do_not_fit(trained: Run) -> None:
    name = trained.settings.model.preset
    for what, taken in (("past", OTHER_PAST), ("horizon", OTHER_HORIZON)):
        other: dict[str, Any] = {what: 5}
        if name in taken:
            assert np.isfinite(forecast(trained, stream=town(), device="cpu", **other).values).all()
        else:
            with pytest.raises(SettingsError, match=rf"{what} = 5: \S+ was built for"):
                forecast(trained, stream=town(), device="cpu", **other)


@EVERY
@pytest.mark.parametrize("kind", ["garbage", "flipped", "gone"])
def test_unseen_readings_cannot_matter(name: str, kind: str, tmp_path: Path) -> None:
    city = town()
    split = make_split(city.stream, seen=0.5, past=T, horizon=H)
    ids = city.stream.node_ids[split.seen].tolist()
    observed = city.stream.observed.copy()
    if kind != "garbage":
        observed[:, split.unseen] = ~observed[:, split.unseen] if kind == "flipped" else False
    poisoned = with_readings(city, garbage(replace(city.stream, observed=observed), split.unseen), observed)
    settings = brief(name, roads=kind == "flipped", epochs=2, steps_per_epoch=1)
    clean = train(city, seen=ids, settings=settings, folder=tmp_path / "clean", device="cpu")
    dirty = train(poisoned, seen=ids, settings=settings, folder=tmp_path / "dirty", device="cpu")
    assert clean.split.unseen.any()
    assert equal(tensors(tmp_path / "clean"), tensors(tmp_path / "dirty"))
    assert log(tmp_path / "clean") == log(tmp_path / "dirty")
    assert clean.scaling.to_json() == dirty.scaling.to_json()


def test_every_baseline_is_trained_as_the_papers_model_is() -> None:
    for name in BASELINES:
        assert preset(name).train == preset("paper").train
        assert preset(name).task == Task() == preset("paper").task
        assert Settings.from_json(json.loads(json.dumps(preset(name).to_json()))) == preset(name)


@pytest.mark.parametrize(
    ("said", "meant"),
    [("dcrn", "dcrnn"), ("graphwavenet", "graph-wavenet"), ("locale", "localegn")],
)
def test_an_unknown_preset_is_refused_with_a_hint(said: str, meant: str) -> None:
    names = ", ".join((*PRESETS, *BASELINES))
    with pytest.raises(SettingsError, match=rf'preset "{said}": choose one of {names} \(did you mean "{meant}"\?\)'):
        preset(said)


SETTINGS = """
[task]
past = 9
horizon = 3
[model]
width = 6
[train]
epochs = 2
steps_per_epoch = 1
batch_size = 2
validation_windows = 2
"""


def test_frigate_train_takes_a_baselines_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_city(town(), tmp_path / "city")
    (tmp_path / "settings.toml").write_text(SETTINGS)

    def say(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["frigate", *words])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        return (status, *capsys.readouterr())

    told = ["train", "city", "-o", "run", "--settings", "settings.toml", "--seen", "60%", "--device", "cpu"]
    status, out, err = say(*told, "--preset", "dcrnn")
    assert status == 0, err
    assert out.startswith("Validation MAE ") and out.endswith(" of 2: run\n")
    assert isinstance(load_run("run").model, DeepBaseline)
    status, out, _ = say("evaluate", "run", "--stride", "8", "--device", "cpu")
    assert status == 0 and "DCRNN" in out
    status, _, err = say(*told[:3], "other", *told[4:], "--preset", "dcrn")
    assert status == 2 and "did you mean" in err and "dcrnn" in err and not Path("other").exists()
