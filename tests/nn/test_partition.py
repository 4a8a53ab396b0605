"""A part of a network, with all that it reads around it, is forecast and learnt from as the whole network is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from frigate.city.city import City
from frigate.city.folder import write_city
from frigate.city.network import Edges, RoadNetwork
from frigate.config import BaselineSettings, Settings, TrainSettings
from frigate.errors import SettingsError
from frigate.evaluation.evaluate import evaluate
from frigate.forecasting.forecast import forecast
from frigate.nn import predictor
from frigate.nn.batch import Batch
from frigate.nn.forecast_model import Reach
from frigate.nn.model import Frigate, PaperEmbedding
from frigate.nn.partition import cut_parts, forecast_bytes, in_parts
from frigate.roads.areas import split_into_areas
from frigate.roads.feature_cache import ensure_road_features
from frigate.training.checkpoint import load_run
from frigate.training.hidden_sensors import training_windows
from frigate.training.run import Run
from frigate.training.train import train
from frigate.training.trainer import StepReport, Trainer, draw_part, micro_batch
from tests.support.command_line import frigate
from tests.support.errors import raises
from tests.support.towns import PRESETS, Town, build_model, edited, in_float64, make_town, random_stream, small_settings
from tests.support.training_runs import equal, log, tensors, tiny

BOTH = pytest.mark.parametrize("name", PRESETS)
SIDE = 14
STILL: dict[str, Any] = {"dropout": 0.0, "edge_dropout": 0.0}


def grid(side: int, *, seed: int = 0) -> RoadNetwork:
    """A crooked grid, some streets missing and some one-way: few roads lead far, so that a halo is not everything."""
    rng = np.random.default_rng(seed)
    at = np.arange(side * side).reshape(side, side)
    a = np.concatenate([at[:, :-1].ravel(), at[:-1].ravel()])
    b = np.concatenate([at[:, 1:].ravel(), at[1:].ravel()])
    keep = rng.random(len(a)) > 0.1
    both = rng.random(len(a)) > 0.3
    senders = np.concatenate([a[keep], b[keep & both]])
    receivers = np.concatenate([b[keep], a[keep & both]])
    lon, lat = (
        0.001 * (axis + rng.uniform(-0.3, 0.3, side * side)) for axis in (at.ravel() % side, at.ravel() // side)
    )
    rows = rng.permutation(side * side)  # the order of the table says nothing of the place
    row_of = np.argsort(rows)
    edges = Edges.of(row_of[senders], row_of[receivers], rng.integers(60, 200, len(senders)))
    return RoadNetwork(1000 + 3 * rows, lon[rows], lat[rows], edges)


@cache
def place(name: str, topologies: int = 1) -> Town:
    networks = [grid(SIDE)]
    for i in range(1, topologies):
        networks.append(edited(networks[-1], seed=i, closed=20))
    stream = random_stream(networks, seed=1, snapshots=10, silent=0.9)
    return make_town(stream, small_settings(name, layers=2))


@cache
def city() -> City:
    """Smaller, with so few sensors that nothing is tried out to find how people drive."""
    network = grid(SIDE - 3)
    return ensure_road_features(City("Grid", random_stream([network], seed=2, snapshots=90, silent=0.75)))


def exact(town: Town, batch: Batch) -> tuple[Frigate, Batch]:
    return build_model(town.settings, town.scaling).double(), in_float64(batch)


def areas(town: Town, count: int) -> list[np.ndarray]:
    network = town.stream.network
    return split_into_areas(network.lon, network.lat, count)


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}


# One part


@BOTH
@pytest.mark.parametrize("topologies", [1, 2])
@pytest.mark.parametrize("count", [3, 8])
def test_with_a_complete_halo_loss_and_gradient_equal_those_of_the_whole_network(
    name: str, topologies: int, count: int
) -> None:
    town = place(name, topologies)
    model, batch = exact(town, town.batch([4, 5]))
    assert len(batch.topologies) == topologies
    reach = model.reach
    assert reach == Reach(2, name == "default")
    parts = list(cut_parts(batch.topologies, areas(town, count), reach))
    assert max(part.num_nodes for part in parts) < 0.9 * batch.num_nodes
    weight = torch.rand(batch.num_windows, 3, batch.num_nodes, generator=torch.Generator().manual_seed(0)).double()

    whole = model(batch)
    (whole * weight).sum().backward()
    expected = gradients(model)
    model.zero_grad()
    total = 0.0
    for part in parts:
        mine = model.forecast_at(part.of(batch), slice(len(part.core)))
        torch.testing.assert_close(mine, whole[:, :, part.core], rtol=1e-9, atol=1e-9)
        loss = (mine * weight[:, :, part.core]).sum()
        loss.backward()
        total += float(loss.detach())
    assert total == pytest.approx(float((whole.detach() * weight).sum()))
    assert expected.keys() == gradients(model).keys()
    for k, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[k], rtol=1e-7, atol=1e-7)


@BOTH
def test_a_halo_that_lacks_a_ring_or_the_sensors_is_not_enough(name: str) -> None:
    town = place(name)
    model, batch = exact(town, town.batch([5]))
    whole = model(batch)
    less = [Reach(1, name == "default"), *([Reach(2, False)] if name == "default" else [])]
    for reach in less:
        parts = list(cut_parts(batch.topologies, areas(town, 4), reach))
        if not reach.sensors and name == "default":
            parts = [replace(part, topologies=tuple(without_sensors(t) for t in part.topologies)) for part in parts]
        assert (in_parts(model, batch, parts) - whole).abs().max() > 1e-4


def without_sensors(topology: Any) -> Any:
    n = topology.num_nodes
    return replace(
        topology, near_sensor=torch.arange(n)[:, None], near_distance_m=torch.full((n, 1), torch.inf).double()
    )


def test_how_far_a_changed_model_looks_is_not_known() -> None:
    class Farther(PaperEmbedding):
        pass

    town = place("paper")
    model = build_model(town.settings, town.scaling)
    assert model.reach is not None
    model.embedding = Farther(town.settings.width, town.settings.anchors)
    assert model.reach is None


@pytest.mark.parametrize(("places", "count"), [(1, 1), (7, 3), (100, 1), (100, 7), (1000, 64), (5, 9)])
def test_areas_are_alike_in_size_apart_and_complete(places: int, count: int) -> None:
    rng = np.random.default_rng(places)
    lon = rng.random(places)
    lat = rng.random(places)
    made = split_into_areas(lon, lat, count)
    sizes = [len(area) for area in made]
    assert len(made) == min(places, count)
    assert np.array_equal(np.sort(np.concatenate(made)), np.arange(places))
    assert max(sizes) - min(sizes) <= 2
    spread = np.mean([np.ptp(lon[area]) + np.ptp(lat[area]) for area in made])
    assert count < 7 or spread < 0.8 * (np.ptp(lon) + np.ptp(lat))


# Training


def trainer_of(settings: Settings) -> Trainer:
    def stop(tick: StepReport) -> None:
        raise KeyboardInterrupt

    stopped = train(city(), settings=settings, device="cpu", on_step=stop).on(city())
    return Trainer(stopped, training_windows(stopped, "cpu"))


@BOTH
def test_the_mean_gradient_over_the_parts_is_the_whole_networks(name: str) -> None:
    """Weights stay, so that each part's step starts from the same ones."""
    frozen = {"learning_rate": 1e-30, "weight_decay": 0.0, "clip_norm": 1e9, "batch_size": 3}
    model = {} if name == "paper" else STILL
    found, whole = {}, None
    for count in (1, 4):
        trainer = trainer_of(tiny(name, model=model, parts=count, masks=1, **frozen))
        whole = whole or trainer
        with torch.no_grad():  # a correction of exactly 0 has no gradient where demand and target are both 0
            list(trainer.model.get_submodule("readout").parameters())[-1].fill_(0.01)  # its bias
        steps = []
        for step in range(count):
            loss, finite = trainer._step(trainer.train_at[5:8], np.random.default_rng(0), step)
            assert finite
            steps.append({**gradients(trainer.model), "loss": loss})
        found[count] = {k: torch.stack([s[k] for s in steps]).mean(0) for k in steps[0]}
        whole.averaged.load_state_dict(trainer.averaged.state_dict())
        assert trainer.validate() == pytest.approx(whole.validate(), rel=1e-5)
    assert found[4].keys() == found[1].keys()
    for k, gradient in found[4].items():
        torch.testing.assert_close(gradient, found[1][k], rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("parts", [2, 5])
def test_every_part_has_its_turn_in_an_order_of_its_own(parts: int) -> None:
    drawn = np.array([draw_part(7, step, parts) for step in range(12 * parts)]).reshape(12, parts)
    assert np.array_equal(np.sort(drawn), np.tile(np.arange(parts), (12, 1)))
    assert len(np.unique(drawn, axis=0)) > 1


def test_parts_take_less_memory_so_more_windows_go_at_once() -> None:
    trainer = trainer_of(tiny("paper", parts=4, batch_size=64, memory_gb=0.02))
    assert trainer.micro_batch > micro_batch(trainer.run, trainer.device)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Several threads add up the gradient of `default`'s kernel mean in any order: its last bits are not repeated."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@BOTH
@pytest.mark.usefixtures("one_thread")
def test_an_interrupted_run_in_parts_goes_on_as_a_straight_one(name: str, tmp_path: Path) -> None:
    def stop_in_the_second(tick: StepReport) -> None:
        if (tick.epoch, tick.step) == (1, 1):
            raise KeyboardInterrupt

    settings = tiny(name, parts=3, epochs=2)
    train(city(), settings=settings, folder=tmp_path / "straight", device="cpu")
    train(city(), settings=settings, folder=tmp_path / "broken", device="cpu", on_step=stop_in_the_second)
    train(city(), settings=settings, folder=tmp_path / "broken", device="cpu", resume=True)
    assert equal(tensors(tmp_path / "straight"), tensors(tmp_path / "broken"))
    assert log(tmp_path / "straight") == log(tmp_path / "broken")


def test_settings_of_before_there_were_parts_are_read() -> None:
    settings = tiny("paper", parts=3)
    data = settings.to_json()
    assert Settings.from_json(data) == settings
    del data["train"]["parts"]
    assert Settings.from_json(data).train.parts == 1
    with raises(SettingsError, "parts = 0"):
        TrainSettings(parts=0)


def test_a_baseline_is_trained_whole() -> None:
    settings = replace(tiny("paper", parts=2), model=BaselineSettings("dcrnn", 8, 1))
    with raises(SettingsError, "DCRNN", "parts = 1"):
        train(city(), settings=settings, device="cpu")


# Forecasts in blocks


@cache
def trained(name: str) -> Run:
    run = train(city(), seen=0.6, settings=tiny(name, epochs=1, steps_per_epoch=1), device="cpu")
    run.model.trust_correction(1.0)  # a network without trust is not run
    return run


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Blocks may be small; what is foreseen of each that is forecast."""
    monkeypatch.setattr(predictor, "MIN_BLOCK", 10)
    foreseen: list[int] = []
    forecast_at = Frigate.forecast_at

    def noted(model: Frigate, batch: Batch, nodes: Tensor | slice, **options: Any) -> Tensor:
        if isinstance(nodes, slice):  # training asks for the nodes with targets
            edges = max(topology.num_edges for topology in batch.topologies)
            sizes = {"nodes": batch.num_nodes, "edges": edges, "past": batch.past, "horizon": batch.horizon}
            foreseen.append(batch.num_windows * forecast_bytes(model, **sizes))
        return forecast_at(model, batch, nodes, **options)

    monkeypatch.setattr(Frigate, "forecast_at", noted)
    return lambda: foreseen


@BOTH
def test_a_forecast_in_blocks_is_the_forecast(name: str, blocks: Callable[[], list[int]]) -> None:
    at_once = forecast(trained(name), stream=city(), device="cpu")
    assert blocks() == []
    memory_gb = 0.00018
    in_blocks = forecast(trained(name), stream=city(), device="cpu", memory_gb=memory_gb)
    assert len(blocks()) > 3
    assert max(blocks()) <= memory_gb * 2**30
    np.testing.assert_allclose(in_blocks.values, at_once.values, rtol=1e-4, atol=1e-4)
    assert in_blocks.notices == at_once.notices


def test_a_network_that_changes_in_the_window_is_forecast_in_blocks(blocks: Callable[[], list[int]]) -> None:
    run = trained("default")
    stream = city().stream
    network = edited(stream.network, seed=1, closed=9)
    later = np.arange(stream.num_snapshots) >= stream.num_snapshots - 2
    changed = replace(stream, networks=(stream.network, network), network_of=later.astype(np.int64))
    at_once = forecast(run, stream=changed, device="cpu")
    in_blocks = forecast(run, stream=changed, device="cpu", memory_gb=0.00018)
    assert len(blocks()) > 2
    np.testing.assert_allclose(in_blocks.values, at_once.values, rtol=1e-4, atol=1e-4)
    assert not np.allclose(at_once.values, forecast(run, stream=stream, device="cpu").values)


def test_too_little_memory_is_refused_and_says_how_much_it_takes() -> None:
    with raises(SettingsError, "1e-06 GB", "memory_gb"):
        forecast(trained("paper"), stream=city(), device="cpu", memory_gb=1e-6)
    with raises(SettingsError, "memory_gb = -1"):
        forecast(trained("paper"), stream=city(), device="cpu", memory_gb=-1)


def test_a_baseline_is_forecast_whole_and_says_so() -> None:
    settings = replace(tiny("paper", epochs=1, steps_per_epoch=1), model=BaselineSettings("dcrnn", 8, 1))
    run = train(city(), settings=settings, device="cpu")
    plain, limited = (forecast(run, stream=city(), device="cpu", memory_gb=gb) for gb in (None, 1e-6))
    assert np.array_equal(plain.values, limited.values)
    assert not plain.notices
    assert limited.notices == ("how far DCRNN looks is not known: the whole network was forecast at once.",)


def test_scores_in_blocks_are_the_scores(blocks: Callable[[], list[int]]) -> None:
    run = trained("paper")
    little = replace(run, settings=replace(run.settings, train=replace(run.settings.train, memory_gb=0.00018)))
    whole, parts = (evaluate(each, city(), stride=3, device="cpu").model.unseen for each in (run, little))
    assert len(blocks()) > 2
    assert whole is not None and parts is not None
    assert parts.mae.value == pytest.approx(whole.mae.value, rel=1e-5)


def test_both_options_are_on_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "city"
    run = tmp_path / "run"
    small = tmp_path / "small.toml"
    write_city(city(), folder)
    small.write_text(
        "[task]\npast = 4\nhorizon = 4\n[model]\nwidth = 8\nlayers = 2\n[train]\nsteps_per_epoch = 2\nmasks = 2\n"
    )
    train_it = ("train", folder, "-o", run, "--settings", small, "--epochs", 1, "--device", "cpu", "--parts")
    assert frigate(*train_it, 0).status == 2
    assert frigate(*train_it, 2).status == 0
    assert load_run(run).settings.train.parts == 2
    assert frigate("forecast", run, "--memory-gb", 1e-6).status == 2
    assert frigate("forecast", run, "--memory-gb", 2, "--device", "cpu").status == 0
