"""Training: it learns, it repeats itself, it can be stopped and gone on with, and it never looks where it must not."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.detectors import Detectors
from frigate.city.folder import read_city, write_city
from frigate.city.split import make_split
from frigate.city.stream import make_stream
from frigate.config import TrainSettings, change, preset
from frigate.demand.tables import DEMAND_NODE
from frigate.errors import CheckpointError, CityError, SettingsError
from frigate.evaluation.evaluate import evaluate
from frigate.forecasting.forecast import forecast
from frigate.nn.batch import Batch
from frigate.nn.device import best_device
from frigate.nn.forecast_model import ForecastModel
from frigate.nn.model import Frigate
from frigate.nn.windows import Windows
from frigate.roads.feature_cache import ensure_road_features
from frigate.roads.nearest_sensors import uncovered_share
from frigate.training import trainer as trainer_module
from frigate.training.checkpoint import TRAINING, load_checkpoint, load_run
from frigate.training.hidden_sensors import draw_hidden, kept_out_sensors, training_masks, training_windows
from frigate.training.train import new_run, summary_line, train
from frigate.training.trainer import (
    LAST_RATE,
    StepReport,
    Trainer,
    learning_rate,
    micro_batch,
    spread,
)
from tests.support.crash_points import frigate_signalled
from tests.support.errors import raises
from tests.support.grids import grid_network
from tests.support.towns import START_S
from tests.support.training_runs import (
    N,
    equal,
    first_road,
    garbage,
    log,
    new_trainer,
    tensors,
    tiny,
    town,
    weights,
    with_readings,
)

PRESETS = ("paper", "default")
BOTH = pytest.mark.parametrize("name", PRESETS)


# Learning, and repeating it


@BOTH
def test_the_loss_falls(name: str) -> None:
    losses: list[float] = []

    def on_step(tick: StepReport) -> None:
        if tick.metrics is not None:
            losses.append(tick.loss)

    settings = tiny(name, epochs=8, steps_per_epoch=5, batch_size=16)
    run = train(town(), seen=0.6, settings=settings, device="cpu", on_step=on_step)
    assert len(losses) == 8
    assert np.mean(losses[-3:]) < 0.9 * losses[0]
    # The untrained `default` forecasts what demand does, and on so small a town nothing is better.
    assert run.progress.best_epoch > (1 if name == "paper" else 0)
    assert run.progress.finished


@BOTH
def test_the_seed_decides_everything_and_nothing_else_is_touched(name: str) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    one, again, other = (train(town(), settings=tiny(name, seed=seed), device="cpu") for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert equal(weights(one), weights(again))
    assert not equal(weights(one), weights(other))
    assert one.progress.best_mae == again.progress.best_mae


def test_ticks_count_every_step() -> None:
    ticks: list[StepReport] = []
    train(town(), settings=tiny(epochs=2), device="cpu", on_step=ticks.append)
    steps = [(t.epoch, t.step, t.steps, t.epochs) for t in ticks if t.metrics is None]
    assert steps == [(0, 1, 2, 2), (0, 2, 2, 2), (1, 1, 2, 2), (1, 2, 2, 2)]
    assert [t.metrics["epoch"] for t in ticks if t.metrics is not None] == [1, 2]


# Stopping and going on


@BOTH
@pytest.mark.parametrize("at", [(1, 1), (2, 2)])
def test_an_interrupted_run_that_goes_on_equals_a_straight_one(name: str, at: tuple[int, int], tmp_path: Path) -> None:
    settings = tiny(name)
    straight = train(town(), settings=settings, folder=tmp_path / "straight", device="cpu")

    def stop(tick: StepReport) -> None:
        if (tick.epoch, tick.step) == at:
            raise KeyboardInterrupt

    half = train(town(), settings=settings, folder=tmp_path / "halves", device="cpu", on_step=stop)
    assert half.progress.epoch == at[0]
    assert not half.progress.finished
    assert len(log(tmp_path / "halves")) == at[0]
    whole = train(town(), settings=settings, folder=tmp_path / "halves", resume=True, device="cpu")
    assert equal(weights(straight), weights(whole))
    assert equal(tensors(tmp_path / "straight"), tensors(tmp_path / "halves"))
    assert log(tmp_path / "straight") == log(tmp_path / "halves")
    assert replace(whole.progress, seconds=0) == replace(straight.progress, seconds=0)


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    run = train(town(), settings=tiny(), folder=tmp_path, device="cpu")
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()}
    again = train(town(), folder=tmp_path, resume=True, device="cpu", on_step=lambda tick: pytest.fail("trained"))
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()} == before
    assert equal(weights(run), weights(again))


def test_no_epoch_keeps_what_demand_forecasts_and_can_be_extended(tmp_path: Path) -> None:
    run = train(
        town(),
        settings=tiny("default", epochs=0),
        folder=tmp_path,
        device="cpu",
        on_step=lambda tick: pytest.fail("trained"),
    )
    assert run.progress.finished and run.progress.epoch == 0 and math.isfinite(run.progress.best_mae)
    assert "Demand alone, nothing learned" in summary_line(run) and str(tmp_path) in summary_line(run)
    assert not (tmp_path / "metrics.jsonl").exists()
    result = evaluate(load_run(tmp_path), town(), stride=7)
    assert "nothing was learned" in result.note and "demand alone" not in [row.name for row in result.rows]
    longer = train(town(), settings=tiny("default", epochs=2), folder=tmp_path, resume=True, device="cpu")
    assert longer.progress.epoch == 2 and [line["epoch"] for line in log(tmp_path)] == [1, 2]
    later = evaluate(longer, town(), stride=7)
    ours = result.model.unseen
    demand = later.row("demand alone").unseen
    assert ours is not None and demand is not None and ours.mae.value == pytest.approx(demand.mae.value, rel=1e-5)
    assert "nothing was learned" not in later.note
    assert equal(weights(longer), weights(train(town(), settings=tiny("default", epochs=2), device="cpu")))
    with raises(SettingsError, "epochs = 0", "at least one epoch"):
        train(town(), settings=tiny("paper", epochs=0), device="cpu")


def test_more_epochs_extend_a_finished_run(tmp_path: Path) -> None:
    first = train(town(), settings=tiny(epochs=2), folder=tmp_path, device="cpu")
    lines = log(tmp_path)
    reports: list[StepReport] = []
    longer = train(town(), settings=tiny(epochs=4), folder=tmp_path, resume=True, device="cpu", on_step=reports.append)
    assert (longer.progress.epoch, longer.progress.finished) == (4, True)
    assert [step.epoch for step in reports if step.metrics is not None] == [2, 3]
    assert log(tmp_path)[:2] == lines and len(log(tmp_path)) == 4
    assert load_run(tmp_path).settings.train.epochs == 4
    assert not equal(weights(first), weights(longer))
    with raises(SettingsError, "epochs = 3", "4"):
        train(town(), settings=tiny(epochs=3), folder=tmp_path, resume=True)


def test_progress_is_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    train(town(), settings=tiny(epochs=2), device="cpu", progress=True)
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["epoch 1", "epoch 2"]
    train(town(), settings=tiny(epochs=1), device="cpu")
    assert capsys.readouterr() == ("", "")


def test_stopped_before_the_first_epoch_nothing_is_kept_and_training_can_begin_again(tmp_path: Path) -> None:
    def stop(tick: StepReport) -> None:
        raise KeyboardInterrupt

    run = train(town(), settings=tiny(), folder=tmp_path, device="cpu", on_step=stop)
    assert run.progress.epoch == 0
    with raises(CheckpointError, "epoch", "--resume"):
        train(town(), folder=tmp_path, resume=True)
    assert train(town(), settings=tiny(), folder=tmp_path, device="cpu").progress.finished


def test_settings_that_contradict_the_run_are_refused(tmp_path: Path) -> None:
    train(town(), seen=0.6, settings=tiny(epochs=1), folder=tmp_path, device="cpu")
    with raises(SettingsError, "run", "--resume"):
        train(town(), settings=tiny(), folder=tmp_path)
    with raises(SettingsError, "batch_size = 9", "4"):
        train(town(), settings=tiny(epochs=1, batch_size=9), folder=tmp_path, resume=True)
    with raises(SettingsError, "14 other sensors"):
        train(town(), seen=0.5, folder=tmp_path, resume=True)
    with raises(SettingsError, "folder"):
        train(town(), resume=True)
    train(town(), seen=0.6, settings=tiny(epochs=1), folder=tmp_path, resume=True)
    other = town().network.close([first_road(town())])
    changed = replace(town(), stream=replace(town().stream, networks=(other,)), road_features={})
    with raises(CheckpointError, "city", "network"):
        train(changed, folder=tmp_path, resume=True)


def test_a_folder_that_cannot_hold_a_run_is_refused_before_any_work(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder, words in ((file, "file"), (file / "run", "Not a directory")):
        with raises(SettingsError, str(folder), words):
            train(town(), settings=tiny(), folder=folder, on_step=lambda tick: pytest.fail("trained"))
    (tmp_path / "city.toml").write_text("")
    with raises(SettingsError, "city"):
        train(town(), settings=tiny(), folder=tmp_path)


def test_metrics_of_others_are_not_written_over(tmp_path: Path) -> None:
    mine = tmp_path / "metrics.jsonl"
    mine.write_text("mine")
    with raises(SettingsError, str(tmp_path), "metrics.jsonl"):
        train(town(), settings=tiny(), folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_training_in_a_folder_is_refused_with_who_holds_it(resume: bool, tmp_path: Path) -> None:
    refused: list[StepReport] = []

    def second(step: StepReport) -> None:
        if step.epoch == resume and not refused:  # resumed: after the first epoch
            with raises(SettingsError, str(tmp_path), f"process {os.getpid()}"):
                train(town(), settings=tiny("paper"), folder=tmp_path, resume=resume)
            refused.append(step)

    run = train(town(), settings=tiny("paper"), folder=tmp_path, device="cpu", on_step=second)
    assert refused and run.progress.finished
    assert len(log(tmp_path)) == run.progress.epoch


def test_a_refused_training_leaves_no_folder(tmp_path: Path) -> None:
    with raises(SettingsError, "unseen"):
        train(town(), seen="all", settings=tiny(validation="unseen"), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


LONG = tiny(epochs=12, steps_per_epoch=1, batch_size=2)


def write_long_run(folder: Path) -> tuple[Path, Path]:
    """A city on disk with its features in the cache, and the settings of a run worth killing."""
    write_city(town(), folder / "city")
    ensure_road_features(read_city(folder / "city"))
    settings = folder / "settings.toml"
    lines = []
    for part, values in LONG.to_json().items():
        lines.append(f"[{part}]")
        lines += [f"{k} = {json.dumps(v)}" for k, v in values.items() if v is not None]
    settings.write_text("\n".join(lines))
    return folder / "city", settings


def train_killed_at(part: str, event: int, city: Path, run: Path, settings: Path, *more: str) -> int:
    """`frigate train`, killed just before it touches for the given time a file with `part` in its path."""
    words = ["train", str(city), "-o", str(run), "--settings", str(settings), "--device", "cpu", *more]
    ended = frigate_signalled(signal.SIGKILL, part, event, *words)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    city, settings = write_long_run(tmp_path)
    assert train_killed_at("checkpoint-0003", 1, city, tmp_path / "killed", settings) == -signal.SIGKILL
    opened = read_city(city)
    assert load_checkpoint(tmp_path / "killed", city=opened)[0].progress.epoch == 2
    train(opened, folder=tmp_path / "killed", resume=True, device="cpu")
    train(opened, settings=LONG, folder=tmp_path / "straight", device="cpu")
    assert equal(tensors(tmp_path / "straight"), tensors(tmp_path / "killed"))
    assert log(tmp_path / "straight") == log(tmp_path / "killed")
    assert {p.name for p in (tmp_path / "killed").iterdir()} == {p.name for p in (tmp_path / "straight").iterdir()}


@pytest.mark.slow
def test_a_run_killed_again_and_again_loses_nothing_but_time(tmp_path: Path) -> None:
    city, settings = write_long_run(tmp_path)
    train(read_city(city), settings=LONG, folder=tmp_path / "straight", device="cpu")
    folder = tmp_path / "killed"
    rng = random.Random(0)
    done = 0
    kills = 0
    while train_killed_at(str(folder), rng.randint(1, 50), city, folder, settings, *["--resume"] * (done > 0)) != 0:
        kills += 1
        assert kills < 60  # each time it gets a little further
        if any(folder.glob("checkpoint-*")):
            epoch = load_checkpoint(folder, city=read_city(city))[0].progress.epoch
            assert epoch >= done
            done = epoch
    assert kills >= 5
    assert equal(tensors(tmp_path / "straight"), tensors(folder))
    assert log(tmp_path / "straight") == log(folder)


# What training may not look at


@BOTH
def test_unseen_readings_cannot_matter(name: str, tmp_path: Path) -> None:
    city = town()
    settings = tiny(name)
    split = make_split(city.stream, seen=0.5, past=4, horizon=4)
    ids = city.stream.node_ids[split.seen].tolist()
    clean = train(city, seen=ids, settings=settings, folder=tmp_path / "clean", device="cpu")
    assert clean.split.unseen.any()
    for kind in ("garbage", "flipped", "gone"):
        observed = city.stream.observed.copy()
        if kind != "garbage":
            observed[:, split.unseen] = ~observed[:, split.unseen] if kind == "flipped" else False
        poisoned = with_readings(city, garbage(replace(city.stream, observed=observed), split.unseen), observed)
        dirty = train(poisoned, seen=ids, settings=settings, folder=tmp_path / kind, device="cpu")
        assert dirty.split.unseen.any() == (kind != "gone")
        assert equal(tensors(tmp_path / "clean"), tensors(tmp_path / kind)), kind
        assert log(tmp_path / "clean") == log(tmp_path / kind), kind
        assert clean.scaling.to_json() == dirty.scaling.to_json(), kind


def test_validation_at_unseen_nodes_does_look_at_them() -> None:
    """So the test above can fail."""
    city = town()
    settings = tiny(validation="unseen")
    split = make_split(city.stream, seen=0.5, past=4, horizon=4)
    ids = city.stream.node_ids[split.seen].tolist()
    poisoned = with_readings(city, garbage(city.stream, split.unseen))
    clean, dirty = (train(c, seen=ids, settings=settings, device="cpu") for c in (city, poisoned))
    assert clean.progress.best_mae != dirty.progress.best_mae
    with raises(SettingsError, "seen"):
        train(city, seen="all", settings=settings)


@pytest.mark.parametrize("quantity", ["count", "speed"])
def test_where_no_node_is_held_out_all_are_trained_on_and_the_last_epoch_is_kept(
    quantity: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rising = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(Trainer, "validate", lambda self: next(rising))
    settings = tiny(validation="none", hide=(0.3, 0.6))
    run = train(town(quantity=quantity), seen=0.5, settings=settings, folder=tmp_path, device="cpu")
    assert not run.split.validation.any()
    assert (run.progress.best_epoch, run.progress.best_mae) == (3, 3.0)
    state = tensors(tmp_path)
    assert all(torch.equal(value, state[f"averaged.{name}"]) for name, value in weights(run).items())


@pytest.mark.parametrize("quantity", ["count", "speed"])
def test_where_no_node_is_held_out_sensors_hidden_in_the_validation_windows_are_scored(
    quantity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = new_trainer(tiny(validation="none", hide=(0.3, 0.6), validation_windows=4), quantity)
    made: list[Batch] = []
    batch_of = Windows.batch

    def recorded(windows: Windows, current: NDArray[np.int64], **how: Any) -> Batch:
        made.append(batch_of(windows, current, **how))
        return made[-1]

    monkeypatch.setattr(Windows, "batch", recorded)
    score = trainer.validate()
    (batch,) = made
    scored = trainer.scored_at
    assert trainer.run.split.seen[scored].all()
    assert 0 < len(scored) < trainer.run.split.seen.sum()
    assert not batch.observed[..., scored].any()
    assert batch.observed.any()
    if quantity == "count":
        assert batch.demand_node is not None
        assert not batch.demand_node[:, scored, DEMAND_NODE.index("is_sensor")].any()  # nor does demand know them
    assert batch.target is not None and batch.target_observed is not None
    made_there = trainer.averaged.eval()(batch).detach()[..., scored].clamp(min=0)
    wrong = (made_there - batch.target[..., scored]).abs()[batch.target_observed[..., scored]]
    assert score == pytest.approx(float(wrong.mean()), rel=1e-5)


@BOTH
def test_validation_nodes_are_neither_input_nor_loss_in_training(name: str, tmp_path: Path) -> None:
    city = town()
    settings = tiny(name)
    split = make_split(city.stream, past=4, horizon=4)
    rows = np.flatnonzero(split.validation)
    values = city.stream.values.copy()
    observed = city.stream.observed.copy()
    # Turned about in the training period: the same readings, so the same scale, at other times.
    values[: split.train[1], rows], observed[: split.train[1], rows] = (
        array[: split.train[1], rows][::-1].copy() for array in (values, observed)
    )
    train(city, settings=settings, folder=tmp_path / "clean", device="cpu")
    train(with_readings(city, values, observed), settings=settings, folder=tmp_path / "turned", device="cpu")
    assert equal(tensors(tmp_path / "clean"), tensors(tmp_path / "turned"))
    # At validation times they are the targets: another best epoch, but the same course.
    later = with_readings(city, garbage(city.stream, split.validation, slice(*split.validate)))
    scored = train(later, settings=settings, folder=tmp_path / "later", device="cpu")
    assert scored.progress.best_mae > 1000
    assert equal(*(course(tmp_path / run) for run in ("clean", "later")))
    # A training node's readings do matter.
    node = np.flatnonzero(split.training)[:1]
    values = city.stream.values.copy()
    values[: split.train[1], node] = values[: split.train[1], node][::-1]
    train(with_readings(city, values), settings=settings, folder=tmp_path / "other", device="cpu")
    assert not equal(*(course(tmp_path / run) for run in ("clean", "other")))


def course(folder: Path) -> dict[str, torch.Tensor]:
    """The state without the best weights."""
    return {k: v for k, v in tensors(folder).items() if not k.startswith("best.")}


@pytest.mark.parametrize("quantity", ["count", "speed"])
def test_the_scale_is_of_seen_nodes_and_training_times_alone(quantity: str) -> None:
    city = town(quantity=quantity)
    ids = train(city, settings=tiny(epochs=1), device="cpu").on(city).split.seen
    run = train(city, seen=city.stream.node_ids[ids].tolist(), settings=tiny(epochs=1), device="cpu")
    split = run.on(city).split
    stream = city.stream
    stop = split.train[1]
    readings = stream.values[:stop, split.seen][stream.observed[:stop, split.seen]].astype(float)
    assert math.isclose(run.scaling.value_scale, readings.std())
    assert math.isclose(run.scaling.value_offset, 0 if quantity == "count" else readings.mean(), abs_tol=1e-9)
    values = garbage(stream, split.unseen)
    values[stop:] = garbage(stream, np.ones(N, bool))[stop:]
    other = train(
        with_readings(city, values), seen=stream.node_ids[split.seen].tolist(), settings=tiny(epochs=1), device="cpu"
    )
    assert other.scaling.to_json() == run.scaling.to_json()


# One step


@BOTH
def test_memory_decides_only_the_micro_batch(name: str) -> None:
    still = {} if name == "paper" else {"model": {"dropout": 0.0, "edge_dropout": 0.0}}
    runs = []
    for memory_gb in (None, 1e-9):
        settings = tiny(name, memory_gb=memory_gb, epochs=1, steps_per_epoch=3, batch_size=6, **still)
        runs.append(train(town(), settings=settings, device="cpu"))
    assert [micro_batch(run.on(town()), torch.device("cpu")) for run in runs] == [6, 1]
    for k, v in weights(runs[0]).items():
        torch.testing.assert_close(weights(runs[1])[k], v, rtol=1e-3, atol=2e-5)
    assert math.isclose(runs[0].progress.best_mae, runs[1].progress.best_mae, rel_tol=1e-4)


def test_a_loss_read_a_step_late_is_reported_with_its_own_step() -> None:
    """As on a GPU, where to read a step's loss is to wait for it."""
    told: dict[int, list[tuple[int, int, float]]] = {}
    for behind in (0, 1):
        trainer = new_trainer(tiny(epochs=2))
        trainer.behind = behind
        steps: list[StepReport] = []
        assert trainer.fit(steps.append).progress.epoch == 2
        told[behind] = [(step.epoch, step.step, step.loss) for step in steps]
    assert told[1] == told[0] and len(told[0]) > 4


def test_weights_are_averaged_before_they_are_judged() -> None:
    trainer = new_trainer(tiny("paper", average=0.75, epochs=1, steps_per_epoch=6))
    steps: list[dict[str, torch.Tensor]] = []

    def on_step(tick: StepReport) -> None:
        if tick.metrics is None:
            steps.append({name: p.detach().clone() for name, p in trainer.model.named_parameters()})

    run = trainer.fit(on_step)
    mean = steps[0]
    for k, now in enumerate(steps[1:], start=2):  # the mean of all at first, then of about the last four
        mean = {name: torch.lerp(mean[name], now[name], max(0.25, 1 / k)) for name in now}
    kept = dict(run.model.named_parameters())
    assert len(steps) == 6 and all(torch.allclose(kept[name], mean[name], atol=1e-6) for name in mean)
    assert not all(torch.allclose(kept[name], steps[-1][name], atol=1e-6) for name in mean)
    trainer.averaged.load_state_dict(run.model.state_dict())
    assert trainer.validate() == run.progress.best_mae


@pytest.mark.parametrize("validation", ["seen", "unseen"])
@BOTH
def test_nodes_without_targets_are_not_decoded_and_that_changes_nothing(
    name: str, validation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss, its gradients and the validation's score are those of a forecast of all nodes."""
    still = {"dropout": 0.0, "edge_dropout": 0.0} if name == "default" else {}
    trainer = new_trainer(tiny(name, validation=validation, model=still))
    scored = trainer.run.split.unseen if validation == "unseen" else trainer.run.split.validation
    size = trainer.settings.batch_size
    rows = set()
    for model in {trainer.model, trainer.averaged}:
        model.get_submodule("first").register_forward_hook(lambda module, inputs, y: rows.add(len(y)))
        for parameter in model.get_submodule("readout").parameters():  # one that adds nothing is not run
            parameter.data += 0.1
    batch = trainer.windows.batch(trainer.train_at[:size], past=4, horizon=4, inputs=trainer.inputs)
    weight = trainer.inputs * torch.rand(size, N)
    found = []
    for _ in ("where it is needed", "everywhere"):
        loss = trainer._gradients(batch, weight, trainer._cells(batch, weight))
        gradients = [p.grad for p in trainer.model.parameters()]
        found.append([loss, *gradients, torch.tensor(trainer.validate())])
        monkeypatch.setattr(Frigate, "forecast_at", ForecastModel.forecast_at)  # which forecasts all nodes
    seen = int(trainer.run.split.training.sum())
    held = int(scored.sum())
    firsts = range(0, len(trainer.validate_at), trainer.micro_batch)
    windows = [len(trainer.validate_at[first : first + trainer.micro_batch]) for first in firsts]
    assert rows == {size * N, size * seen, *(n * N for n in windows), *(n * held for n in windows)}
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, check_dtype=False)


def test_a_batch_is_its_tensors() -> None:
    trainer = new_trainer(tiny())
    one, other = (trainer.windows.batch(np.array([at]), past=4, horizon=4, inputs=trainer.inputs) for at in (10, 20))
    moved = one.with_tensors(other.tensors)
    assert all(torch.equal(a, b) for a, b in zip(moved.tensors, other.tensors, strict=True))
    assert moved.topologies == one.topologies and not torch.equal(one.values, moved.values)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_recorded_step_is_the_step() -> None:
    stopped = train(town(), settings=tiny(model={"width": 16}), device="cuda", on_step=stop_at_once).on(town())
    trainer = Trainer(stopped, training_windows(stopped, "cuda"))
    size = trainer.settings.batch_size
    found = {}
    for alike in (True, False):
        torch.manual_seed(0)
        batch = trainer.windows.batch(trainer.train_at[:size], past=4, horizon=4, inputs=trainer.inputs)
        weight = trainer.inputs.float().expand(size, -1)
        if not alike:
            trainer.settings = replace(trainer.settings, batch_size=size + 1)  # no step of a full size: not recorded
        loss = trainer._gradients(batch, weight, trainer._cells(batch, weight))
        found[alike] = [loss.clone(), *(p.grad.clone() for p in trainer.model.parameters() if p.grad is not None)]
    assert trainer.recorded is not None
    assert all(torch.allclose(a, b, rtol=1e-2, atol=1e-3) for a, b in zip(*found.values(), strict=True))


def stop_at_once(tick: StepReport) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("demand", [False, True])
@pytest.mark.parametrize(("hide", "visible"), [((0.2, 0.8), 0.1), ((0.5, 0.5), 0.0), ((0.0, 0.0), 1.0)])
def test_the_loss_is_mostly_of_the_hidden_and_only_of_training_nodes(
    hide: tuple[float, float], visible: float, demand: bool
) -> None:
    still = {"dropout": 0.0, "edge_dropout": 0.0, "demand": demand}
    trainer = new_trainer(tiny(hide=hide, visible_weight=visible, model=still))
    current = np.array([10, 20, 30, 40])
    training = trainer.run.split.training
    which = None
    hidden = torch.from_numpy(draw_hidden(np.random.default_rng(5), training, 4, hide))
    if demand:
        which = torch.from_numpy(np.random.default_rng(5).integers(0, trainer.settings.masks, 4))
        hidden = torch.from_numpy(training_masks(trainer.run))[which]
    inputs = torch.from_numpy(training)
    batch = trainer.windows.batch(current, past=4, horizon=4, inputs=inputs, hidden=hidden, demand=which)
    assert batch.target is not None and batch.target_observed is not None
    with torch.no_grad():
        error = (trainer.model(batch) - batch.target).abs() / trainer.run.scaling.value_scale
    total = cells = 0.0
    for b, h, v in np.ndindex(*error.shape):
        if training[v] and batch.target_observed[b, h, v]:
            weight = 1.0 if hidden[b, v] else visible
            total = total + weight * float(error[b, h, v])
            cells = cells + weight
    loss, finite = trainer._step(current, np.random.default_rng(5), 0)
    assert finite
    assert math.isclose(loss, total / cells, rel_tol=1e-5)


@given(st.integers(0, 10**6), st.lists(st.floats(0, 0.99), min_size=2, max_size=2).map(sorted))
def test_only_sensors_are_hidden_and_about_the_share_asked_for(seed: int, hide: list[float]) -> None:
    rng = np.random.default_rng(seed)
    sensors = np.arange(3000) % 3 != 0
    hidden = draw_hidden(rng, sensors, 8, (hide[0], hide[1]))
    assert hidden.shape == (8, 3000)
    assert not hidden[:, ~sensors].any()
    share = hidden.sum(1) / sensors.sum()
    assert (share > hide[0] - 0.06).all()  # five deviations of 2,000 draws
    assert (share < hide[1] + 0.06).all()


def test_nothing_is_hidden_in_the_papers_setting() -> None:
    assert preset("paper").train.hide == (0.0, 0.0)
    assert not draw_hidden(np.random.default_rng(0), np.ones(500, bool), 9, (0.0, 0.0)).any()


def test_both_halves_of_a_detector_are_hidden_together() -> None:
    sensors = np.arange(40) != 7  # two nodes each; node 7 is no sensor
    together = np.arange(40) // 2 * 2
    hidden = draw_hidden(np.random.default_rng(2), sensors, 30, (0.3, 0.6), together)
    both = np.flatnonzero(together != 6)[::2]
    np.testing.assert_array_equal(hidden[:, both], hidden[:, both + 1])
    assert hidden.any() and not hidden[:, 7].any() and not hidden.all(1).any()
    city = town()
    pairs = np.arange(city.stream.num_nodes) // 2
    unknown = np.full(city.stream.num_nodes, np.nan)
    detectors = Detectors(pairs.astype(str), np.arange(city.stream.num_nodes), unknown, unknown, unknown)
    run = new_run(replace(city, detectors=detectors), settings=tiny("default", masks=6, hide=(0.2, 0.6)))
    masks = training_masks(run)
    sensors = city.stream.sensors
    first = [row for row in range(0, len(pairs) - 1, 2) if sensors[row] and sensors[row + 1]]
    for each in (*masks, run.split.seen, run.split.unseen):
        np.testing.assert_array_equal(each[first], each[np.array(first) + 1])
    assert masks.any() and run.split.unseen.any()


def test_both_halves_are_hidden_together_where_whole_areas_are_and_without_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = grid_network(12)
    N = network.num_nodes
    values = np.random.default_rng(0).poisson(9.0, (288, N)).astype(np.float64)
    values[:, network.lon > np.quantile(network.lon, 0.4)] = np.nan  # a large area without sensors
    stream = make_stream(values, network, start_s=START_S, step_s=3600, quantity="count")
    by_place = np.lexsort((network.lat, network.lon))
    partner = np.empty(N, np.int64)  # pairs that are not near each other
    sensors = by_place[np.isin(by_place, np.flatnonzero(stream.sensors))]
    half = len(sensors) // 2
    partner[sensors[:half]] = partner[sensors[half : 2 * half]] = np.arange(half)
    paired = sensors[: 2 * half]
    unknown = np.full(len(paired), np.nan)
    detectors = Detectors(partner[paired].astype(str), paired, unknown, unknown, unknown)
    city = ensure_road_features(City("Half", stream, detectors=detectors))
    assert uncovered_share(network, stream.sensors, np.random.default_rng(0)) > 0.2
    run = new_run(city, seen="all", settings=tiny("default", masks=8, hide=(0.2, 0.6)))
    masks = training_masks(run)
    for each in (*masks, kept_out_sensors(run)):
        assert each.any()
        np.testing.assert_array_equal(each[sensors[:half]], each[sensors[half : 2 * half]])
    drawn: list[NDArray[np.bool_]] = []

    def recorded(*arguments: Any) -> NDArray[np.bool_]:
        drawn.append(draw_hidden(*arguments))
        return drawn[-1]

    monkeypatch.setattr(trainer_module, "draw_hidden", recorded)
    train(city, seen="all", settings=tiny("default", model={"demand": False}, epochs=1), device="cpu")
    hidden = np.concatenate(drawn)
    assert hidden.any()
    np.testing.assert_array_equal(hidden[:, sensors[:half]], hidden[:, sensors[half : 2 * half]])


@given(st.integers(0, 50), st.integers(1, 400))
def test_the_learning_rate_rises_in_a_line_then_falls_to_its_last(warmup: int, steps: int) -> None:
    settings = TrainSettings(learning_rate=0.5, warmup_steps=warmup)
    rates = np.array([learning_rate(step, warmup + steps, settings) for step in range(warmup + steps + 1)])
    np.testing.assert_allclose(rates[:warmup], 0.5 * np.arange(1, warmup + 1) / max(warmup, 1))
    assert rates[warmup] == 0.5
    assert (np.diff(rates[warmup:]) < 0).all()
    assert math.isclose(rates[-1], 0.5 * LAST_RATE)


@given(st.integers(1, 300), st.integers(1, 80))
def test_spread_keeps_the_ends_and_repeats_nothing(length: int, count: int) -> None:
    items = np.arange(100, 100 + length)
    some = spread(items, count)
    assert len(some) == min(length, count)
    assert (np.diff(some) > 0).all()
    assert some[0] == 100
    assert count == 1 or some[-1] == 99 + length


# Early stopping, and what cannot be learned


def test_patience_ends_training_where_nothing_gets_better(tmp_path: Path) -> None:
    settings = tiny(epochs=50, patience=3, learning_rate=1e-30, weight_decay=0.0)
    run = train(town(), settings=settings, folder=tmp_path, device="cpu")
    assert (run.progress.best_epoch, run.progress.epoch, run.progress.finished) == (1, 4, True)
    assert [line["best"] for line in log(tmp_path)] == [True, False, False, False]


def test_a_diverged_run_says_so_and_its_files_stay_json(tmp_path: Path) -> None:
    settings = tiny(learning_rate=1e30, warmup_steps=0, patience=2, clip_norm=1e9)
    run = train(town(), settings=settings, folder=tmp_path, device="cpu")
    assert run.progress.best_epoch == 0
    assert run.progress.finished

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        told = json.loads(line, parse_constant=refuse)
        assert told["validation_mae"] is None
    json.loads(next(tmp_path.glob("checkpoint-*/run.json")).read_text(), parse_constant=refuse)
    again = load_run(tmp_path)
    assert again.progress == run.progress
    assert train(town(), folder=tmp_path, resume=True, device="cpu").progress == run.progress


def test_validation_windows_without_any_target_are_refused() -> None:
    city = town()
    split = make_split(city.stream, past=4, horizon=4)
    observed = city.stream.observed.copy()
    observed[split.validate[0] + 4 : split.validate[1]] = False  # readings in the past of its first window only
    with raises(SettingsError, "6 validation windows"):
        train(with_readings(city, city.stream.values, observed), settings=tiny())


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:99", "", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with raises(SettingsError, f'device "{device}"'):
        best_device(device)


# Any city


@BOTH
@pytest.mark.parametrize("attributes", [True, False])
def test_a_gauge_is_trained_on_and_forecast_with_and_without_road_attributes(name: str, attributes: bool) -> None:
    city = town(quantity="speed", attributes=attributes)
    run = train(city, seen=0.6, settings=tiny(name, epochs=5, steps_per_epoch=4), device="cpu")
    made = forecast(run, stream=city)
    assert np.isfinite(made.values).all()
    readings = city.stream.values[city.stream.observed]
    assert readings.min() < np.median(made.values) < readings.max()
    result = evaluate(run, city, device="cpu")
    assert result.model.unseen is not None
    assert result.model.unseen.geh_share is None
    assert math.isfinite(result.model.unseen.mae.value)


def test_four_of_five_sensors_are_seen_by_default() -> None:
    run = train(town(), settings=tiny(epochs=1, validation=preset("default").train.validation), device="cpu")
    sensors = int(town().stream.sensors.sum())
    assert int(run.split.seen.sum()) == round(0.8 * sensors)
    assert int(run.split.unseen.sum()) == sensors - round(0.8 * sensors)
    assert not run.split.validation.any()
    assert run.settings.model.preset == "default"
    held_out = train(town(), settings=tiny(epochs=1), device="cpu").split.validation
    assert int(held_out.sum()) == round(0.2 * run.split.seen.sum())


def test_all_sensors_seen_leaves_the_sensors_to_score_and_says_so() -> None:
    run = train(town(), seen="all", settings=tiny(epochs=1), device="cpu")
    assert not run.split.unseen.any()
    result = evaluate(run, town(), device="cpu")
    assert result.model.unseen is None
    assert result.model.at_sensors is not None
    assert "All nodes with readings are seen" in result.note


@BOTH
def test_a_region_without_sensors_is_trained_around(name: str) -> None:
    run = train(town(), seen=0.6, mode="region", settings=tiny(name, epochs=1), device="cpu")
    assert run.split.unseen.any()
    assert evaluate(run, town(), device="cpu").model.unseen is not None


@BOTH
def test_a_model_meets_the_same_streets_without_their_attributes(name: str) -> None:
    run = train(town(), seen=0.6, settings=tiny(name, epochs=1), device="cpu")
    bare = town(attributes=False)
    result = evaluate(run, bare, device="cpu")
    made = forecast(run, stream=bare)
    assert result.model.unseen is not None
    assert np.isfinite(made.values).all()
    if name == "default":
        for group in ("class", "lanes", "speed"):
            assert f"road {group}: known in training, unknown here" in result.note
    else:
        assert "road" not in result.note
    assert "road" not in evaluate(run, town(), device="cpu").note


@pytest.mark.parametrize("sensors", [0, 1, 2])
def test_too_few_sensors_are_refused(sensors: int) -> None:
    stream = town().stream
    observed = stream.observed.copy()
    observed[:, np.flatnonzero(stream.sensors)[sensors:]] = False
    named = ("no node", "reading") if sensors == 0 else (f"{sensors} sensors", "at least 3")
    for seen in (None, "all", 0.5):
        with raises((CityError, SettingsError), *named):
            train(with_readings(town(), stream.values, observed), seen=seen, settings=tiny())


def test_too_few_snapshots_are_refused() -> None:
    short = replace(town(), stream=town().stream.slice(0, 79))
    with raises(SettingsError, "test period", "8", "--past", "--horizon", "90 snapshots"):
        train(short, settings=change(tiny(), {"task": {"horizon": 5}}))


def test_without_tensorboard_training_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    train(town(), settings=tiny(epochs=1), folder=tmp_path, device="cpu")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        TRAINING,
        "checkpoint-0001",
        "intervals.json",
        "metrics.jsonl",
    ]


def test_with_tensorboard_the_same_numbers_are_there(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(town(), settings=tiny(epochs=3), folder=tmp_path, device="cpu", on_step=stop_in_the_third)
    train(town(), folder=tmp_path, resume=True, device="cpu")
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    told = [line["validation_mae"] for line in log(tmp_path)]
    assert [e.step for e in events.Scalars("validation_mae")] == [1, 2, 3]
    np.testing.assert_allclose([e.value for e in events.Scalars("validation_mae")], told, rtol=1e-6)


def stop_in_the_third(tick: StepReport) -> None:
    if tick.epoch == 2:
        raise KeyboardInterrupt
