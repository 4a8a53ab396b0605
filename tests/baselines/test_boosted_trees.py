"""Boosted trees and kriging: nothing hidden or unseen reaches them, and they beat what knows no place."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.baselines import boosted_trees
from frigate.baselines.boosted_trees import L1, NEAREST, POISSON, Trees, features, fit_trees
from frigate.baselines.kriging import (
    Covariance,
    Kriging,
    find_surroundings,
    fit_covariance,
    fit_kriging,
    kriging_weights,
    window_anomalies,
)
from frigate.baselines.naive import Baseline
from frigate.calendar import hourly_bins
from frigate.city.city import City
from frigate.city.network import Edges, RoadNetwork
from frigate.city.split import Split, make_split, windows_in
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.config import Task, preset
from frigate.errors import MissingExtraError, SettingsError
from frigate.evaluation.evaluate import evaluate_forecaster
from frigate.nn.batch import Batch
from frigate.nn.network_views import NetworkViews
from frigate.nn.scaling import fit_scaling
from frigate.nn.topology import Topology
from frigate.nn.windows import Windows
from frigate.roads.feature_cache import ensure_road_features
from frigate.simulate.demo_city import demo_city
from tests.support.errors import raises
from tests.support.grids import windows_of
from tests.support.towns import hide, random_network, windows_on

PAST, HORIZON = 6, 4
TASK = Task(PAST, HORIZON)
SMALL: dict[str, Any] = {"rows": 8_000, "trees": 40, "leaves": 15}


@dataclass(frozen=True)
class Place:
    city: City
    split: Split
    windows: Windows

    def with_stream(self, stream: RoadNetworkStream) -> Place:
        return Place(replace(self.city, stream=stream), self.split, windows_on(stream, self.windows.topologies))

    def batch(self, current: list[int], *, inputs: NDArray[np.bool_] | None = None) -> Batch:
        read = torch.from_numpy(self.split.seen if inputs is None else inputs)
        return self.windows.batch(np.array(current), past=PAST, horizon=HORIZON, inputs=read)

    def trees(self, *, seed: int = 0, objective: str | None = L1) -> Trees:
        return fit_trees(self.windows, self.split, TASK, seed=seed, objective=objective, **SMALL)

    def kriging(self) -> Kriging:
        return fit_kriging(self.windows, self.split, TASK)


@cache
def town() -> Place:
    """A simulated town of half-hours over nine days; a road is closed for some of them. Some readings are missing."""
    city = ensure_road_features(demo_city(seed=1, intersections=100, days=9, step_s=1800, closures=2))
    observed = city.stream.observed & (np.random.default_rng(0).random(city.stream.values.shape) > 0.1)
    stream = replace(city.stream, observed=observed, values=np.where(observed, city.stream.values, 0))
    split = make_split(stream, seen=0.5, past=PAST, horizon=HORIZON)
    usual = stream.usual_network(split.train)
    scaling = fit_scaling(
        stream, split, preset("default").model, features=city.road_features[usual.fingerprint], seed=0
    )
    views = NetworkViews.of_scaling(scaling, usual, sensors=split.seen, city=city)
    return Place(replace(city, stream=stream), split, Windows(stream, views))


@cache
def fitted(name: str) -> Trees | Kriging:
    return town().trees() if name == "trees" else town().kriging()


both = pytest.mark.parametrize("name", ["trees", "kriging"])


@both
def test_beats_the_clock_profile_where_there_is_no_sensor(name: str) -> None:
    place = town()
    result = evaluate_forecaster(fitted(name), place.city, place.split, place.windows, TASK, name=name, stride=3)
    ours = result.row(name).unseen
    clock = result.row("clock profile").unseen
    assert ours is not None
    assert clock is not None
    assert ours.mae.value < 0.95 * clock.mae.value


@both
@pytest.mark.parametrize("poison", [np.nan, 1e30])
def test_an_unseen_node_cannot_matter(name: str, poison: float) -> None:
    """Neither for what is fitted, nor for the forecast of a batch whose mask is the only guard."""
    place = town()
    before = fitted(name)
    values = place.city.stream.values.copy()
    values[:, place.split.unseen] = poison
    other = place.with_stream(replace(place.city.stream, values=values))
    after = other.trees() if name == "trees" else other.kriging()
    if isinstance(before, Trees):
        assert isinstance(after, Trees)
        assert after.booster.model_to_string() == before.booster.model_to_string()
    clean = place.batch([100, 400, 420])
    dirty = replace(clean, values=torch.where(clean.observed, clean.values, poison))
    assert torch.isfinite(before(clean)).all()
    torch.testing.assert_close(after(dirty), before(clean), rtol=0, atol=0)


def test_kriging_is_fitted_on_training_times_alone() -> None:
    place = town()
    values = place.city.stream.values.copy()
    values[place.split.train[1] :] = 1e6
    after = place.with_stream(replace(place.city.stream, values=values)).kriging()
    before = fitted("kriging")
    assert isinstance(before, Kriging)
    assert (after.of_profile, after.of_anomaly, after.decay) == (before.of_profile, before.of_anomaly, before.decay)
    torch.testing.assert_close(after.profile, before.profile, equal_nan=True, rtol=0, atol=0)


def test_validation_readings_never_are_input_of_the_trees() -> None:
    """They stop the training as targets: their readings at training times change no tree before it stops."""
    place = town()
    values = place.city.stream.values.copy()
    values[: place.split.validate[0], place.split.validation] += 1000
    after = place.with_stream(replace(place.city.stream, values=values)).trees()
    before = fitted("trees")
    assert isinstance(before, Trees)
    assert after.booster.model_to_string() == before.booster.model_to_string()


@pytest.mark.parametrize("masked", [False, True])
def test_trees_learn_from_hidden_training_nodes_and_stop_by_validation_nodes_each_at_their_times(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading names its node and time, so that each row of the tables tells what it was made of."""
    place = town()
    drawn: list[Any] = []
    split = place.split
    S = place.city.stream.num_snapshots
    named = np.arange(100) * 1000.0 + np.arange(S)[:, None]
    place = place.with_stream(replace(place.city.stream, values=named.astype(np.float32)))

    def keep(lightgbm: object, *tables: tuple[NDArray[np.float32], ...], **how: object) -> tuple[None, float]:
        drawn.extend(tables[:2])
        return None, 0.0

    monkeypatch.setattr(boosted_trees, "_boost", keep)
    masks = np.random.default_rng(0).random((6, 100)) < 0.5
    fit_trees(
        place.windows, split, TASK, seed=0, objective=L1, rows=4000, masks=masks & split.training if masked else None
    )
    latest = slice(27 + 2 * NEAREST, 27 + 3 * NEAREST)  # readings of the nearest sensors
    for (x, y), nodes, period in zip(
        drawn, (split.training, split.validation), (split.train, split.validate), strict=True
    ):
        node, time = np.divmod(y.astype(int), 1000)
        current = time - x[:, 0].astype(int)
        assert nodes[node].all() and len(set(node)) > 5
        assert period[0] <= current.min() - PAST + 1 and time.max() < period[1]
        for at in set(current):
            rows = current == at
            near = x[rows, latest]
            read = set((near[np.isfinite(near)] // 1000).astype(int).tolist())
            assert split.training[list(read)].all()
            assert not read & set(node[rows].tolist())


@both
def test_hidden_sensors_cannot_matter(name: str) -> None:
    """Not their readings, and not what was learnt of their usual day."""
    place = town()
    model = fitted(name)
    hidden = np.flatnonzero(place.split.seen)[::2]
    batch = place.batch([400])
    mask = torch.zeros(1, batch.num_nodes, dtype=torch.bool)
    mask[0, hidden] = True
    profile = model.profile.clone()
    profile[:, hidden] = 1e9
    expected = model(hide(batch, mask))
    values = batch.values.clone()
    values[:, :, hidden] = 1e9
    torch.testing.assert_close(replace(model, profile=profile)(hide(replace(batch, values=values), mask)), expected)
    assert not torch.allclose(model(batch), expected)


def test_no_feature_is_one_of_the_node_itself() -> None:
    place = town()
    model = fitted("trees")
    assert isinstance(model, Trees)
    node = int(np.flatnonzero(place.split.seen)[3])
    batch = place.batch([395])
    batch = replace(batch, observed=batch.observed | (torch.arange(batch.num_nodes) == node))
    values = batch.values.clone()
    values[:, :, node] = 1e6
    changed = replace(batch, values=values)
    profile = model.profile.clone()
    profile[:, node] = 1e6
    every = torch.arange(batch.num_nodes)

    def rows(batch: Batch, profile: Tensor) -> Tensor:
        return features(batch, profile, length_scale_m=100.0, steps=torch.arange(HORIZON), nodes=every)

    before = rows(batch, model.profile)
    after = rows(changed, profile)
    city = 7  # after step, calendar and hour: means over the whole city, of which the node is one sensor of many
    keep = [i for i in range(before.shape[-1]) if i not in (city, city + 1)]
    torch.testing.assert_close(after[:, node, keep], before[:, node, keep], equal_nan=True, rtol=0, atol=0)
    near = int(torch.nonzero((place.windows.topologies[-1].near_sensor == node).any(1))[0])
    assert not torch.equal(after[:, near], before[:, near])


def test_trees_without_readings_know_the_map_and_the_clock_alone() -> None:
    place = town()
    model = fit_trees(place.windows, place.split, TASK, seed=0, objective=L1, readings=False, **SMALL)
    batch = place.batch([400])
    forecast = model(batch)
    other = replace(batch, values=batch.values * 7 + 3, observed=batch.observed.roll(1, dims=2))
    assert torch.equal(model(other), forecast)
    assert torch.equal(replace(model, profile=model.profile + 5)(batch), forecast)
    assert forecast[0, 0].unique().numel() > 10 and not torch.equal(model(place.batch([410])), forecast)
    result = evaluate_forecaster(model, place.city, place.split, place.windows, TASK, name="map", stride=9)
    ours = result.row("map").unseen
    zero = result.row("zero").unseen
    assert ours is not None and zero is not None and ours.mae.value < 0.8 * zero.mae.value


def test_the_same_seed_gives_the_same_trees_and_another_seed_others() -> None:
    first = fitted("trees")
    assert isinstance(first, Trees)
    again, other = (town().trees(seed=seed).booster.model_to_string() for seed in (0, 1))
    assert again == first.booster.model_to_string() != other


def test_counts_take_the_better_objective() -> None:
    place = town()
    chosen = place.trees(objective=None)
    each = {name: place.trees(objective=name).validation_mae for name in (L1, POISSON)}
    assert chosen.objective == min(each, key=lambda name: each[name])
    assert chosen.validation_mae == min(each.values())


def test_a_split_without_validation_nodes_keeps_some_of_its_own() -> None:
    place = town()
    split = make_split(place.city.stream, seen=0.5, past=PAST, horizon=HORIZON, validation_share=0)
    trees = replace(place, split=split).trees()
    assert 0 < trees.validation_mae < np.inf


@both
def test_several_topologies_and_parts_of_a_batch(name: str) -> None:
    place = town()
    model = fitted(name)
    network_of = place.city.stream.network_of
    changes = (np.flatnonzero(np.diff(network_of)) + 1).tolist()
    current = [c + i for c in changes[:2] for i in (0, 2)]
    batch = place.batch(current)
    assert len(batch.topologies) > 1
    whole = model(batch)
    assert whole.shape == (len(current), HORIZON, batch.num_nodes)
    torch.testing.assert_close(torch.cat([model(place.batch([c])) for c in current]), whole)
    last = batch.topologies[int(batch.topology_of[1, -1])]
    elsewhere = next(t for t in place.windows.topologies if t is not last)
    moved = replace(
        batch, topologies=(elsewhere,) * len(batch.topologies), topology_of=torch.zeros_like(batch.topology_of)
    )
    assert not torch.equal(model(moved)[1], whole[1])  # the roads matter


@both
def test_without_any_reading_the_forecast_is_finite(name: str) -> None:
    place = town()
    model = fitted(name)
    forecast = model(place.batch([400], inputs=np.zeros(place.city.stream.num_nodes, bool)))
    assert torch.isfinite(forecast).all()
    if isinstance(model, Kriging):
        expected = model.otherwise.profile[hourly_bins(place.batch([400]).time_future)]
        torch.testing.assert_close(forecast, expected.expand_as(forecast))


@both
def test_another_number_of_nodes_is_refused(name: str) -> None:
    model: Baseline = replace(fitted(name), profile=fitted(name).profile[:, :-1])
    batch = town().batch([400])
    with raises(SettingsError, str(batch.num_nodes - 1), str(batch.num_nodes)):
        model(batch)


def test_settings_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    place = town()
    with raises(SettingsError, '"huber"', "regression_l1, poisson"):
        place.trees(objective="huber")
    speeds = place.with_stream(replace(place.city.stream, quantity="speed"))
    with raises(SettingsError, '"poisson"', '"speed"'):
        speeds.trees(objective=POISSON)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with raises(MissingExtraError, "frigate-forecast[trees]"):
        place.trees()


def metres_both_ways(network: RoadNetwork) -> NDArray[np.float64]:
    """Floyd and Warshall, every road taken both ways."""
    N = network.num_nodes
    far = np.full((N, N), np.inf)
    np.fill_diagonal(far, 0)
    np.minimum.at(far, (network.senders, network.receivers), network.length_m)
    np.minimum(far, far.T.copy(), out=far)
    for k in range(N):
        np.minimum(far, far[:, k : k + 1] + far[k], out=far)
    return far


def still(network: RoadNetwork) -> RoadNetworkStream:
    return make_stream(np.ones((2, network.num_nodes)), network, start_s=0, step_s=3600)


def topology_of(network: RoadNetwork, sensors: NDArray[np.bool_]) -> Topology:
    return windows_of(still(network), sensors).topologies[0]


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_weights_equal_a_textbook_solve(seed: int, smooth: bool) -> None:
    """With fewer sensors than are near, local kriging is kriging from all visible sensors."""
    rng = np.random.default_rng(seed)
    network = random_network(25, seed=seed, isolated=1)
    sensors = rng.random(25) < 0.5
    known = sensors & (rng.random(25) < 0.7)
    covariance = Covariance(range_m=900.0, nugget=0.4)
    place = find_surroundings(topology_of(network, sensors))
    local = kriging_weights(place, torch.from_numpy(known)[place.sensor], covariance, smooth=smooth)
    weights = torch.zeros(25, 25, dtype=torch.float64).scatter_add(1, place.sensor, local).numpy()
    far = metres_both_ways(network)
    for v in range(25):
        rows = np.flatnonzero(known & np.isfinite(far[v]))
        K = len(rows)
        if K == 0:  # a node without a road
            assert not weights[v].any()
            continue
        system = np.ones((K + 1, K + 1))
        system[:K, :K] = np.exp(-far[np.ix_(rows, rows)] / 900) + 0.4 * np.eye(K)
        system[K, K] = 0
        here = np.exp(-far[v, rows] / 900) + (0.0 if smooth else 0.4) * (rows == v)
        expected = np.zeros(25)
        expected[rows] = np.linalg.solve(system, np.append(here, 1))[:K]
        np.testing.assert_allclose(weights[v], expected, atol=1e-9)
        assert weights[v].sum() == pytest.approx(1)


@pytest.mark.parametrize("smooth", [False, True])
def test_without_a_nugget_a_sensor_keeps_its_reading(smooth: bool) -> None:
    network = random_network(25, seed=3)
    sensors = np.arange(25) % 2 == 0
    place = find_surroundings(topology_of(network, sensors))
    visible = torch.from_numpy(sensors)[place.sensor]
    weights = kriging_weights(place, visible, Covariance(500.0, nugget=0.0), smooth=smooth)
    own = torch.zeros_like(weights[sensors])
    own[:, 0] = 1
    torch.testing.assert_close(weights[sensors], own, atol=1e-8, rtol=0)


def test_a_covariance_that_is_not_positive_definite_is_lifted() -> None:
    """Two squares with shared corners: the exponential of its shortest paths has an eigenvalue below 0."""
    one = np.repeat([0, 1], 6)
    other = np.tile(np.arange(2, 8), 2)
    network = RoadNetwork(np.arange(8), np.arange(8.0), np.zeros(8), Edges.of(one, other, np.full(12, 100.0)))
    raw = np.exp(-metres_both_ways(network) / 1000)
    assert np.linalg.eigvalsh(raw).min() < -1e-3
    sensors = np.arange(8) != 4
    place = find_surroundings(topology_of(network, sensors))
    weights = kriging_weights(place, torch.from_numpy(sensors)[place.sensor], Covariance(1000.0, 0.0), smooth=True)
    torch.testing.assert_close(weights.sum(1), torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(weights[torch.from_numpy(sensors)][:, 0], torch.ones(7, dtype=torch.float64))


def test_the_variogram_finds_range_and_nugget() -> None:
    """Of many fields drawn with a known covariance on a line of nodes."""
    N = 120
    rng = np.random.default_rng(0)
    line = Edges.of(np.arange(N - 1), np.arange(1, N), np.full(N - 1, 50.0))
    network = RoadNetwork(np.arange(N), np.arange(N) / 1000, np.zeros(N), line)
    covariance = np.exp(-metres_both_ways(network) / 400) + 0.5 * np.eye(N)
    drawn = 7 * np.linalg.cholesky(covariance) @ rng.normal(size=(N, 400))
    found = fit_covariance(find_surroundings(topology_of(network, np.ones(N, bool))), torch.from_numpy(drawn.T))
    assert found.range_m == pytest.approx(400, rel=0.2)
    assert found.nugget == pytest.approx(0.5, rel=0.2)


def test_the_anomaly_fades_as_it_did_in_training() -> None:
    """One AR(1) process over the whole town, of which every node has its share of noise."""
    S = 3000
    ratio = 0.8
    rng = np.random.default_rng(0)
    process = np.zeros(S)
    for t in range(1, S):
        process[t] = ratio * process[t - 1] + rng.normal()
    network = random_network(20, seed=0)
    values = 40 + np.arange(20) + process[:, None] + 0.1 * rng.normal(size=(S, 20))
    stream = make_stream(values, network, start_s=0, step_s=600, quantity="speed")
    split = make_split(stream, seen=0.6, past=1, horizon=HORIZON)
    kriging = fit_kriging(windows_of(stream, split.seen), split, Task(1, HORIZON))
    assert kriging.decay.ratio == pytest.approx(ratio, abs=0.1)
    assert kriging.decay.first == pytest.approx(ratio, abs=0.1)
    current = windows_in(split.test, past=1, horizon=HORIZON)[:5]
    batch = windows_of(stream, split.seen).batch(current, past=1, horizon=HORIZON, inputs=torch.from_numpy(split.seen))
    anomaly, known = window_anomalies(batch, kriging.profile)
    np.testing.assert_array_equal(known[0], split.seen)
    expected = batch.values[:, 0] - kriging.profile[hourly_bins(batch.time_past)][:, 0]
    torch.testing.assert_close(anomaly[:, split.seen], expected[:, split.seen])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@both
def test_gpu_equals_cpu(name: str) -> None:
    place = town()
    model = fitted(name)
    there = windows_on(place.city.stream, place.windows.topologies, "cuda").batch(
        np.array([100, 400]), past=PAST, horizon=HORIZON, inputs=torch.from_numpy(place.split.seen).cuda()
    )
    torch.testing.assert_close(model(there).cpu(), model(place.batch([100, 400])), rtol=1e-3, atol=1e-3)
