"""The wiring of training: weights that are kept, what validation reads, what is drawn, a step of the optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frigate.city.city import City
from frigate.nn.batch import Batch
from frigate.nn.windows import Windows
from frigate.roads.positions import two_way_m
from frigate.training.checkpoint import load_run
from frigate.training.hidden_sensors import draw_hidden, training_masks
from frigate.training.train import new_run
from frigate.training.trainer import StepReport, Trainer
from tests.support.grids import grid_stream
from tests.support.training_runs import equal, new_trainer, tiny, weights

State = dict[str, Tensor]


# Which weights are kept


def copied(model: nn.Module) -> State:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("average", [0.0, 0.75])
def test_the_weights_of_the_best_epoch_are_kept(average: float, tmp_path: Path) -> None:
    """The second of three: the first and the last begin with weights that forecast nonsense."""
    trainer = new_trainer(tiny("paper", epochs=3, average=average), folder=tmp_path)
    models = {trainer.model, trainer.averaged}
    judged = []
    good = copied(trainer.model)

    def set_weights(state: State) -> None:
        for model in models:
            model.load_state_dict(state)

    nonsense = {name: 3 * torch.randn_like(value) for name, value in good.items()} | dict(trainer.model.named_buffers())

    def on_step(report: StepReport) -> None:
        if report.metrics is not None:
            judged.append(copied(trainer.averaged))
            set_weights(good if report.epoch == 0 else nonsense)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        set_weights(nonsense)
        run = trainer.fit(on_step)
    assert (run.progress.best_epoch, run.progress.epoch, len(judged)) == (2, 3, 3)
    assert equal(weights(run), judged[1])
    assert equal(weights(load_run(tmp_path)), judged[1])
    set_weights(judged[1])
    assert trainer.validate() == run.progress.best_mae


# What validation reads


@pytest.mark.parametrize(
    ("name", "validation"), [("paper", "seen"), ("default", "seen"), ("paper", "unseen"), ("default", "none")]
)
def test_validation_reads_nothing_of_the_nodes_that_it_scores(name: str, validation: str) -> None:
    trainer = new_trainer(tiny(name, validation=validation, validation_windows=1, hide=(0.3, 0.6)))
    with torch.no_grad():  # `default` begins with a correction of 0
        for parameter in trainer.averaged.parameters():
            parameter.add_(0.1)
    windows = trainer.windows
    (current,) = trainer.validate_at
    values = windows.values.clone()
    observed = windows.observed.clone()
    scored = trainer.scored_at
    past = slice(current - 3, current + 1)
    ahead = slice(current + 1, current + 5)
    before = trainer.validate()

    def changed(rows: slice, nodes: Tensor) -> float:
        windows.values = values.clone()
        windows.observed = observed.clone()
        windows.values[rows, nodes] += 50
        windows.observed[rows, nodes] = True
        return trainer.validate()

    assert changed(past, scored) == before
    assert changed(ahead, scored) != before
    others = torch.tensor(sorted(set(trainer.inputs.nonzero()[:, 0].tolist()) - set(scored.tolist())))
    assert changed(past, others) != before


# What is drawn


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[NDArray[np.int64], Tensor]]:
    """Of every batch that is cut: the windows and the sensors hidden in each."""
    found = []
    cut: Callable[..., Batch] = Windows.batch

    def recorded(windows: Windows, current: NDArray[np.int64], **how: Any) -> Batch:
        found.append((current, how["hidden"]))
        return cut(windows, current, **how)

    monkeypatch.setattr(Windows, "batch", recorded)
    return found


@pytest.mark.parametrize("demand", [True, False])
def test_each_epoch_has_every_window_once_in_an_order_and_with_hidden_sensors_of_its_own(
    demand: bool, drawn: list[tuple[NDArray[np.int64], Tensor]]
) -> None:
    settings = tiny(epochs=2, steps_per_epoch=None, batch_size=16, masks=6, model={"layers": 1, "demand": demand})
    trainer = new_trainer(settings)
    seeds: dict[int, int] = {}

    def on_step(report: StepReport) -> None:
        assert trainer.model.training
        seeds[report.epoch] = torch.initial_seed()

    trainer.fit(on_step)
    steps = math.ceil(len(trainer.train_at) / 16)
    of_training = [batch for batch in drawn if len(batch[0]) and batch[0].max() <= trainer.train_at.max()]
    assert len(of_training) == 2 * steps
    orders, hidden = [], []
    for epoch in range(2):
        batches = of_training[epoch * steps : (epoch + 1) * steps]
        orders.append(np.concatenate([current for current, _ in batches]))
        hidden.append(torch.cat([sensors for _, sensors in batches]))
        assert all(len(sensors.unique(dim=0)) > 1 for _, sensors in batches)
    assert all(sorted(order) == trainer.train_at.tolist() for order in orders)
    assert not np.array_equal(orders[0], trainer.train_at)
    assert not np.array_equal(orders[0], orders[1])
    assert not torch.equal(*hidden)
    assert seeds[0] != seeds[1]  # of dropout


@pytest.mark.parametrize("mode", ["random", "region"])
def test_sensors_are_hidden_in_areas_where_an_area_has_none(mode: str) -> None:
    city = City("Grid", grid_stream(20, snapshots=300))
    run = new_run(city, settings=tiny(masks=12, model={"demand": False}), seen=0.6, mode=mode)
    masks = training_masks(run)
    sensors = run.split.training
    assert not (masks & ~sensors).any()
    away_m = two_way_m(city.network, np.flatnonzero(sensors))
    in_an_area = [any(each[mask].max() < each[sensors & ~mask].min() for each in away_m) for mask in masks]
    assert np.flatnonzero(in_an_area).tolist() == ([] if mode == "random" else [1, 5, 9])
    assert np.abs(masks.sum(1) / sensors.sum() - np.linspace(0.2, 0.8, 12)).max() < 0.1
    assert np.array_equal(masks, training_masks(run))


def test_each_window_hides_a_share_of_its_own() -> None:
    share = draw_hidden(np.random.default_rng(0), np.ones(3000, bool), 8, (0.1, 0.9)).mean(1)
    assert share.max() - share.min() > 0.4


# Each step of the optimiser


def test_the_learning_rate_of_each_step_counts_from_the_first_epoch() -> None:
    trainer = new_trainer(tiny("paper", epochs=3, warmup_steps=2, learning_rate=0.004))
    rates: list[float] = []

    def on_step(report: StepReport) -> None:
        if report.metrics is None:
            rates.extend(group["lr"] for group in trainer.optimiser.param_groups)

    trainer.fit(on_step)
    cosine = [(1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)]
    assert rates == pytest.approx([0.002, 0.004, *(0.004 * (0.02 + 0.98 * part) for part in cosine)])


def first_step(**training: Any) -> tuple[Trainer, State, State]:
    """A trainer after one step, with the weights before it and their gradients before clipping."""
    trainer = new_trainer(tiny("paper", warmup_steps=0, **training))
    before = copied(trainer.model)
    current = trainer.train_at[:4]
    batch = trainer.windows.batch(current, past=4, horizon=4, inputs=trainer.inputs)
    weight = trainer.inputs.float().expand(4, -1)
    trainer._gradients(batch, weight, trainer._cells(batch, weight))
    gradients = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    trainer._step(current, np.random.default_rng(0), 0)
    return trainer, before, gradients


def test_a_step_is_that_of_adam_with_decoupled_weight_decay() -> None:
    rate, decay = 0.01, 0.5
    trainer, before, gradients = first_step(learning_rate=rate, weight_decay=decay, clip_norm=1e9)
    for name, now in trainer.model.named_parameters():
        g = gradients[name]
        expected = before[name] * (1 - rate * decay) - rate * g / (g.abs() + 1e-8)  # the moments of one gradient
        torch.testing.assert_close(now.detach(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clip_norm", [0.01, 1e9])
def test_a_gradient_is_clipped_to_its_norm(clip_norm: float) -> None:
    trainer, _, gradients = first_step(clip_norm=clip_norm)
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
    assert norm > 0.1
    for name, parameter in trainer.model.named_parameters():
        assert parameter.grad is not None
        expected = gradients[name] * min(1.0, clip_norm / norm)
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-9)
