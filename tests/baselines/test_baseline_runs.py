"""The six baselines are trained, resumed, evaluated and asked for forecasts as Frigate is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frigate.baselines.deep import DeepBaseline
from frigate.city.folder import write_city
from frigate.city.split import make_split
from frigate.config import BASELINES, PRESETS, Settings, Task, change, preset
from frigate.errors import SettingsError
from frigate.evaluation.evaluate import evaluate
from frigate.forecasting.forecast import forecast
from frigate.training.checkpoint import load_checkpoint, load_run
from frigate.training.run import Run
from frigate.training.train import train
from frigate.training.trainer import StepReport
from tests.support.baselines import (
    OTHER_HORIZON,
    OTHER_PAST,
    H,
    T,
    small_baseline_settings,
)
from tests.support.command_line import frigate
from tests.support.errors import raises
from tests.support.training_runs import equal, garbage, log, tensors, town, weights, with_readings

EVERY = pytest.mark.parametrize("name", BASELINES)


def brief(name: str, *, roads: bool = False, **training: Any) -> Settings:
    """Settings of a preset, shrunk: everything else is the protocol's."""
    steps = {"epochs": 3, "steps_per_epoch": 2, "batch_size": 4, "warmup_steps": 2, "validation_windows": 4}
    return change(small_baseline_settings(name, roads=roads), {"train": {"learning_rate": 5e-3, **steps, **training}})


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
    network = town().network
    ids = town().stream.node_ids.tolist()
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
            with raises(SettingsError, f"{what} = 5", BASELINES[name]):
                forecast(trained, stream=town(), device="cpu", **other)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Settings, tuple[Any, ...]], Run]:
    """A run on the town as it is, trained once."""

    @cache
    def trained(settings: Settings, ids: tuple[Any, ...]) -> Run:
        return train(town(), seen=list(ids), settings=settings, folder=tmp_path_factory.mktemp("clean"), device="cpu")

    return trained


@EVERY
@pytest.mark.parametrize("kind", ["garbage", "flipped", "gone"])
def test_unseen_readings_cannot_matter(
    name: str, kind: str, tmp_path: Path, clean: Callable[[Settings, tuple[Any, ...]], Run]
) -> None:
    city = town()
    split = make_split(city.stream, seen=0.5, past=T, horizon=H)
    ids = city.stream.node_ids[split.seen].tolist()
    observed = city.stream.observed.copy()
    if kind != "garbage":
        observed[:, split.unseen] = ~observed[:, split.unseen] if kind == "flipped" else False
    poisoned = with_readings(city, garbage(replace(city.stream, observed=observed), split.unseen), observed)
    settings = brief(name, roads=kind == "flipped", epochs=2, steps_per_epoch=1)
    expected = clean(settings, tuple(ids))
    dirty = train(poisoned, seen=ids, settings=settings, folder=tmp_path, device="cpu")
    assert expected.split.unseen.any() and expected.folder is not None
    assert equal(tensors(expected.folder), tensors(tmp_path))
    assert log(expected.folder) == log(tmp_path)
    assert expected.scaling.to_json() == dirty.scaling.to_json()


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
    with raises(SettingsError, f'preset "{said}"') as refused:
        preset(said)
    message = str(refused.value)
    assert all(name in message for name in (*PRESETS, *BASELINES))
    assert message.count(meant) == 2  # in the list, and as the hint


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


def test_frigate_train_takes_a_baselines_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_city(town(), tmp_path / "city")
    (tmp_path / "settings.toml").write_text(SETTINGS)
    options = ["--settings", "settings.toml", "--seen", "60%", "--device", "cpu"]
    said = frigate("train", "city", "-o", "run", *options, "--preset", "dcrnn")
    assert said.status == 0, said.err
    assert isinstance(load_run("run").model, DeepBaseline)
    said = frigate("evaluate", "run", "--stride", "8", "--device", "cpu")
    assert said.status == 0 and "DCRNN" in said.out
    said = frigate("train", "city", "-o", "other", *options, "--preset", "dcrn")
    assert said.status == 2 and '"dcrn"' in said.err and not Path("other").exists()
